#include "worker/agent/coordinator.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/cord.h"
#include "common/clock.h"
#include "proto/connection_error/connection_error.h"
#include "proto/duration/duration.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/strata/v1/worker.grpc.pb.h"

namespace strata {
namespace {

constexpr char kReasonPayload[] = "strata/error-reason";
constexpr char kRetryPayload[] = "strata/retry-delay";

absl::Status FromGrpc(const grpc::Status& status, const std::string& address) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  absl::Status result(code, status.error_message());
  google::rpc::Status details;
  if (status.error_details().empty()) {
    const bool silent = code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded;
    if (silent) return absl::Status(code, ExplainNoAnswer(code, status.error_message(), address, "--server"));
  } else if (details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& any : details.details()) {
      google::rpc::ErrorInfo info;
      google::rpc::RetryInfo retry;
      if (any.UnpackTo(&info)) result.SetPayload(kReasonPayload, absl::Cord(info.reason()));
      if (any.UnpackTo(&retry)) {
        const absl::Duration delay = FromProto(retry.retry_delay());
        result.SetPayload(kRetryPayload, absl::Cord(absl::FormatDuration(delay)));
      }
    }
  }
  return result;
}

void CancelContext(void* context) { static_cast<grpc::ClientContext*>(context)->TryCancel(); }

class GrpcTelemetryStream : public TelemetryStream {
 public:
  GrpcTelemetryStream(v1::WorkerService::Stub& stub, const std::string& address)
      : address_(address), stream_(stub.PushTelemetry(&context_)) {}
  bool Write(const v1::TelemetryBatch& batch) override { return stream_->Write(batch); }
  bool Read(v1::TelemetryAck* ack) override { return stream_->Read(ack); }
  void Cancel() override { context_.TryCancel(); }
  absl::Status Finish() override { return FromGrpc(stream_->Finish(), address_); }

 private:
  const std::string address_;
  grpc::ClientContext context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::TelemetryBatch, v1::TelemetryAck>> stream_;
};

class GrpcCoordinator : public Coordinator {
 public:
  explicit GrpcCoordinator(const std::string& address) : address_(address) {
    grpc::ChannelArguments arguments;
    // gRPC's own pause between connection attempts grows to two minutes; the coordinator is back sooner.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    // Despite its name the time one attempt may take.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    // The coordinator is in the worker's own network; a proxy variable of the environment is not for it.
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // A channel of its own: an embedded coordinator in the same process must not share sub-channels.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::WorkerService::NewStub(channel_);
  }

  absl::Status Register(const v1::RegisterRequest& request, absl::Duration timeout,
                        Cancellation* cancellation, v1::RegisterResponse* response) override {
    return Call(&v1::WorkerService::Stub::Register, request, timeout, cancellation, response);
  }
  absl::Status Sync(const v1::SyncRequest& request, absl::Duration timeout, Cancellation* cancellation,
                    v1::SyncResponse* response) override {
    return Call(&v1::WorkerService::Stub::Sync, request, timeout, cancellation, response);
  }
  absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest& request, absl::Duration timeout,
                                Cancellation* cancellation, v1::Checkpoint* response) override {
    return Call(&v1::WorkerService::Stub::CommitCheckpoint, request, timeout, cancellation, response);
  }
  absl::Status Rendezvous(const v1::RendezvousRequest& request, absl::Duration timeout,
                          Cancellation* cancellation, v1::RendezvousResponse* response) override {
    return Call(&v1::WorkerService::Stub::Rendezvous, request, timeout, cancellation, response);
  }
  std::unique_ptr<TelemetryStream> OpenTelemetry() override {
    return std::make_unique<GrpcTelemetryStream>(*stub_, address_);
  }
  bool IsConnected() override { return channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY; }
  bool WaitConnected(absl::Duration timeout) override {
    return channel_->WaitForConnected(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
  }

 private:
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::WorkerService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                    Response*),
                    const Request& request, absl::Duration timeout, Cancellation* cancellation,
                    Response* response) {
    response->Clear();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
    if (cancellation != nullptr) cancellation->Attach(&CancelContext, &context);
    const grpc::Status status = (stub_.get()->*method)(&context, request, response);
    if (cancellation != nullptr) cancellation->Detach();
    return FromGrpc(status, address_);
  }

  const std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
};

}  // namespace

void Cancellation::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  if (stop_ != nullptr) stop_(argument_);
  changed_.SignalAll();
}

bool Cancellation::cancelled() {
  MutexLock lock(mu_);
  return cancelled_;
}

bool Cancellation::WaitFor(absl::Duration timeout) {
  const int64_t deadline = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(timeout);
  MutexLock lock(mu_);
  while (!cancelled_) {
    const int64_t left = deadline - Clock::Real().MonotonicNanos();
    if (left <= 0) return false;
    changed_.WaitFor(mu_, std::chrono::nanoseconds(left));
  }
  return true;
}

void Cancellation::Attach(void (*stop)(void*), void* argument) {
  MutexLock lock(mu_);
  stop_ = stop;
  argument_ = argument;
  if (cancelled_) stop_(argument_);
}

void Cancellation::Detach() {
  MutexLock lock(mu_);
  stop_ = nullptr;
}

std::unique_ptr<Coordinator> ConnectCoordinator(const std::string& address) {
  return std::make_unique<GrpcCoordinator>(address);
}

std::string ErrorReason(const absl::Status& status) {
  const auto payload = status.GetPayload(kReasonPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

absl::Duration RetryDelay(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryPayload);
  absl::Duration delay;
  return payload.has_value() && absl::ParseDuration(std::string(*payload), &delay) ? delay
                                                                                   : absl::ZeroDuration();
}

bool IsFinal(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

}  // namespace strata
