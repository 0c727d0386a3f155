#include "client/lib/client.h"

#include <fcntl.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/lib/names.h"
#include "client/lib/rpc_error.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/fd.h"
#include "common/status.h"
#include "grpcpp/grpcpp.h"
#include "proto/connection_error/connection_error.h"
#include "proto/strata/v1/checkpoints.grpc.pb.h"
#include "proto/strata/v1/fleet.grpc.pb.h"
#include "proto/strata/v1/jobs.grpc.pb.h"
#include "proto/strata/v1/logs.grpc.pb.h"
#include "proto/strata/v1/metrics.grpc.pb.h"

namespace strata {
namespace {

constexpr absl::Duration kBackoffFirst = absl::Milliseconds(100);
constexpr absl::Duration kBackoffMax = absl::Seconds(2);
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kReconnectMaxMs = 1'000;
constexpr int kPageSize = 500;
// A call that failed after this part of its deadline waited for a change.
constexpr double kConfirmShare = 0.8;

absl::Status ToStatus(const grpc::Status& status) {
  return MakeRpcStatus(status.error_code(), status.error_message(), status.error_details());
}

// False when `stop` came first.
bool SleepUnlessStopped(absl::Duration duration, const std::stop_token& stop) {
  std::mutex mu;
  std::condition_variable_any cv;
  std::unique_lock<std::mutex> lock(mu);
  cv.wait_for(lock, stop, absl::ToChronoNanoseconds(duration), [] { return false; });
  return !stop.stop_requested();
}

// Decides after a failure whether to try again, and waits. One per call; a stream resets it with every
// message.
class Backoff {
 public:
  Backoff(absl::Duration limit, const ClientOptions& options, std::stop_token stop)
      : limit_(limit), options_(options), stop_(std::move(stop)) {
    Reset();
  }

  void Reset() {
    start_nanos_ = Clock::Real().MonotonicNanos();
    next_ = kBackoffFirst;
  }

  bool ShouldRetry(const absl::Status& status) {
    return absl::IsUnavailable(status) && WaitWithin(limit_, status);
  }

  // Whether to try again within `limit`; waits.
  bool WaitWithin(absl::Duration limit, const absl::Status& status) {
    if (stop_.stop_requested()) return false;
    const absl::Duration wait = std::max(next_, DetailsOf(status).retry_delay);
    next_ = std::min(next_ * 2, kBackoffMax);
    const absl::Duration spent = absl::Nanoseconds(Clock::Real().MonotonicNanos() - start_nanos_);
    if (spent + wait > limit) return false;
    if (options_.on_retry) options_.on_retry(status);
    return SleepUnlessStopped(wait, stop_);
  }

 private:
  const absl::Duration limit_;
  const ClientOptions& options_;
  const std::stop_token stop_;
  int64_t start_nanos_ = 0;
  absl::Duration next_;
};

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMaxMs);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);     // Retries are Backoff's business.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // A coordinator is never behind the proxy of the web.
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

struct Client::Impl {
  explicit Impl(ClientOptions given)
      : options(std::move(given)),
        channel(MakeChannel(options.address)),
        jobs(v1::JobService::NewStub(channel)),
        metrics(v1::MetricService::NewStub(channel)),
        logs(v1::LogService::NewStub(channel)),
        fleet(v1::FleetService::NewStub(channel)),
        checkpoints(v1::CheckpointService::NewStub(channel)) {}

  enum class Effect { kNone, kChange };

