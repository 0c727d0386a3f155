// The worker plane of the coordinator.
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "proto/duration/duration.h"
#include "server/service/coordinator.h"
#include "server/service/names.h"
#include "server/state/worker_claim.h"
#include "server/store/job_codec.h"

namespace strata::server {
namespace {

using strata::FromProto;  // beside this namespace's own
using strata::ToProto;

constexpr int32_t kProtocolMin = 1;
constexpr int32_t kProtocolMax = 1;
constexpr int kReportsMax = 1000;
constexpr int kVolumesMax = 64;
constexpr int kRungsMax = 16;
constexpr int kFilesMax = 4096;
constexpr size_t kWorkersMax = 1000;
constexpr size_t kPathMax = 4000;
constexpr size_t kLogTailMax = 16 << 10;
constexpr size_t kMessageMax = 2000;
constexpr size_t kSourceMax = 400;  // what CheckMachine (proto/machine) allows
constexpr int kResumeMax = 3;
constexpr std::chrono::milliseconds kHoldMax{10'000};
// While tasks run a worker is answered at least this often: it may have something new to say.
constexpr std::chrono::milliseconds kBusyHoldMax{1000};
constexpr std::chrono::milliseconds kUnseenHoldMax{300};
constexpr auto kWriteWait = std::chrono::seconds(1);
constexpr int kMetricsOfRowMax = 256;

using Reports = google::protobuf::RepeatedPtrField<v1::TaskReport>;

bool IsWorkerId(absl::string_view id) {
  if (id.empty() || id.size() > 100) return false;
  return std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

absl::Status CheckCapacity(const v1::Capacity& capacity) {
  bool ok = capacity.device_bytes() >= 0 && capacity.host_bytes() >= 0 && capacity.cpus() >= 0 &&
            capacity.nvme_size() <= kVolumesMax && capacity.labels_size() <= 64 &&
            capacity.ladder_size() <= kRungsMax;
  for (const v1::NvmeVolume& volume : capacity.nvme())
    ok = ok && volume.bytes() >= 0 && volume.free_bytes() >= 0;
  for (const auto& [name, value] : capacity.labels())
    ok = ok && name.size() <= kSourceMax && value.size() <= kSourceMax;
  if (ok) return absl::OkStatus();
  return InvalidField(
      "capacity", absl::StrCat("bytes and cpus must not be negative, at most ", kVolumesMax,
                               " volumes, 64 labels of ", kSourceMax, " bytes and ", kRungsMax, " rungs"));
}

using Rungs = google::protobuf::RepeatedPtrField<v1::Rung>;

std::vector<v1::Rung> LadderOf(const Rungs& reported) {
  std::vector<v1::Rung> ladder;
  for (int i = 0; i < std::min(reported.size(), kRungsMax); ++i) {
    v1::Rung& rung = ladder.emplace_back();
    rung.set_rung(TruncateUtf8(reported[i].rung(), 50));
    rung.set_chosen(TruncateUtf8(reported[i].chosen(), 100));
    rung.set_why(TruncateUtf8(reported[i].why(), 500));
  }
  return ladder;
}

// Texts of a worker are kept and shown: no longer than a line.
v1::Capacity Bounded(v1::Capacity capacity) {
  if (capacity.has_machine())
    capacity.mutable_machine()->set_source(TruncateUtf8(capacity.machine().source(), kSourceMax));
  for (v1::NvmeVolume& volume : *capacity.mutable_nvme()) {
    volume.set_path(TruncateUtf8(volume.path(), kPathMax));
    volume.set_fs_type(TruncateUtf8(volume.fs_type(), 100));
  }
  const std::vector<v1::Rung> ladder = LadderOf(capacity.ladder());
  capacity.mutable_ladder()->Assign(ladder.begin(), ladder.end());
  return capacity;
}

std::string RefOf(const std::string& uid, int32_t attempt) { return absl::StrCat(uid, "/", attempt); }

bool IsGone(const v1::TaskReport& report) {
  return report.phase() == "STOPPED" && report.processes_gone() && report.scratch_removed();
}

v1::Failure CleanFailure(v1::Failure failure) {
  failure.set_message(TruncateUtf8(failure.message(), kMessageMax));
  failure.set_log_tail(TruncateUtf8(failure.log_tail(), kLogTailMax));
  failure.set_worker(TruncateUtf8(failure.worker(), 100));
  return failure;
}

v1::RunResult CleanResult(v1::RunResult result) {
  result.set_trace_path(TruncateUtf8(result.trace_path(), kPathMax));
  result.set_checkpoint_path(TruncateUtf8(result.checkpoint_path(), kPathMax));
  return result;
}

// A relative path without "..", "." or empty parts.
bool IsPlainRelative(absl::string_view path) {
  if (path.empty() || path.size() > kPathMax || path.find('\0') != absl::string_view::npos) return false;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

// What the planner was given, by tier: with it the trainer's planner makes the same plan.
v1::ResourceRequest BudgetOf(const v1::JobPlan& plan) {
  v1::ResourceRequest budget;
  for (const v1::TierRow& row : plan.tiers()) {
    if (row.tier() == "device") budget.set_device_bytes(row.budget_bytes());
    if (row.tier() == "host") budget.set_host_bytes(row.budget_bytes());
    if (row.tier() == "nvme") budget.set_nvme_bytes(row.budget_bytes());
  }
  if (plan.has_machine()) *budget.mutable_machine() = plan.machine();
  return budget;
}

std::string WithoutTrailingSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

absl::StatusOr<v1::RegisterResponse> Coordinator::Register(const v1::RegisterRequest& request,
                                                           const CallContext& call) {
  if (!IsWorkerId(request.worker_id())) {
    return InvalidField("worker_id", "must be of [A-Za-z0-9._-], 1 to 100 characters");
  }
  if (!request.identity().empty() && !IsWorkerId(request.identity()))
    return InvalidField("identity", "must be of [A-Za-z0-9._-], at most 100 characters");
  STRATA_RETURN_IF_ERROR(CheckCapacity(request.capacity()));
  if (request.running_size() > kReportsMax)
    return InvalidField("running", absl::StrCat("at most ", kReportsMax));
  const int32_t protocol = request.protocol_version() == 0 ? 1 : request.protocol_version();
  if (protocol < kProtocolMin || protocol > kProtocolMax) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "PROTOCOL_MISMATCH",
        absl::StrCat("worker ", request.worker_id(), " speaks protocol ", protocol, ", this coordinator ",
                     kProtocolMin, " to ", kProtocolMax, ": install the same version of both"));
  }
  const std::string root = WithoutTrailingSlash(request.checkpoint_root());
  if (!options_.checkpoint_root.empty() && !root.empty() && root != options_.checkpoint_root) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_ROOT_MISMATCH",
                     absl::StrCat("worker ", request.worker_id(), " keeps checkpoints in ",
                                  TruncateUtf8(root, 500), ", the coordinator reads them from ",
                                  options_.checkpoint_root, ": start both with the same --checkpoint-root"));
  }
  MutexLock lock(mu_);
  if (draining_) return ServerDraining();
  STRATA_RETURN_IF_ERROR(CheckClaim(request));
  if (workers_.count(request.worker_id()) == 0 && workers_.size() >= kWorkersMax) {
    return MakeError(absl::StatusCode::kResourceExhausted, "QUOTA_EXCEEDED",
                     absl::StrCat("there are ", kWorkersMax, " workers already"));
  }
  Worker& worker = workers_[request.worker_id()];
  // A restart of the agent is what repairs a worker that was quarantined for a hardware fault.
  if (request.incarnation() != worker.incarnation || request.identity() != worker.identity)
    worker.suspect = worker.draining = false;
  worker.id = request.worker_id();
  worker.identity = request.identity();
  worker.incarnation = request.incarnation();
  worker.capacity = Bounded(request.capacity());
  worker.total = TotalOf(request.capacity());
  worker.version = TruncateUtf8(request.version(), 100);
  worker.protocol_version = protocol;
  worker.checkpoint_root = root;
  worker.last_sync_nanos = clock_.MonotonicNanos();
  sessions_[worker.id] = {};
  schedule_needed_ = true;
  EndUnreported(worker, request.incarnation(), request.running());
  ApplyReports(worker, request.running());
  RunSchedule();
  // Durability is the business of those who are told of the changes: Sync tells nothing that is not durable.
  v1::RegisterResponse response;
  response.set_worker(worker.id);
  *response.mutable_lease_ttl() = ToProto(options_.lease_ttl);
  *response.mutable_orphan_timeout() = ToProto(options_.orphan_timeout);
  response.set_coordinator_instance(instance_id_);
  ++live_generation_;
  changed_.SignalAll();
  return response;
}

absl::Status Coordinator::CheckClaim(const v1::RegisterRequest& request) {
  ExpireLeases();  // so that an id is free as soon as its lease is over, and the attempts under it have ended
  const auto found = workers_.find(request.worker_id());
  if (found == workers_.end()) return absl::OkStatus();
  const Worker& holder = found->second;
  switch (JudgeClaim(holder, !table_.JobsOn(holder.id).empty(), request.identity(), request.incarnation())) {
    case Claim::kGranted:
      break;
    case Claim::kSuperseded:
      return MakeError(absl::StatusCode::kFailedPrecondition, "STALE_INCARNATION",
                       absl::StrCat("a newer agent has registered as worker ", holder.id,
                                    ": two agents must not share a worker id, give one of them another "
                                    "--worker-id and --state-dir"),
                       {{"incarnation", absl::StrCat(holder.incarnation)}});
    case Claim::kHeld: {
      const absl::Duration left = LeaseLeft(holder);
      return WithRetry(
          MakeError(
              absl::StatusCode::kAlreadyExists, "WORKER_ID_IN_USE",
              absl::StrCat("worker id ", holder.id, " is another agent's, whose lease lasts for ",
                           absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                           " more, and longer when it renews it: give this strata_worker another "
                           "--worker-id; if it stands in for that agent (whose --state-dir was lost, or "
                           "copied to this machine), it gets the id when the lease is over"),
              {{"worker", holder.id}}),
          left);
    }
  }
  return absl::OkStatus();
}

void Coordinator::EndUnreported(const Worker& worker, int64_t incarnation, const Reports& reports) {
  std::set<std::string> reported;
  for (const v1::TaskReport& report : reports) reported.insert(RefOf(report.job_uid(), report.attempt()));
  for (const JobPtr& job : table_.JobsOn(worker.id)) {
    const std::string ref = RefOf(job->uid, job->attempt);
    if (reported.count(ref) > 0) continue;
    const bool same_agent = MayBeSameAgent(job->worker_identity, worker.identity);
    if (!same_agent || job->worker_incarnation != incarnation) {
      // The agent that was granted the attempt has ended, and its successor found nothing of it; or its lease
      // was over before another one took its place.
      v1::Failure failure;
      failure.set_cause(v1::WORKER_LOST);
      failure.set_message(
          absl::StrCat("the agent of worker ", worker.id, same_agent ? " was restarted" : " was replaced"));
      EndAttempt(job, {job->attempt, failure, std::nullopt}, absl::StrCat("worker ", worker.id));
      continue;
    }
    // A worker has one Sync at a time and reports all it runs: when it was told to stop an attempt and then
    // does not mention it, it never ran it or has cleaned up after it.
    const auto want = sessions_[worker.id].wants.find(ref);
    if (job->state == JobState::kStopping && want != sessions_[worker.id].wants.end() &&
        want->second != v1::DesiredTask::RUN) {
      EndAttempt(job, {job->attempt, std::nullopt, std::nullopt}, absl::StrCat("worker ", worker.id));
    }
  }
}

void Coordinator::ApplyReports(Worker& worker, const Reports& reports) {
  worker.leftovers.clear();
  for (const v1::TaskReport& report : reports) {
    const JobPtr job = table_.Find(report.job_uid());
    if (job != nullptr && HoldsResources(job->state) && job->attempt == report.attempt() &&
        job->worker == worker.id) {
      ApplyReport(worker, job, report);
    } else if (!IsGone(report)) {
      worker.leftovers.insert(TruncateUtf8(RefOf(report.job_uid(), report.attempt()), 100));
    }
  }
  const WorkerState before = worker.state;
  if (worker.suspect) {
    worker.state = WorkerState::kQuarantined;
  } else if (!worker.leftovers.empty()) {
    worker.state = WorkerState::kQuarantined;
    worker.reason = absl::StrCat("is still stopping ", worker.leftovers.size(),
                                 " attempt(s) that are no longer its own, as ", *worker.leftovers.begin());
  } else {
    worker.state = WorkerState::kReady;
    worker.reason.clear();
  }
  if (worker.state != before) schedule_needed_ = true;
}

void Coordinator::ApplyReport(Worker& worker, const JobPtr& job, const v1::TaskReport& report) {
  const std::string actor = absl::StrCat("worker ", worker.id);
  Live& live = live_[job->uid];
  Progress& progress = live.progress;
  const int64_t step = std::clamp<int64_t>(report.step(), 0, job->spec.training().steps());
  const std::string phase = TruncateUtf8(report.phase(), 32);
  if (step != progress.step || phase != progress.phase) ++live_generation_;
  if (step != progress.step) {
    live.step_nanos = clock_.MonotonicNanos();
    progress.last_step_micros = absl::ToUnixMicros(clock_.WallNow());
  }
  progress.step = step;
  progress.phase = phase;
  if (std::isfinite(report.loss())) progress.loss = report.loss();
  if (std::isfinite(report.tokens_per_second()) && report.tokens_per_second() >= 0) {
    progress.tokens_per_second = report.tokens_per_second();
  }
  if (report.ladder_size() > 0) progress.ladder = LadderOf(report.ladder());
  // Counts over attempts, so it only grows: an agent that starts again knows nothing of what it counted
  // before.
  progress.nvme_written_bytes = std::max(progress.nvme_written_bytes, report.nvme_written_bytes());

  if (report.processes_gone() && live.stopped_nanos == 0) live.stopped_nanos = clock_.MonotonicNanos();
  // Transact's errors are handled by repetition: the worker reports until it is told to forget.
  if (phase == "STOPPED") {
    std::optional<v1::Failure> failure;
    std::optional<v1::RunResult> result;
    if (report.finished()) {
      result = CleanResult(report.result());
    } else if (report.has_failure()) {
      failure = CleanFailure(report.failure());
    }
    if (IsGone(report)) {
      EndAttempt(job, {job->attempt, failure, result}, actor);
    } else if (job->state != JobState::kStopping) {
      (void)Transact(job->uid, actor, StopRequested{job->attempt, failure, result});
    } else if (report.processes_gone() && clock_.MonotonicNanos() - live.stopped_nanos >
                                              absl::ToInt64Nanoseconds(options_.stop_timeout)) {
      // The worker cannot clean up. The job goes on without it; the worker gets nothing until its agent has
      // been started anew, which sweeps what is left.
      worker.suspect = true;
      worker.reason = absl::StrCat("cannot remove the scratch of attempt ", job->attempt, " of ", job->name,
                                   "; look at its NVMe folder, then restart its strata_worker");
      EndAttempt(job, {job->attempt, failure, result}, actor);
    }
  } else if (job->state == JobState::kStarting && (phase == "STEPPING" || phase == "CHECKPOINTING")) {
    (void)Transact(job->uid, actor, Started{job->attempt, TruncateUtf8(report.started_from(), kMessageMax)});
  }
}

v1::SyncResponse Coordinator::Desired(const Worker& worker, const v1::SyncRequest& request,
                                      std::string* digest) {
  // What is durable: a change that a crash could take back is not told.
  std::map<std::string, JobPtr> jobs;
  for (const JobPtr& job : table_.JobsOn(worker.id)) jobs[job->uid] = job;
  for (auto pending = pending_.rbegin(); pending != pending_.rend(); ++pending) {
    const JobPtr& before = pending->before;
    if (before != nullptr && HoldsResources(before->state) && before->worker == worker.id) {
      jobs[pending->uid] = before;
    } else {
      jobs.erase(pending->uid);
    }
  }
  std::set<std::string> reported;
  for (const v1::TaskReport& report : request.tasks())
    reported.insert(RefOf(report.job_uid(), report.attempt()));

  v1::SyncResponse response;
  *response.mutable_lease_ttl() = ToProto(options_.lease_ttl);
  digest->clear();
  const int64_t now = clock_.MonotonicNanos();
  for (const auto& [uid, job] : jobs) {
    // The agent that had the id before may still run it: a store that fails keeps its end from being written.
    if (!MayBeSameAgent(job->worker_identity, worker.identity)) continue;
    v1::DesiredTask& task = *response.add_desired();
    task.set_job_uid(uid);
    task.set_job_name(job->name);
    task.set_attempt(job->attempt);
    task.set_rank(0);
    task.set_want(v1::DesiredTask::RUN);
    if (job->state == JobState::kStopping) {
      const auto live = live_.find(uid);
      const bool late = live != live_.end() &&
                        now - live->second.state_nanos > absl::ToInt64Nanoseconds(options_.stop_timeout);
      task.set_want(late ? v1::DesiredTask::KILL : v1::DesiredTask::STOP);
    }
    *task.mutable_spec() = job->spec;
    *task.mutable_grant() = ToProto(job->grant);
    if (job->plan) *task.mutable_budget() = BudgetOf(*job->plan);
    task.set_nvme_written_bytes(job->progress.nvme_written_bytes);
    // An agent that reports the task may still wait to start it, with what the last answer says.
    if (job->state == JobState::kStarting || reported.count(RefOf(uid, job->attempt)) == 0) {
      for (int i = 0; i < std::min<int>(kResumeMax, job->checkpoints.size()); ++i) {
        *task.add_resume() = *job->checkpoints[i];
      }
    }
    absl::StrAppend(digest, RefOf(uid, job->attempt), "=", task.want(), ";");
  }
  for (const v1::TaskReport& report : request.tasks()) {
    if (!IsGone(report)) continue;
    const auto job = jobs.find(report.job_uid());
    if (job != jobs.end() && job->second->attempt == report.attempt()) continue;
    v1::TaskRef& ref = *response.add_forget();
    ref.set_job_uid(report.job_uid());
    ref.set_attempt(report.attempt());
  }
  return response;
}

absl::StatusOr<v1::SyncResponse> Coordinator::Sync(const v1::SyncRequest& request, const CallContext& call) {
  if (request.tasks_size() > kReportsMax) return InvalidField("tasks", absl::StrCat("at most ", kReportsMax));
  if (request.has_capacity()) STRATA_RETURN_IF_ERROR(CheckCapacity(request.capacity()));
  const auto arrived = std::chrono::steady_clock::now();
  MutexLock lock(mu_);
  const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> Worker* {
    const auto found = workers_.find(request.worker());
    if (found == workers_.end() || found->second.incarnation != request.incarnation() ||
        found->second.identity != request.identity()) {
      return nullptr;
    }
    const WorkerState state = found->second.state;
    return state == WorkerState::kReady || state == WorkerState::kQuarantined ? &found->second : nullptr;
  };
  v1::SyncResponse unknown;
  unknown.set_unknown_worker(true);
  *unknown.mutable_lease_ttl() = ToProto(options_.lease_ttl);
  *unknown.mutable_next_sync() = ToProto(absl::Milliseconds(200));
  Worker* worker = known();
  if (worker == nullptr) return unknown;

  worker->last_sync_nanos = clock_.MonotonicNanos();
  worker->draining = request.draining();
  if (request.has_capacity()) {
    // Free bytes change all the time: the scheduler looks at them whenever it runs, and it runs every second.
    worker->capacity = Bounded(request.capacity());
    const Resources total = TotalOf(request.capacity());
    if (!(total == worker->total)) schedule_needed_ = true;
    worker->total = total;
  }
  EndUnreported(*worker, request.incarnation(), request.tasks());
  ApplyReports(*worker, request.tasks());
  if (schedule_needed_) RunSchedule();
  changed_.SignalAll();

  // Usually the store answers within a few milliseconds and the result can be told at once. A hanging disk
  // must not cost the worker its lease, so the wait is short.
  CallContext write_call = call;
  write_call.deadline = std::min(call.deadline, arrived + kWriteWait);
  (void)WaitDurable(revision_, epoch_, write_call);

  const auto lease = std::chrono::nanoseconds(absl::ToInt64Nanoseconds(options_.lease_ttl));
  const auto asked = absl::ToChronoNanoseconds(std::max(FromProto(request.max_wait()), absl::ZeroDuration()));
  const auto hold = std::min<std::chrono::nanoseconds>(asked, lease / 3);
  while (true) {
    worker = known();
    if (worker == nullptr) return unknown;
    std::string digest;
    v1::SyncResponse response = Desired(*worker, request, &digest);
    Session& session = sessions_[worker->id];
    const auto waited = std::chrono::steady_clock::now() - arrived;
    // An answer may be lost on its way (the worker cancels a held Sync when it has news): what it was told
    // and does not mention is soon told again.
    const bool unseen =
        std::any_of(response.desired().begin(), response.desired().end(), [&](const v1::DesiredTask& task) {
          return std::none_of(
              request.tasks().begin(), request.tasks().end(), [&](const v1::TaskReport& report) {
                return report.job_uid() == task.job_uid() && report.attempt() == task.attempt();
              });
        });
    const auto hold_max = unseen ? kUnseenHoldMax : response.desired_size() > 0 ? kBusyHoldMax : kHoldMax;
    const auto limit = std::min<std::chrono::nanoseconds>(hold, hold_max);
    const bool news = digest != session.told || response.forget_size() > 0;
    if (call.cancelled()) return absl::CancelledError("the worker has withdrawn its Sync");
    if (news || waited >= limit || draining_) {
      session.told = digest;
      session.wants.clear();
      for (const v1::DesiredTask& task : response.desired()) {
        session.wants[RefOf(task.job_uid(), task.attempt())] = task.want();
      }
      // After a held call the next one may follow at once; a worker that does not wait is paced.
      const absl::Duration pace = std::min(options_.lease_ttl / 5, absl::Seconds(1));
      *response.mutable_next_sync() = ToProto(hold.count() > 0 ? absl::Milliseconds(50) : pace);
      return response;
    }
    changed_.WaitFor(mu_, std::min<std::chrono::nanoseconds>(limit - waited, std::chrono::milliseconds(250)));
  }
}

// --- checkpoints ---

absl::Status Coordinator::CheckCheckpoint(const v1::CommitCheckpointRequest& request, const Job& job) {
  if (request.step() < 0 || request.step() > job.spec.training().steps()) {
    return InvalidField("step", absl::StrCat("must be 0 to ", job.spec.training().steps()));
  }
  if (request.digest().empty() || request.digest().size() > 128)
    return InvalidField("digest", "must be given, in hex");
  if (request.bytes() < 0) return InvalidField("bytes", "must not be negative");
  if (request.files_size() < 1 || request.files_size() > kFilesMax) {
    return InvalidField("files", absl::StrCat("must be 1 to ", kFilesMax));
  }
  std::set<std::string> paths;
  for (const v1::CheckpointFile& file : request.files()) {
    if (!IsPlainRelative(file.path()) || file.bytes() < 0 || !paths.insert(file.path()).second) {
      return InvalidField("files",
                          "each needs a relative path of its own, without '.' or '..', and its size");
    }
  }
  std::string root = options_.checkpoint_root;
  if (root.empty()) {
    if (const auto worker = workers_.find(job.worker); worker != workers_.end())
      root = worker->second.checkpoint_root;
  }
  const std::string prefix = absl::StrCat(root == "/" ? "" : root, "/");
  if (root.empty() || !absl::StartsWith(request.path(), prefix) ||
      !IsPlainRelative(absl::string_view(request.path()).substr(prefix.size()))) {
    return InvalidField("path", absl::StrCat("must be a folder below the checkpoint root ",
                                             root.empty() ? "(none was registered)" : root));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Checkpoint> Coordinator::CommitCheckpoint(const v1::CommitCheckpointRequest& request,
                                                             const CallContext& call) {
  MutexLock lock(mu_);
  if (draining_) return ServerDraining();
  STRATA_ASSIGN_OR_RETURN(JobPtr job, FindRecord(request.job_uid()));
  if (job == nullptr) return NotFound("job uid", request.job_uid());
  const auto same_step = std::find_if(job->checkpoints.begin(), job->checkpoints.end(),
                                      [&](const auto& kept) { return kept->step() == request.step(); });
  if (same_step != job->checkpoints.end() && (*same_step)->attempt() == request.attempt() &&
      (*same_step)->digest() == request.digest()) {
    const v1::Checkpoint replay = **same_step;
    STRATA_RETURN_IF_ERROR(WaitDurable(job->revision, epoch_, call));
    return replay;
  }
  if (!HoldsResources(job->state) || request.attempt() != job->attempt) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "STALE_ATTEMPT",
        absl::StrCat("attempt ", request.attempt(), " of ", job->name, " is not running (the job is ",
                     JobStateName(job->state), ", attempt ", job->attempt, "): stop without committing"),
        {{"attempt", absl::StrCat(job->attempt)}, {"job", job->name}});
  }
  STRATA_RETURN_IF_ERROR(CheckCheckpoint(request, *job));
  if (same_step != job->checkpoints.end() && (*same_step)->attempt() == request.attempt()) {
    return MakeError(absl::StatusCode::kAlreadyExists, "CHECKPOINT_EXISTS",
                     absl::StrCat("this attempt has committed step ", request.step(), " with digest ",
                                  (*same_step)->digest()));
  }
  if (!job->checkpoints.empty() && job->checkpoints.front()->attempt() == request.attempt() &&
      job->checkpoints.front()->step() > request.step()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_OUT_OF_ORDER",
                     absl::StrCat("this attempt has committed step ", job->checkpoints.front()->step(),
                                  " already; steps only grow"));
  }
  auto checkpoint = std::make_shared<v1::Checkpoint>();
  checkpoint->set_name(MakeCheckpointName(job->name, request.step()));
  checkpoint->set_step(request.step());
  checkpoint->set_attempt(request.attempt());
  checkpoint->set_bytes(request.bytes());
  checkpoint->set_digest(request.digest());
  *checkpoint->mutable_create_time() = MicrosToProto(absl::ToUnixMicros(clock_.WallNow()));
  checkpoint->set_path(request.path());
  *checkpoint->mutable_files() = request.files();
  STRATA_ASSIGN_OR_RETURN(
      job, Transact(job->uid, absl::StrCat("worker ", job->worker), CheckpointCommitted{checkpoint}));
  STRATA_RETURN_IF_ERROR(WaitDurable(job->revision, epoch_, call));
  return *checkpoint;
}

