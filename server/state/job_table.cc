#include "server/state/job_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "server/state/failure_policy.h"

namespace strata::server {
namespace {

absl::Status Refuse(const Job& job, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat(job.name, " is ", JobStateName(job.state), " (attempt ", job.attempt, "): ", why));
}

void Enter(Job& job, JobState state, std::string reason, std::string message, int64_t now) {
  if (job.state != state) job.state_micros = now;
  job.state = state;
  job.reason = std::move(reason);
  job.message = std::move(message);
  if (state != JobState::kStopping) {
    job.stop_target = JobState::kNone;
    job.pending_failure.reset();
    job.pending_result.reset();
  }
  if (state != JobState::kBackoff) job.next_attempt_micros = 0;
  if (!HoldsResources(state)) job.grant = {};
  if (IsTerminal(state)) job.end_micros = now;
}

absl::Status CheckHolds(const Job& job, int32_t attempt) {
  if (!HoldsResources(job.state)) return Refuse(job, "no attempt is running");
  if (job.attempt != attempt) return Refuse(job, absl::StrCat("attempt ", attempt, " is stale"));
  return absl::OkStatus();
}

// One overload per event: checks, then changes `job`.
absl::Status Step(Job& job, const Granted& granted, int64_t now) {
  if (job.state != JobState::kQueued) return Refuse(job, "only a queued job can be granted resources");
  ++job.attempt;
  job.worker = granted.worker;
  job.worker_incarnation = granted.worker_incarnation;
  job.worker_identity = granted.worker_identity;
  job.grant = granted.grant;
  job.plan = granted.plan;
  job.avoid_worker.clear();
  job.resume_step = job.checkpoints.empty() ? 0 : job.checkpoints.front()->step();
  job.progress.phase.clear();
  job.progress.tokens_per_second = 0;
  if (job.start_micros == 0) job.start_micros = now;
  Enter(job, JobState::kStarting, "GRANTED", absl::StrCat("attempt ", job.attempt, " on ", job.worker), now);
  return absl::OkStatus();
}

absl::Status Step(Job& job, const Started& started, int64_t now) {
  if (absl::Status status = CheckHolds(job, started.attempt); !status.ok()) return status;
  if (job.state != JobState::kStarting) return Refuse(job, "it has started already");
  Enter(job, JobState::kRunning, "ALL_RANKS_UP", started.from, now);
  return absl::OkStatus();
}

absl::Status Step(Job& job, const CancelRequested& cancel, int64_t now) {
  if (!CanCancel(job)) return Refuse(job, "cancelling changes nothing");
  job.intent = Intent::kCancel;
  if (!HoldsResources(job.state)) {
    Enter(job, JobState::kCancelled, "CANCELLED_BY_USER", cancel.reason, now);
    return absl::OkStatus();
  }
  Enter(job, JobState::kStopping, "CANCELLED_BY_USER", cancel.reason, now);
  job.stop_target = JobState::kCancelled;
  return absl::OkStatus();
}

absl::Status Step(Job& job, const StopRequested& stop, int64_t now) {
  if (absl::Status status = CheckHolds(job, stop.attempt); !status.ok()) return status;
  if (job.state == JobState::kStopping) return Refuse(job, "it is stopping already");
  if (stop.result) {
    Enter(job, JobState::kStopping, "FINISHED", "training finished; releasing resources", now);
    job.stop_target = JobState::kSucceeded;
    job.pending_result = stop.result;
    return absl::OkStatus();
  }
  v1::Failure failure = NormaliseFailure(stop.failure.value_or(v1::Failure()));
  const FailureDecision decision = DecideAfterFailure(job, failure);
  Enter(job, JobState::kStopping, decision.reason, failure.message(), now);
  job.stop_target = decision.next;
  job.pending_failure = std::move(failure);
  return absl::OkStatus();
}

absl::Status Step(Job& job, const AttemptEnded& ended, int64_t now) {
  if (absl::Status status = CheckHolds(job, ended.attempt); !status.ok()) return status;
  const bool finished = job.pending_result || (ended.result && !job.pending_failure);
  if (job.intent == Intent::kCancel) {
    Enter(job, JobState::kCancelled, "CANCELLED_BY_USER", job.message, now);
    return absl::OkStatus();
  }
  if (finished) {
    job.result = job.pending_result ? job.pending_result : ended.result;
    job.progress.step = job.spec.training().steps();
    Enter(job, JobState::kSucceeded, "FINISHED", "", now);
    return absl::OkStatus();
  }
  v1::Failure failure =
      NormaliseFailure(job.pending_failure ? *job.pending_failure : ended.failure.value_or(v1::Failure()));
  failure.set_attempt(job.attempt);
  failure.set_worker(job.worker);
  const FailureDecision decision = DecideAfterFailure(job, failure);
  ++(decision.counted ? job.failures_counted : job.failures_uncounted);
  ++job.failure_streak;
  if (decision.elsewhere) job.avoid_worker = job.worker;
  Enter(job, decision.next, decision.reason, decision.message, now);
  if (decision.next == JobState::kBackoff) job.next_attempt_micros = now + decision.backoff_micros;
  job.last_failure = std::move(failure);
  return absl::OkStatus();
}

absl::Status Step(Job& job, const BackoffElapsed&, int64_t now) {
  if (job.state != JobState::kBackoff) return Refuse(job, "it is not backing off");
  Enter(job, JobState::kQueued, "RETRY", job.message, now);
  return absl::OkStatus();
}

absl::Status Step(Job& job, const CheckpointCommitted& committed, int64_t now) {
  const v1::Checkpoint& checkpoint = *committed.checkpoint;
  if (absl::Status status = CheckHolds(job, checkpoint.attempt()); !status.ok()) return status;
  auto& kept = job.checkpoints;
  // An attempt that commits a step again, or one below another attempt's, did not resume from those: they did
  // not verify. The new one takes their place, so the newest is always the one just committed.
  while (!kept.empty() && kept.front()->step() >= checkpoint.step()) kept.erase(kept.begin());
  kept.insert(kept.begin(), committed.checkpoint);
  const size_t keep = job.spec.checkpoint().keep_last() > 0 ? job.spec.checkpoint().keep_last() : 3;
  if (kept.size() > keep) kept.resize(keep);
  job.failure_streak = 0;
  return absl::OkStatus();
}

absl::Status Step(Job&, const Created&, int64_t) {
  return absl::InternalError("Created is handled by Apply");
}

}  // namespace

