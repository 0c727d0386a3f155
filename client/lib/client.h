// Client: typed calls to a coordinator. Messages of strata.v1 go in and out; gRPC stays inside.
//
// Every call retries UNAVAILABLE with backoff (which is safe: mutating requests carry an id that makes a
// replay harmless) and has a deadline. A change that a slow server has not confirmed by then is asked for
// again under the same id, so that its answer is what became of the first. Streams resume from their cursor
// after a lost connection. Errors carry the server's details (rpc_error.h). Thread-safe; calls block.
#ifndef CLIENT_LIB_CLIENT_H_
#define CLIENT_LIB_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/strata/v1/checkpoints.pb.h"
#include "proto/strata/v1/fleet.pb.h"
#include "proto/strata/v1/jobs.pb.h"
#include "proto/strata/v1/logs.pb.h"
#include "proto/strata/v1/metrics.pb.h"
#include "proto/strata/v1/plan.pb.h"

namespace strata {

struct ClientOptions {
  std::string address;                              // host:port or unix:PATH
  absl::Duration call_timeout = absl::Seconds(30);  // of one attempt of a unary call
  // How long an unreachable server is tried again: by unary calls, and by streams since the last message.
  absl::Duration retry_for = absl::Seconds(5);
  // How long a server that is there but slow (its disk is) is asked again to confirm a change. Then the error
  // says that the change may still happen.
  absl::Duration confirm_for = absl::Seconds(90);
  absl::Duration stream_retry_for = absl::Seconds(60);
  std::stop_token stop;  // ends waiting and streams with kCancelled
  // Told about each failure that will be tried again; may be empty. Called on the calling thread.
  std::function<void(const absl::Status&)> on_retry;
};

class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& address() const;

  // An empty request_id is filled in.
  absl::StatusOr<v1::Job> CreateJob(v1::CreateJobRequest request);
  // For `worker`; "": for the largest that it fits on.
  absl::StatusOr<v1::JobPlan> PlanJob(const v1::JobSpec& spec, const std::string& worker = "");
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  // All pages, newest first as the server orders them; `state` "" or a state's name; `limit` 0 is all.
  absl::StatusOr<std::vector<v1::Job>> ListJobs(const std::string& state, int64_t limit);
  absl::StatusOr<v1::Job> CancelJob(const std::string& name, const std::string& reason);
  absl::StatusOr<std::vector<v1::JobEvent>> ListJobEvents(const std::string& name);
  absl::StatusOr<v1::QueryMetricsResponse> QueryMetrics(const v1::QueryMetricsRequest& request);
  absl::StatusOr<std::vector<v1::Worker>> ListWorkers();
  absl::StatusOr<v1::Worker> GetWorker(const std::string& name);
  absl::StatusOr<v1::ServerInfo> GetServerInfo();
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& job_name);
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const std::string& name);

  // Streams call `on_message` on the calling thread until it returns false, `stop` is requested
  // (kCancelled), the server ends the stream, or it fails.

  // The job now, then after every change of it.
  absl::Status WatchJob(const std::string& name, std::stop_token stop,
                        const std::function<bool(const v1::Job&)>& on_message);
  // The rows after `after_sequence`, until the job is terminal and all its rows were sent.
  absl::Status StreamMetrics(const std::string& name, int64_t after_sequence, std::stop_token stop,
                             const std::function<bool(const v1::MetricRow&)>& on_message);
  // `request` says from where; its cursors move along across reconnects.
  absl::Status ReadLogs(v1::ReadLogsRequest request, std::stop_token stop,
                        const std::function<bool(const v1::ReadLogsResponse&)>& on_message);
  // Writes one file of a checkpoint to `out_path` (created anew), checking the CRC of every chunk, their
  // order, and the file's size and CRC against `file`; kDataLoss when one differs.
  absl::Status DownloadCheckpointFile(const std::string& checkpoint, const v1::CheckpointFile& file,
                                      const std::string& out_path);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace strata

#endif  // CLIENT_LIB_CLIENT_H_
