#include "server/transport/self_check.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace strata::server {
namespace {

constexpr std::chrono::seconds kTimeout{5};

}  // namespace

bool IsServing(const std::string& address, std::chrono::milliseconds timeout) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // else an open connection would be used again
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  grpc::GenericStub stub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  grpc::CompletionQueue queue;
  const grpc::ByteBuffer request(nullptr, 0);  // HealthCheckRequest without a service: the whole server
  grpc::ByteBuffer response;
  grpc::Status status;
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.ok();
}

std::string LocalAddress(const std::string& listen, int port) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  if (host == "0.0.0.0" || host.empty()) return absl::StrCat("127.0.0.1:", port);
  if (host == "[::]") return absl::StrCat("[::1]:", port);
  return absl::StrCat(host, ":", port);
}

bool IsLoopback(const std::string& listen) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

SelfCheck::SelfCheck(std::string address, std::chrono::milliseconds every, int failures_max,
                     std::function<void()> failed)
    : address_(std::move(address)),
      every_(every),
      failures_max_(failures_max),
      failed_(std::move(failed)),
      thread_("self-check", [this] { Loop(); }) {}

SelfCheck::~SelfCheck() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  stopped_.SignalAll();
  thread_.Join();
}

void SelfCheck::Loop() {
  int failures = 0;
  while (true) {
    {
      MutexLock lock(mu_);
      const auto until = std::chrono::steady_clock::now() + every_;
      while (!stop_) {
        const auto left = until - std::chrono::steady_clock::now();
        if (left <= std::chrono::nanoseconds(0)) break;
        stopped_.WaitFor(mu_, left);
      }
      if (stop_) return;
    }
    failures = IsServing(address_, kTimeout) ? 0 : failures + 1;
    if (failures < failures_max_) continue;
    failed_();
    return;
  }
}

}  // namespace strata::server
