#include "server/transport/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "absl/strings/str_cat.h"

namespace strata::server {
namespace {

// Streams and held long polls have limits of their own; this many threads beyond them are always there for
// the rest.
constexpr int kUnaryThreads = 64;

}  // namespace

Server::Server(const ServerOptions& options, Coordinator& coordinator)
    : transport_{coordinator, {}, {options.streams_max, options.write_timeout}},
      jobs_(transport_),
      logs_(transport_),
      metrics_(transport_),
      checkpoints_(transport_),
      fleet_(transport_),
      workers_(transport_) {}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      Coordinator& coordinator) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  std::unique_ptr<Server> server(new Server(options, coordinator));
  grpc::ServerBuilder builder;
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &server->port_);
  for (grpc::Service* service :
       {static_cast<grpc::Service*>(&server->jobs_), static_cast<grpc::Service*>(&server->logs_),
        static_cast<grpc::Service*>(&server->metrics_), static_cast<grpc::Service*>(&server->checkpoints_),
        static_cast<grpc::Service*>(&server->fleet_), static_cast<grpc::Service*>(&server->workers_)}) {
    builder.RegisterService(service);
  }
  grpc::ResourceQuota quota("strata_server");
  quota.SetMaxThreads(options.streams_max + 2 * WorkerServiceImpl::kHeldMax + kUnaryThreads);
  builder.SetResourceQuota(quota);
  // Two coordinators on one port would share its connections silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1024);
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr || server->port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options.listen, ": is the address ours, and is the port free?"));
  }
  server->server_->GetHealthCheckService()->SetServingStatus(true);
  return server;
}

Server::~Server() { Shutdown(std::chrono::milliseconds(0)); }

void Server::Shutdown(std::chrono::milliseconds grace) {
  if (down_ || server_ == nullptr) return;
  down_ = true;
  server_->GetHealthCheckService()->SetServingStatus(false);
  transport_.coordinator.Drain();
  transport_.streams.EndReaders();
  server_->Shutdown(std::chrono::system_clock::now() + grace);
  server_->Wait();
}

}  // namespace strata::server