bool CanCancel(const Job& job) { return !IsTerminal(job.state) && job.intent != Intent::kCancel; }

JobTable::QueueKey JobTable::KeyOf(const Job& job) {
  return {-job.spec.scheduling().priority(), job.sequence, job.uid};
}

absl::StatusOr<JobPtr> JobTable::Apply(const Event& event) {
  STRATA_CHECK(event.revision > revision_);
  const auto found = jobs_.find(event.uid);
  auto next = std::make_shared<Job>();
  if (const Created* created = std::get_if<Created>(&event.what)) {
    if (found != jobs_.end() || by_name_.count(created->job.name) > 0) {
      return absl::AlreadyExistsError(absl::StrCat(created->job.name, " exists already"));
    }
    *next = created->job;
    next->uid = event.uid;
    next->sequence = event.revision;
    next->create_micros = event.wall_micros;
    Enter(*next, JobState::kQueued, "CREATED", "", event.wall_micros);
  } else {
    if (found == jobs_.end()) return absl::NotFoundError(absl::StrCat("job uid ", event.uid, " is not live"));
    if (IsTerminal(found->second->state)) return Refuse(*found->second, "a terminal state never changes");
    *next = *found->second;
    if (event.progress) next->progress = *event.progress;
    const absl::Status status =
        std::visit([&](const auto& what) { return Step(*next, what, event.wall_micros); }, event.what);
    if (!status.ok()) return status;
  }
  next->revision = event.revision;
  next->update_micros = event.wall_micros;
  Put(event.uid, next);
  return next;
}

