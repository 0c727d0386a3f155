// What follows a failed attempt, by its cause (the table of the service contract).
#ifndef SERVER_STATE_FAILURE_POLICY_H_
#define SERVER_STATE_FAILURE_POLICY_H_

#include <cstdint>
#include <string>

#include "server/state/job.h"

namespace strata::server {

// Uncounted failures of causes that could also be the job's own doing (killed by SIGKILL, disk full) without
// a checkpoint in between, before the job fails all the same: it would not get anywhere.
inline constexpr int32_t kUncountedStreakMax = 20;

struct FailureDecision {
  JobState next = JobState::kFailed;  // kBackoff or kFailed
  bool counted = false;
  int64_t backoff_micros = 0;
  bool elsewhere = false;          // prefer another worker
  bool quarantine_worker = false;  // its hardware is suspect
  std::string reason;              // UPPER_SNAKE
  std::string message;
};

// Pure. `failure` has its cause normalised by NormaliseFailure. max_failures is the number of counted
// failures that are tolerated: the one after them fails the job.
FailureDecision DecideAfterFailure(const Job& job, const v1::Failure& failure);

// scheduling.max_failures, 3 where it is absent; never below 0.
int32_t ToleratedFailures(const Job& job);

// A trainer that ended without saying why becomes TRAINER_CRASHED with the numbers in the message.
v1::Failure NormaliseFailure(v1::Failure failure);

// Whether the failure says that the machine, not the job, should be looked at (NVMe or device faults).
bool SuspectsWorker(v1::FailureCause cause);

}  // namespace strata::server

#endif  // SERVER_STATE_FAILURE_POLICY_H_
