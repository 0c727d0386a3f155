#include "server/state/failure_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace strata::server {
namespace {

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kBackoffMax = 60 * kSecond;
constexpr int kSigKill = 9;

// 1 s, 2 s, 4 s ... 60 s.
int64_t Backoff(int32_t streak) { return std::min(kBackoffMax, kSecond << std::clamp(streak, 0, 6)); }

struct Rule {
  bool counted;
  bool retry;
  bool elsewhere;
  bool quarantine;
  bool bounded;  // by kUncountedStreakMax
};

// Training is deterministic: the same start gives the same numbers, and they would fail again. What is worth
// a try is the newest checkpoint, once: a bit that fell over in memory after it was written is not in it.
bool HelpsAgainstNumbers(const Job& job) {
  const bool tried = job.failure_streak > 0 && job.last_failure && job.last_failure->cause() == v1::NUMERIC;
  return !job.checkpoints.empty() && !tried;
}

Rule RuleFor(const Job& job, const v1::Failure& failure) {
  switch (failure.cause()) {
    case v1::NUMERIC:
      return {.counted = true, .retry = HelpsAgainstNumbers(job)};
    case v1::USER_ERROR:
    case v1::INVALID_DATA:
    // The planner gives the same plan for the same job and machine, and a plan that ran out of memory is
    // never tried again.
    case v1::DEVICE_OOM:
    case v1::PIN_FAILED:
      return {.counted = true, .retry = false};
    // But one that the kernel killed had its memory at first, and others in its control group took it: they
    // may have gone.
    case v1::HOST_OOM:
      return {.counted = true, .retry = failure.signal() == kSigKill, .elsewhere = true};
    case v1::STALLED:
    case v1::START_TIMEOUT:
      return {.counted = true, .retry = true, .elsewhere = true};
    case v1::NVME_FULL:
      return {.counted = false, .retry = true, .elsewhere = true, .bounded = true};
    case v1::NVME_IO_ERROR:
    case v1::DEVICE_FAULT:
      return {.counted = false, .retry = true, .elsewhere = true, .quarantine = true};
    case v1::WORKER_LOST:
    case v1::LEASE_EXPIRED:
    case v1::PREEMPTED:
    case v1::DRAINED:
    case v1::COORDINATOR_ERROR:
      return {.counted = false, .retry = true};
    // The trainer falls back from checkpoint to checkpoint by itself; it says this when none is left.
    case v1::CHECKPOINT_CORRUPT:
    case v1::RUN_TIME_EXCEEDED:
    case v1::QUEUE_TIME_EXCEEDED:
      return {.counted = false, .retry = false};
    case v1::TRAINER_CRASHED:
      // SIGKILL comes from outside (an operator, a kernel that does not count what it kills for memory), any
      // other end from the job.
      if (failure.signal() == kSigKill) return {.counted = false, .retry = true, .bounded = true};
      return {.counted = true, .retry = true};
    default:
      return {.counted = true, .retry = true};
  }
}

}  // namespace

bool SuspectsWorker(v1::FailureCause cause) {
  return cause == v1::NVME_IO_ERROR || cause == v1::DEVICE_FAULT;
}

int32_t ToleratedFailures(const Job& job) {
  return job.spec.scheduling().has_max_failures() ? std::max(0, job.spec.scheduling().max_failures()) : 3;
}

v1::Failure NormaliseFailure(v1::Failure failure) {
  if (failure.cause() != v1::FAILURE_CAUSE_UNSPECIFIED && v1::FailureCause_IsValid(failure.cause()))
    return failure;
  failure.set_cause(v1::TRAINER_CRASHED);
  if (failure.message().empty()) {
    failure.set_message(failure.signal() != 0
                            ? absl::StrCat("the trainer was ended by signal ", failure.signal())
                            : absl::StrCat("the trainer ended with exit code ", failure.exit_code(),
                                           " without finishing and without a reason; see its log"));
  }
  return failure;
}

FailureDecision DecideAfterFailure(const Job& job, const v1::Failure& failure) {
  const Rule rule = RuleFor(job, failure);
  const std::string cause = v1::FailureCause_Name(failure.cause());
  FailureDecision decision;
  decision.counted = rule.counted;
  decision.elsewhere = rule.elsewhere;
  decision.quarantine_worker = rule.quarantine;
  decision.reason = cause;
  const int32_t counted = job.failures_counted + (rule.counted ? 1 : 0);
  const int32_t tolerated = ToleratedFailures(job);
  const int32_t streak = job.failure_streak + 1;
  const std::string what = absl::StrCat("attempt ", job.attempt, ": ", cause,
                                        failure.message().empty() ? "" : ": ", failure.message());
  if (!rule.retry) {
    decision.message = absl::StrCat(what, " (not retried: another attempt would end the same way)");
    return decision;
  }
  if (rule.counted && counted > tolerated) {
    decision.message = absl::StrCat(what, " (failure ", counted,
                                    " of the job's own; scheduling.max_failures is ", tolerated, ")");
    return decision;
  }
  if (rule.bounded && streak > kUncountedStreakMax) {
    decision.message = absl::StrCat(what, " (", streak, " failures in a row without a new checkpoint)");
    return decision;
  }
  decision.next = JobState::kBackoff;
  decision.backoff_micros = Backoff(job.failure_streak);
  decision.message = absl::StrCat(what, "; next attempt in ", decision.backoff_micros / kSecond, " s");
  return decision;
}

}  // namespace strata::server