// --- telemetry ---

absl::Status Coordinator::PushTelemetry(const v1::TelemetryBatch& batch) {
  std::map<std::string, JobPtr> jobs;
  const auto find = [&](const std::string& uid) -> absl::StatusOr<JobPtr> {
    if (const auto found = jobs.find(uid); found != jobs.end()) return found->second;
    JobPtr job;
    {
      MutexLock lock(mu_);
      job = table_.Find(uid);
    }
    if (job == nullptr && uid.size() <= 64) {
      STRATA_ASSIGN_OR_RETURN(job, store_.FindByUid(uid));
    }
    return jobs[uid] = job;
  };
  std::vector<v1::MetricRow> rows;
  for (const v1::MetricRow& row : batch.metrics()) {
    STRATA_ASSIGN_OR_RETURN(const JobPtr job, find(row.job_uid()));
    const bool plausible = job != nullptr && row.attempt() >= 1 && row.attempt() <= job->attempt &&
                           row.rank() >= 0 && row.step() >= 0 && row.step() <= job->spec.training().steps() &&
                           row.values_size() <= kMetricsOfRowMax && row.texts_size() <= kMetricsOfRowMax;
    // Steps of a fenced attempt up to where its successor resumed are history; later ones are done again.
    if (plausible && (row.attempt() == job->attempt || row.step() <= job->resume_step)) rows.push_back(row);
  }
  std::map<std::string, std::vector<LogPiece>> logs;
  for (const v1::LogChunk& chunk : batch.logs()) {
    STRATA_ASSIGN_OR_RETURN(const JobPtr job, find(chunk.job_uid()));
    const v1::LogCursor& at = chunk.at();
    const bool stream = at.stream() == "stdout" || at.stream() == "stderr";
    if (job == nullptr || !stream || at.attempt() < 1 || at.attempt() > job->attempt || at.rank() < 0 ||
        at.offset() < 0 || at.offset() > (int64_t{1} << 60)) {
      continue;
    }
    logs[job->uid].push_back({{at.attempt(), at.rank(), at.stream()}, at.offset(), chunk.data()});
  }
  absl::Status stored = telemetry_.metrics().Append(rows);
  for (auto it = logs.begin(); it != logs.end() && stored.ok(); ++it)
    stored = telemetry_.logs().Append(it->first, it->second);
  {
    MutexLock lock(mu_);
    // A batch without anything to store says nothing of the disk.
    if (!stored.ok() || !rows.empty() || !logs.empty()) telemetry_trouble_ = std::string(stored.message());
  }
  if (!stored.ok()) return StorageDegraded(stored.message());
  if (!rows.empty() || !logs.empty()) telemetry_.Ring();
  return absl::OkStatus();
}