void JobTable::Put(const std::string& uid, JobPtr job) {
  if (const auto found = jobs_.find(uid); found != jobs_.end()) {
    const Job& old = *found->second;
    queue_.erase(KeyOf(old));
    by_name_.erase(old.name);
    if (HoldsResources(old.state)) {
      allocated_[old.worker] = allocated_[old.worker] - old.grant;
      holders_[old.worker].erase(uid);
      if (holders_[old.worker].empty()) {
        STRATA_CHECK(allocated_[old.worker] == Resources());
        holders_.erase(old.worker);
        allocated_.erase(old.worker);
      }
    }
    jobs_.erase(found);
  }
  if (job == nullptr) return;
  revision_ = std::max(revision_, job->revision);
  by_name_[job->name] = uid;
  if (job->state == JobState::kQueued) queue_.insert(KeyOf(*job));
  if (HoldsResources(job->state)) {
    holders_[job->worker].insert(uid);
    allocated_[job->worker] = allocated_[job->worker] + job->grant;
  }
  jobs_[uid] = std::move(job);
}

JobPtr JobTable::Find(const std::string& uid) const {
  const auto found = jobs_.find(uid);
  return found == jobs_.end() ? nullptr : found->second;
}

JobPtr JobTable::FindByName(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : Find(found->second);
}

std::vector<JobPtr> JobTable::Queue() const {
  std::vector<JobPtr> queue;
  queue.reserve(queue_.size());
  for (const QueueKey& key : queue_) queue.push_back(jobs_.at(std::get<2>(key)));
  return queue;
}

std::vector<JobPtr> JobTable::JobsOn(const std::string& worker) const {
  std::vector<JobPtr> jobs;
  if (const auto found = holders_.find(worker); found != holders_.end()) {
    for (const std::string& uid : found->second) jobs.push_back(jobs_.at(uid));
  }
  return jobs;
}

Resources JobTable::Allocated(const std::string& worker) const {
  const auto found = allocated_.find(worker);
  return found == allocated_.end() ? Resources() : found->second;
}

absl::Status JobTable::CheckInvariants() const {
  std::map<std::string, Resources> allocated;
  size_t queued = 0;
  for (const auto& [uid, job] : jobs_) {
    if (uid != job->uid) return Refuse(*job, "filed under another uid");
    if (HoldsResources(job->state)) {
      if (job->worker.empty() || job->attempt < 1) return Refuse(*job, "holds resources without an attempt");
      allocated[job->worker] = allocated[job->worker] + job->grant;
    } else if (!(job->grant == Resources())) {
      return Refuse(*job, "has a grant but no attempt");
    }
    if (job->state == JobState::kQueued) {
      ++queued;
      if (queue_.count(KeyOf(*job)) == 0) return Refuse(*job, "is missing from the queue");
    }
    if ((job->state == JobState::kStopping) != (job->stop_target != JobState::kNone)) {
      return Refuse(*job, "stop_target and state disagree");
    }
    if (IsTerminal(job->state) != (job->end_micros != 0)) return Refuse(*job, "end time and state disagree");
    if (job->intent == Intent::kCancel && job->state != JobState::kStopping &&
        job->state != JobState::kCancelled) {
      return Refuse(*job, "was cancelled and goes on");
    }
    if (!IsTerminal(job->state) && job->failures_counted > ToleratedFailures(*job))
      return Refuse(*job, "failed too often to go on");
    for (size_t i = 1; i < job->checkpoints.size(); ++i) {
      if (job->checkpoints[i - 1]->step() <= job->checkpoints[i]->step()) {
        return Refuse(*job, "its checkpoints are out of order");
      }
    }
  }
  if (queued != queue_.size()) return absl::InternalError("the queue holds jobs that are not queued");
  if (by_name_.size() != jobs_.size()) return absl::InternalError("the name index and the table disagree");
  if (!(allocated == allocated_))
    return absl::InternalError("the sum of the grants is not what is allocated");
  return absl::OkStatus();
}

}  // namespace strata::server
