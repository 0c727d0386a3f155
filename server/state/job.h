// Job: everything the coordinator knows about one training job, as a plain value. Records are immutable once
// they are in the table (shared_ptr<const Job>), so a reader keeps a consistent picture without a lock and a
// failed write is undone by putting the previous record back.
#ifndef SERVER_STATE_JOB_H_
#define SERVER_STATE_JOB_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/strata/v1/checkpoints.pb.h"
#include "proto/strata/v1/fleet.pb.h"
#include "proto/strata/v1/jobs.pb.h"
#include "proto/strata/v1/plan.pb.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata::server {

// The numbers are those of v1::Job::State and of the store.
enum class JobState : int {
  kNone = 0,
  kQueued = 1,
  kStarting = 2,
  kRunning = 3,
  kStopping = 4,
  kPaused = 5,
  kBackoff = 6,
  kSucceeded = 7,
  kFailed = 8,
  kCancelled = 9,
};
const char* JobStateName(JobState state);
// kNone for a name that is no state's.
JobState JobStateFromName(const std::string& name);

inline bool IsTerminal(JobState state) {
  return state == JobState::kSucceeded || state == JobState::kFailed || state == JobState::kCancelled;
}
// The states in which an attempt exists and its grant counts against the worker.
inline bool HoldsResources(JobState state) {
  return state == JobState::kStarting || state == JobState::kRunning || state == JobState::kStopping;
}

// What the user wants; only ever grows (I5).
enum class Intent : int { kRun = 0, kPause = 1, kCancel = 2 };

struct Resources {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t nvme_bytes = 0;

  bool operator==(const Resources&) const = default;
  bool FitsIn(const Resources& room) const {
    return device_bytes <= room.device_bytes && host_bytes <= room.host_bytes &&
           nvme_bytes <= room.nvme_bytes;
  }
};
// Both sides are at most 2^61, which Register and the grant check, so neither can overflow.
Resources operator+(const Resources& a, const Resources& b);
Resources operator-(const Resources& a, const Resources& b);

// The live picture of the running attempt. Changes with every report and is not a transition: it is written
// to the store only along with one.
struct Progress {
  int64_t step = 0;
  double loss = 0;
  double tokens_per_second = 0;
  int64_t nvme_written_bytes = 0;  // by all attempts
  int64_t last_step_micros = 0;    // wall clock at receipt; 0: no step yet
  std::string phase;
  std::vector<v1::Rung> ladder;
};

struct Job {
  std::string uid;       // never reused
  std::string name;      // projects/{p}/jobs/{j}
  int64_t sequence = 0;  // the revision that created it: age, and the order of lists
  int64_t revision = 0;  // of the last transition
  v1::JobSpec spec;      // with its defaults
  std::map<std::string, std::string> labels;
  std::string creator;

  int64_t create_micros = 0;  // wall clock, microseconds since 1970, as all *_micros here
  int64_t update_micros = 0;
  int64_t state_micros = 0;
  int64_t start_micros = 0;  // of the first grant; 0: never
  int64_t end_micros = 0;    // 0: not terminal
  int64_t next_attempt_micros = 0;

  JobState state = JobState::kNone;
  JobState stop_target = JobState::kNone;  // in kStopping: the state it is expected to end in
  Intent intent = Intent::kRun;
  std::string reason;
  std::string message;

  int32_t attempt = 0;  // fencing number of the current or last attempt
  std::string worker;   // of the current or last attempt
  int64_t worker_incarnation = 0;
  std::string worker_identity;  // of the agent; "" in records of older coordinators
  Resources grant;              // zero unless HoldsResources(state)
  int64_t resume_step = 0;      // newest checkpoint when the current attempt was granted
  std::string avoid_worker;     // where the last attempt failed for reasons of the machine; "" for none
  std::optional<v1::JobPlan> plan;

  int32_t failures_counted = 0;
  int32_t failures_uncounted = 0;
  int32_t failure_streak = 0;  // failures since a checkpoint was last committed: sets the backoff

  std::optional<v1::Failure> pending_failure;   // in kStopping: why; decides what follows
  std::optional<v1::RunResult> pending_result;  // in kStopping: training finished, cleaning up
  std::optional<v1::Failure> last_failure;
  std::optional<v1::RunResult> result;
  Progress progress;  // as of the last transition

  // Committed and kept, newest first. Not part of the stored record: they have a table of their own.
  std::vector<std::shared_ptr<const v1::Checkpoint>> checkpoints;
};
using JobPtr = std::shared_ptr<const Job>;

// "projects/p/jobs/j" -> "projects/p"; the name is well-formed.
std::string ParentOf(const std::string& job_name);

}  // namespace strata::server

#endif  // SERVER_STATE_JOB_H_