// --- fleet ---

v1::Worker Coordinator::WorkerView(const Worker& worker) {
  v1::Worker view;
  view.set_name(worker.id);
  switch (worker.state) {
    case WorkerState::kReady:
      view.set_state(worker.draining ? v1::Worker::DRAINING : v1::Worker::READY);
      break;
    case WorkerState::kQuarantined:
      view.set_state(v1::Worker::QUARANTINED);
      break;
    case WorkerState::kLost:
      view.set_state(v1::Worker::LOST);
      break;
    case WorkerState::kExpected:
      break;
  }
  view.set_reason(worker.state == WorkerState::kExpected ? "not heard of since the coordinator started"
                                                         : worker.reason);
  *view.mutable_capacity() = worker.capacity;
  const Resources allocated = table_.Allocated(worker.id);
  view.mutable_allocated()->set_device_bytes(allocated.device_bytes);
  view.mutable_allocated()->set_host_bytes(allocated.host_bytes);
  if (allocated.nvme_bytes > 0) view.mutable_allocated()->add_nvme()->set_bytes(allocated.nvme_bytes);
  view.set_version(worker.version);
  view.set_protocol_version(worker.protocol_version);
  *view.mutable_since_last_sync() =
      ToProto(absl::Nanoseconds(clock_.MonotonicNanos() - worker.last_sync_nanos));
  for (const JobPtr& job : table_.JobsOn(worker.id)) view.add_jobs(job->name);
  view.set_incarnation(worker.incarnation);
  return view;
}

