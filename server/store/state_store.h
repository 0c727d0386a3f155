// StateStore: where the coordinator keeps jobs, their events, checkpoints, revisions and request ids. What it
// says is committed survives kill -9 and power loss. An interface, so that another store (etcd) can stand in;
// every implementation passes state_store_conformance.
#ifndef SERVER_STORE_STATE_STORE_H_
#define SERVER_STORE_STATE_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/strata/v1/checkpoints.pb.h"
#include "proto/strata/v1/jobs.pb.h"
#include "server/state/job.h"

namespace strata::server {

struct EventRow {
  int64_t revision = 0;
  int64_t wall_micros = 0;
  JobState from = JobState::kNone;
  JobState to = JobState::kNone;
  int32_t attempt = 0;
  std::string reason;
  std::string message;
  std::string actor;
};

struct RequestRow {
  std::string scope;  // method and parent: an id is unique within it
  std::string request_id;
  std::string digest;  // of the payload
  std::string uid;     // of the job that answers it
};

// One transition: one durable transaction (I2).
struct StoreTransaction {
  JobPtr job;  // the record after it
  EventRow event;
  std::optional<RequestRow> request;
  std::shared_ptr<const v1::Checkpoint> checkpoint;  // committed by this transition; replaces its step
  std::vector<int64_t> dropped_steps;                // checkpoints no longer kept
};

// A list starts at the newest job and goes back: `before_sequence` is the cursor.
struct JobQuery {
  std::string parent;                // projects/{p}
  JobState state = JobState::kNone;  // kNone: all
  int64_t before_sequence = INT64_MAX;
  int32_t limit = 50;
};

class StateStore {
 public:
  using Done = std::function<void(absl::Status)>;
  virtual ~StateStore() = default;

  // Queues one transaction. Transactions become durable in the order of the calls, several in one fsync.
  // `done` runs on the store's own thread, in order, without any lock of the store held. After a failure the
  // transactions queued behind it were built on something that does not exist: those of another epoch than
  // the current one fail without being tried. Thread-safe.
  virtual void Submit(uint64_t epoch, StoreTransaction transaction, Done done) = 0;
  // From now on only transactions of `epoch` are tried.
  virtual void SetEpoch(uint64_t epoch) = 0;
  // Writes and removes something of the size of a transaction. Blocks.
  virtual absl::Status Probe() = 0;

  // Reads see what is committed. Thread-safe; they do not wait for writes.
  virtual absl::StatusOr<int64_t> LastRevision() = 0;
  virtual absl::StatusOr<std::vector<JobPtr>> LoadLive() = 0;
  // Records of the last `limit` transitions, oldest first.
  virtual absl::StatusOr<std::vector<JobPtr>> LoadRevisions(int32_t limit) = 0;
  // Null when there is none.
  virtual absl::StatusOr<JobPtr> FindByName(const std::string& name) = 0;
  virtual absl::StatusOr<JobPtr> FindByUid(const std::string& uid) = 0;
  virtual absl::StatusOr<std::vector<JobPtr>> ListJobs(const JobQuery& query) = 0;
  virtual absl::StatusOr<std::optional<RequestRow>> FindRequest(const std::string& scope,
                                                                const std::string& request_id) = 0;
  // Oldest first, after `after_revision`.
  virtual absl::StatusOr<std::vector<EventRow>> ListEvents(const std::string& uid, int64_t after_revision,
                                                           int32_t limit) = 0;
  // Newest first.
  virtual absl::StatusOr<std::vector<std::shared_ptr<const v1::Checkpoint>>> ListCheckpoints(
      const std::string& uid) = 0;

  // "sqlite 3.40.1"
  virtual std::string Describe() const = 0;
};

// How many transitions stay readable for watchers that resume.
inline constexpr int32_t kRevisionsKept = 4096;

}  // namespace strata::server

#endif  // SERVER_STORE_STATE_STORE_H_