  // One unary call, `(stub.*method)(context, request, response)`, with retries. A change has a request id.
  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(Stub& stub,
                                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request, Effect effect = Effect::kNone) {
    Backoff backoff(options.retry_for, options, options.stop);
    while (true) {
      const int64_t begin = Clock::Real().MonotonicNanos();
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + options.call_timeout));
      Response response;
      std::stop_callback cancel(options.stop, [&] { context.TryCancel(); });
      const absl::Status status = ToStatus((stub.*method)(&context, request, &response));
      if (status.ok()) return response;
      if (effect == Effect::kChange && IsUnconfirmed(status, begin)) {
        if (backoff.WaitWithin(options.confirm_for, status)) continue;
        return Annotate(Explain(status),
                        "the server has not confirmed the change in time, which may still happen");
      }
      if (!backoff.ShouldRetry(status)) return Explain(status);
    }
  }

  // The server, or the way to it, took so long that the change may have been made. It gives up at the
  // deadline too.
  bool IsUnconfirmed(const absl::Status& status, int64_t begin_nanos) const {
    const absl::Duration took = absl::Nanoseconds(Clock::Real().MonotonicNanos() - begin_nanos);
    return absl::IsDeadlineExceeded(status) ||
           (absl::IsUnavailable(status) && took > options.call_timeout * kConfirmShare);
  }

  // Whether a stream may end well before the reader has what it wants.
  enum class End { kIsFine, kIsAnInterruption };

  // Opens a stream by `open(context)` and hands its messages to `on_message` until that returns false. A
  // lost connection opens it again; `open` reads the cursor that `on_message` moved.
  template <typename Message, typename Open>
  absl::Status Stream(std::stop_token stop, End end, const Open& open,
                      const std::function<bool(const Message&)>& on_message) {
    Backoff backoff(options.stream_retry_for, options, stop);
    while (true) {
      grpc::ClientContext context;
      auto reader = open(&context);
      std::stop_callback cancel(stop, [&] { context.TryCancel(); });
      Message message;
      bool wanted = true;
      while (wanted && reader->Read(&message)) {
        backoff.Reset();
        wanted = on_message(message);
      }
      if (!wanted) context.TryCancel();
      absl::Status status = ToStatus(reader->Finish());
      if (status.ok() && end == End::kIsAnInterruption)
        status = absl::UnavailableError("the server ended the stream");
      if (!wanted) return absl::OkStatus();
      if (stop.stop_requested()) return absl::CancelledError("interrupted");
      if (status.ok() || !backoff.ShouldRetry(status)) return Explain(status);
    }
  }

  absl::Status Explain(const absl::Status& status) const {
    if (options.stop.stop_requested()) return absl::CancelledError("interrupted");
    if (IsOfServer(status) || !(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)))
      return status;
    return absl::Status(status.code(), ExplainNoAnswer(status.code(), status.message(), options.address,
                                                       "--server or STRATA_SERVER"));
  }

  const ClientOptions options;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::JobService::Stub> jobs;
  const std::unique_ptr<v1::MetricService::Stub> metrics;
  const std::unique_ptr<v1::LogService::Stub> logs;
  const std::unique_ptr<v1::FleetService::Stub> fleet;
  const std::unique_ptr<v1::CheckpointService::Stub> checkpoints;
};