absl::StatusOr<v1::ListWorkersResponse> Coordinator::ListWorkers(const v1::ListWorkersRequest& request) {
  STRATA_ASSIGN_OR_RETURN(const int32_t page_size, PageSize(request.page_size(), 100, 1000));
  // The cursor is the position in the order of the ids; a list that changes between pages may repeat or miss.
  STRATA_ASSIGN_OR_RETURN(const int64_t first, ParsePageToken("workers", request.page_token(), 0));
  MutexLock lock(mu_);
  v1::ListWorkersResponse response;
  int64_t index = 0;
  for (const auto& [id, worker] : workers_) {
    if (index++ < first) continue;
    if (response.workers_size() == page_size) {
      response.set_next_page_token(MakePageToken("workers", index - 1));
      break;
    }
    *response.add_workers() = WorkerView(worker);
  }
  return response;
}

absl::StatusOr<v1::Worker> Coordinator::GetWorker(const v1::GetWorkerRequest& request) {
  MutexLock lock(mu_);
  const auto found = workers_.find(request.name());
  if (found == workers_.end()) return NotFound("worker", request.name());
  return WorkerView(found->second);
}

v1::ServerInfo Coordinator::GetServerInfo() {
  v1::ServerInfo info;
  info.set_version(options_.version);
  info.set_protocol_min(kProtocolMin);
  info.set_protocol_max(kProtocolMax);
  info.set_store(store_.Describe());
  *info.mutable_time() = MicrosToProto(absl::ToUnixMicros(clock_.WallNow()));
  info.set_instance_id(instance_id_);
  return info;
}

}  // namespace strata::server
