// JobTable: the job state machine. Pure: no clock, no I/O, no randomness; Apply is its only door, and the
// same events give the same table. The caller writes each event down before anybody is told of it.
//
//               Created             Granted              Started
//      (none) --------> QUEUED --------------> STARTING --------------> RUNNING
//                        ^   \ cancel             |  AttemptEnded         | StopRequested, CancelRequested
//                        |    +----> CANCELLED    v                       v
//                        +--------- BACKOFF <-----+------------------- STOPPING
//                       BackoffElapsed                                    | AttemptEnded
//                                                                         v
//                                                SUCCEEDED | FAILED | CANCELLED | BACKOFF
#ifndef SERVER_STATE_JOB_TABLE_H_
#define SERVER_STATE_JOB_TABLE_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/state/job.h"

namespace strata::server {

struct Created {
  Job job;  // identity, spec, labels, plan; the rest is set by Apply
};
// The job gets the resources of `plan` on `worker` under a new attempt number.
struct Granted {
  std::string worker;
  int64_t worker_incarnation = 0;
  Resources grant;
  v1::JobPlan plan;
  std::string worker_identity;
};
struct Started {
  int32_t attempt = 0;
  std::string from;  // for people: from which checkpoint; "": from the first step
};
struct CancelRequested {
  std::string reason;
};
// The attempt is to end: because of a failure, or because training finished and only cleaning up is left.
struct StopRequested {
  int32_t attempt = 0;
  std::optional<v1::Failure> failure;
  std::optional<v1::RunResult> result;
};
// Proof (or the end of lease and grace): nothing of the attempt runs any more. What follows is decided by the
// intent, then by what is pending, then by what this event says.
struct AttemptEnded {
  int32_t attempt = 0;
  std::optional<v1::Failure> failure;
  std::optional<v1::RunResult> result;
};
struct BackoffElapsed {};
struct CheckpointCommitted {
  std::shared_ptr<const v1::Checkpoint> checkpoint;
};

struct Event {
  std::string uid;
  int64_t revision = 0;  // above every revision applied before
  int64_t wall_micros = 0;
  std::string actor;  // for the event log: "user", "worker w1", "coordinator"
  std::variant<Created, Granted, Started, CancelRequested, StopRequested, AttemptEnded, BackoffElapsed,
               CheckpointCommitted>
      what;
  std::optional<Progress> progress;  // the live picture, to be kept with the record
};

class JobTable {
 public:
  // The record after `event`. kFailedPrecondition, and no change, when the state does not allow it (the
  // message says the state and why); kNotFound for an unknown job.
  absl::StatusOr<JobPtr> Apply(const Event& event);

  // Loading, and undoing a write that failed: `job` becomes the record as it is; null removes the job.
  void Put(const std::string& uid, JobPtr job);

  JobPtr Find(const std::string& uid) const;
  JobPtr FindByName(const std::string& name) const;
  const std::map<std::string, JobPtr>& jobs() const { return jobs_; }

  // QUEUED jobs by priority (high first), then age.
  std::vector<JobPtr> Queue() const;
  // Jobs whose attempt is on `worker`.
  std::vector<JobPtr> JobsOn(const std::string& worker) const;
  // Sum of the grants on `worker` (I6).
  Resources Allocated(const std::string& worker) const;

  // Recomputes what is kept incrementally and compares; for tests.
  absl::Status CheckInvariants() const;

 private:
  using QueueKey = std::tuple<int32_t, int64_t, std::string>;  // -priority, sequence, uid
  static QueueKey KeyOf(const Job& job);

  std::map<std::string, JobPtr> jobs_;          // by uid
  std::map<std::string, std::string> by_name_;  // name -> uid
  std::set<QueueKey> queue_;
  std::map<std::string, std::set<std::string>> holders_;  // worker -> uids holding a grant on it
  std::map<std::string, Resources> allocated_;
  int64_t revision_ = 0;
};

// Whether a cancel would change anything.
bool CanCancel(const Job& job);

}  // namespace strata::server

#endif  // SERVER_STATE_JOB_TABLE_H_