Client::Client(ClientOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Client::~Client() = default;

const std::string& Client::address() const { return impl_->options.address; }

absl::StatusOr<v1::Job> Client::CreateJob(v1::CreateJobRequest request) {
  if (request.request_id().empty()) request.set_request_id(NewRequestId());
  return impl_->Call(*impl_->jobs, &v1::JobService::Stub::CreateJob, request, Impl::Effect::kChange);
}

absl::StatusOr<v1::JobPlan> Client::PlanJob(const v1::JobSpec& spec, const std::string& worker) {
  v1::PlanJobRequest request;
  request.set_worker(worker);
  *request.mutable_spec() = spec;
  return impl_->Call(*impl_->jobs, &v1::JobService::Stub::PlanJob, request);
}

absl::StatusOr<v1::Job> Client::GetJob(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return impl_->Call(*impl_->jobs, &v1::JobService::Stub::GetJob, request);
}

absl::StatusOr<std::vector<v1::Job>> Client::ListJobs(const std::string& state, int64_t limit) {
  v1::ListJobsRequest request;
  request.set_parent("projects/default");
  request.set_state(state);
  std::vector<v1::Job> jobs;
  do {
    const int64_t wanted =
        limit > 0 ? std::min<int64_t>(kPageSize, limit - static_cast<int64_t>(jobs.size())) : kPageSize;
    request.set_page_size(static_cast<int32_t>(wanted));
    STRATA_ASSIGN_OR_RETURN(v1::ListJobsResponse page,
                            impl_->Call(*impl_->jobs, &v1::JobService::Stub::ListJobs, request));
    for (v1::Job& job : *page.mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty() && (limit <= 0 || static_cast<int64_t>(jobs.size()) < limit));
  return jobs;
}

absl::StatusOr<v1::Job> Client::CancelJob(const std::string& name, const std::string& reason) {
  v1::CancelJobRequest request;
  request.set_name(name);
  request.set_reason(reason);
  request.set_request_id(NewRequestId());
  return impl_->Call(*impl_->jobs, &v1::JobService::Stub::CancelJob, request, Impl::Effect::kChange);
}

absl::StatusOr<std::vector<v1::JobEvent>> Client::ListJobEvents(const std::string& name) {
  v1::ListJobEventsRequest request;
  request.set_name(name);
  request.set_page_size(kPageSize);
  std::vector<v1::JobEvent> events;
  do {
    STRATA_ASSIGN_OR_RETURN(v1::ListJobEventsResponse page,
                            impl_->Call(*impl_->jobs, &v1::JobService::Stub::ListJobEvents, request));
    for (v1::JobEvent& event : *page.mutable_events()) events.push_back(std::move(event));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return events;
}

absl::StatusOr<v1::QueryMetricsResponse> Client::QueryMetrics(const v1::QueryMetricsRequest& request) {
  return impl_->Call(*impl_->metrics, &v1::MetricService::Stub::QueryMetrics, request);
}

absl::StatusOr<std::vector<v1::Worker>> Client::ListWorkers() {
  v1::ListWorkersRequest request;
  request.set_page_size(kPageSize);
  std::vector<v1::Worker> workers;
  do {
    STRATA_ASSIGN_OR_RETURN(v1::ListWorkersResponse page,
                            impl_->Call(*impl_->fleet, &v1::FleetService::Stub::ListWorkers, request));
    for (v1::Worker& worker : *page.mutable_workers()) workers.push_back(std::move(worker));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return workers;
}

absl::StatusOr<v1::Worker> Client::GetWorker(const std::string& name) {
  v1::GetWorkerRequest request;
  request.set_name(name);
  return impl_->Call(*impl_->fleet, &v1::FleetService::Stub::GetWorker, request);
}

absl::StatusOr<v1::ServerInfo> Client::GetServerInfo() {
  return impl_->Call(*impl_->fleet, &v1::FleetService::Stub::GetServerInfo, v1::GetServerInfoRequest());
}

absl::StatusOr<std::vector<v1::Checkpoint>> Client::ListCheckpoints(const std::string& job_name) {
  v1::ListCheckpointsRequest request;
  request.set_parent(job_name);
  request.set_page_size(kPageSize);
  std::vector<v1::Checkpoint> checkpoints;
  do {
    STRATA_ASSIGN_OR_RETURN(
        v1::ListCheckpointsResponse page,
        impl_->Call(*impl_->checkpoints, &v1::CheckpointService::Stub::ListCheckpoints, request));
    for (v1::Checkpoint& checkpoint : *page.mutable_checkpoints())
      checkpoints.push_back(std::move(checkpoint));
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  return checkpoints;
}

absl::StatusOr<v1::Checkpoint> Client::GetCheckpoint(const std::string& name) {
  v1::GetCheckpointRequest request;
  request.set_name(name);
  return impl_->Call(*impl_->checkpoints, &v1::CheckpointService::Stub::GetCheckpoint, request);
}

absl::Status Client::WatchJob(const std::string& name, std::stop_token stop,
                              const std::function<bool(const v1::Job&)>& on_message) {
  v1::WatchJobsRequest request;
  request.set_name(name);
  while (true) {
    const absl::Status status = impl_->Stream<v1::WatchJobsResponse>(
        stop, Impl::End::kIsAnInterruption,
        [&](grpc::ClientContext* context) { return impl_->jobs->WatchJobs(context, request); },
        [&](const v1::WatchJobsResponse& response) {
          // A bookmark of an unfinished snapshot is no place to resume from.
          if (response.has_upsert() || request.from_revision() > 0 ||
              response.bookmark().snapshot_complete()) {
            request.set_from_revision(std::max(request.from_revision(), response.revision()));
          }
          return !response.has_upsert() || on_message(response.upsert());
        });
    // The history since our cursor is gone: a fresh snapshot tells the present.
    if (!absl::IsOutOfRange(status) || request.from_revision() == 0) return status;
    request.set_from_revision(0);
  }
}

absl::Status Client::StreamMetrics(const std::string& name, int64_t after_sequence, std::stop_token stop,
                                   const std::function<bool(const v1::MetricRow&)>& on_message) {
  v1::StreamMetricsRequest request;
  request.set_name(name);
  request.set_after_sequence(after_sequence);
  return impl_->Stream<v1::StreamMetricsResponse>(
      stop, Impl::End::kIsFine,
      [&](grpc::ClientContext* context) { return impl_->metrics->StreamMetrics(context, request); },
      [&](const v1::StreamMetricsResponse& response) {
        request.set_after_sequence(std::max(request.after_sequence(), response.sequence()));
        if (response.has_row() && !on_message(response.row())) return false;
        return !response.end();
      });
}

absl::Status Client::ReadLogs(v1::ReadLogsRequest request, std::stop_token stop,
                              const std::function<bool(const v1::ReadLogsResponse&)>& on_message) {
  std::map<std::tuple<int32_t, int32_t, std::string>, v1::LogCursor> cursors;
  for (const v1::LogCursor& cursor : request.cursors())
    cursors[{cursor.attempt(), cursor.rank(), cursor.stream()}] = cursor;
  const auto advance = [&](const v1::LogCursor& at, int64_t bytes) {
    v1::LogCursor& cursor = cursors[{at.attempt(), at.rank(), at.stream()}];
    cursor = at;
    cursor.set_offset(at.offset() + bytes);
  };
  return impl_->Stream<v1::ReadLogsResponse>(
      stop, Impl::End::kIsFine,
      [&](grpc::ClientContext* context) {
        request.clear_cursors();
        for (const auto& [key, cursor] : cursors) *request.add_cursors() = cursor;
        return impl_->logs->ReadLogs(context, request);
      },
      [&](const v1::ReadLogsResponse& response) {
        if (response.has_chunk())
          advance(response.chunk().at(), static_cast<int64_t>(response.chunk().data().size()));
        if (response.has_gap()) advance(response.gap().at(), response.gap().missing_bytes());
        request.set_tail_lines(0);  // Only the first connection starts at the tail.
        return on_message(response) && !response.has_end();
      });
}

absl::Status Client::DownloadCheckpointFile(const std::string& checkpoint, const v1::CheckpointFile& file,
                                            const std::string& out_path) {
  STRATA_ASSIGN_OR_RETURN(Fd out, OpenFile(out_path, O_WRONLY | O_CREAT | O_TRUNC));
  v1::ReadCheckpointFileRequest request;
  request.set_name(checkpoint);
  request.set_path(file.path());
  uint32_t crc = 0;
  absl::Status wrong;
  STRATA_RETURN_IF_ERROR(impl_->Stream<v1::FileChunk>(
                             impl_->options.stop, Impl::End::kIsFine,
                             [&](grpc::ClientContext* context) {
                               return impl_->checkpoints->ReadCheckpointFile(context, request);
                             },
                             [&](const v1::FileChunk& chunk) {
                               const std::string& data = chunk.data();
                               const uint32_t chunk_crc = Crc32c(data.data(), data.size());
                               if (chunk.offset() != request.offset()) {
                                 wrong = absl::DataLossError(absl::StrCat("got offset ", chunk.offset(),
                                                                          " instead of ", request.offset()));
                               } else if (chunk_crc != chunk.crc32c()) {
                                 wrong = absl::DataLossError(absl::StrCat(
                                     "offset ", chunk.offset(), ": CRC-32C is ", absl::Hex(chunk_crc),
                                     ", expected ", absl::Hex(chunk.crc32c())));
                               } else {
                                 wrong = WriteAll(out, data, out_path);
                               }
                               crc = Crc32c(data.data(), data.size(), crc);
                               request.set_offset(request.offset() + static_cast<int64_t>(data.size()));
                               return wrong.ok();
                             }),
                         "downloading ", file.path());
  STRATA_RETURN_IF_ERROR(wrong, "downloading ", file.path());
  if (request.offset() != file.bytes() || crc != file.crc32c()) {
    return absl::DataLossError(absl::StrCat(file.path(), " has ", request.offset(), " bytes with CRC-32C ",
                                            absl::Hex(crc), ", the checkpoint lists ", file.bytes(), " with ",
                                            absl::Hex(file.crc32c())));
  }
  return std::move(out).Close();
}

}  // namespace strata
