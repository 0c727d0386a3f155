// The core of the coordinator: how changes become durable, timers and scheduling. The user plane is in
// coordinator_jobs.cc, the worker plane in coordinator_workers.cc.
#include "server/service/coordinator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/crc32c.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "server/state/failure_policy.h"
#include "server/store/job_codec.h"

namespace strata::server {
namespace {

constexpr auto kTickEvery = std::chrono::milliseconds(200);
constexpr int64_t kScheduleEveryNanos = 900'000'000;  // at least: `waiting` is never older than a second
constexpr int64_t kProbeEveryNanos = 1'000'000'000;
constexpr int64_t kSlowStoreNanos = 5'000'000'000;
constexpr int64_t kDiskFullBytes = 64 << 10;
constexpr int64_t kLostWorkerKeptNanos = int64_t{3600} * 1'000'000'000;
constexpr size_t kPlansPerTick = 4;
constexpr size_t kRungWhyMax = 500;
constexpr auto kWaitSlice = std::chrono::milliseconds(250);

const char* ReasonOfEvent(const Job& before, const Job& after) {
  return before.state == after.state && before.checkpoints != after.checkpoints ? "CHECKPOINT_COMMITTED"
                                                                                : after.reason.c_str();
}

}  // namespace

v1::ResourceRequest LimitsOf(const Worker& worker) {
  v1::ResourceRequest limits = ToProto(worker.total);
  if (worker.capacity.has_machine()) *limits.mutable_machine() = worker.capacity.machine();
  for (const v1::Rung& rung : worker.capacity.ladder()) {
    if (rung.rung() == "gpudirect") limits.set_why_no_gpudirect(TruncateUtf8(rung.why(), kRungWhyMax));
    if (rung.rung() == "fp8") limits.set_why_no_fp8(TruncateUtf8(rung.why(), kRungWhyMax));
  }
  return limits;
}

// Two workers are never measured to be equally fast, so in effect each that was measured is its own class.
std::string CapacityClass(const v1::ResourceRequest& limits) {
  const std::string machine =
      absl::StrCat(limits.machine().SerializeAsString(), limits.why_no_gpudirect(), "/", limits.why_no_fp8());
  return absl::StrCat(limits.device_bytes(), "/", limits.host_bytes(), "/", limits.nvme_bytes(), "/",
                      Crc32c(machine.data(), machine.size()));
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(CoordinatorOptions options, Clock& clock,
                                                                 StateStore& store, Telemetry& telemetry,
                                                                 Planner planner, SpecChecker checker) {
  std::unique_ptr<Coordinator> coordinator(
      new Coordinator(std::move(options), clock, store, telemetry, std::move(planner), std::move(checker)));
  STRATA_RETURN_IF_ERROR(coordinator->Load(), "loading jobs");
  if (coordinator->options_.run_ticker) {
    coordinator->ticker_ = Thread("ticker", [raw = coordinator.get()] { raw->TickerLoop(); });
    coordinator->plan_maker_ = Thread("planner", [raw = coordinator.get()] { raw->PlannerLoop(); });
  }
  return coordinator;
}

Coordinator::Coordinator(CoordinatorOptions options, Clock& clock, StateStore& store, Telemetry& telemetry,
                         Planner planner, SpecChecker checker)
    : options_(std::move(options)),
      clock_(clock),
      store_(store),
      telemetry_(telemetry),
      planner_(std::move(planner)),
      checker_(std::move(checker)),
      instance_id_(RandomHex(16)) {}

Coordinator::~Coordinator() {
  Drain();
  MutexLock lock(mu_);
  while (outstanding_ > 0) changed_.Wait(mu_);
}

void Coordinator::Drain() {
  {
    MutexLock lock(mu_);
    draining_ = true;
    changed_.SignalAll();
    tick_.SignalAll();
  }
  telemetry_.Ring();
  if (ticker_.joinable()) ticker_.Join();
  if (plan_maker_.joinable()) plan_maker_.Join();
}

bool Coordinator::draining() {
  MutexLock lock(mu_);
  return draining_;
}

absl::Status Coordinator::Load() {
  STRATA_ASSIGN_OR_RETURN(const int64_t last_revision, store_.LastRevision());
  STRATA_ASSIGN_OR_RETURN(const std::vector<JobPtr> jobs, store_.LoadLive());
  STRATA_ASSIGN_OR_RETURN(const std::vector<JobPtr> changes, store_.LoadRevisions(kRevisionsKept));
  const int64_t now = clock_.MonotonicNanos();
  const int64_t wall = absl::ToUnixMicros(clock_.WallNow());
  MutexLock lock(mu_);
  revision_ = durable_revision_ = last_revision;
  changes_.assign(changes.begin(), changes.end());
  oldest_change_ = std::max<int64_t>(0, last_revision - kRevisionsKept);
  store_.SetEpoch(epoch_);
  for (const JobPtr& job : jobs) {
    table_.Put(job->uid, job);
    Live& live = live_[job->uid];
    live.progress = job->progress;
    live.state_nanos = live.step_nanos = now;
    // A wall clock that was set back must not make the job wait longer than any backoff does.
    const int64_t wait = std::clamp<int64_t>(job->next_attempt_micros - wall, 0, 60'000'000);
    if (job->state == JobState::kBackoff) live.due_nanos = now + wait * 1000;
    if (HoldsResources(job->state)) {
      Worker& worker = workers_[job->worker];
      worker.id = job->worker;
      worker.identity = job->worker_identity;
      worker.last_sync_nanos = now;
    }
  }
  return absl::OkStatus();
}

void Coordinator::TickerLoop() {
  while (true) {
    {
      MutexLock lock(mu_);
      if (draining_) return;
      tick_.WaitFor(mu_, kTickEvery);
      if (draining_) return;
    }
    RunDue();
    ProbeStore();
    LookAtDisk();
  }
}

void Coordinator::PlannerLoop() {
  while (true) {
    {
      MutexLock lock(mu_);
      while (missing_plans_.empty() && !draining_) tick_.Wait(mu_);
      if (draining_) return;
    }
    MakeMissingPlans();
  }
}

void Coordinator::Tick() {
  RunDue();
  MakeMissingPlans();
  ProbeStore();
  LookAtDisk();
}

void Coordinator::RunDue() {
  MutexLock lock(mu_);
  ExpireLeases();
  RunTimers();
  ExpireGroups();
  if (std::string trouble = StorageTrouble(); trouble != trouble_told_) {
    trouble_told_ = std::move(trouble);
    ++live_generation_;
    changed_.SignalAll();
  }
  if (schedule_needed_ || clock_.MonotonicNanos() - schedule_nanos_ >= kScheduleEveryNanos) RunSchedule();
}

// --- changes ---

absl::StatusOr<JobPtr> Coordinator::Transact(const std::string& uid, std::string actor,
                                             decltype(Event::what) what, std::optional<RequestRow> request) {
  if (!degraded_.empty()) return StorageDegraded(degraded_);
  Event event;
  event.uid = uid;
  event.revision = revision_ + 1;
  event.wall_micros = absl::ToUnixMicros(clock_.WallNow());
  event.actor = std::move(actor);
  event.what = std::move(what);
  if (const auto live = live_.find(uid); live != live_.end()) event.progress = live->second.progress;
  const JobPtr before = table_.Find(uid);
  STRATA_ASSIGN_OR_RETURN(JobPtr after, table_.Apply(event));
  revision_ = event.revision;

  StoreTransaction transaction;
  transaction.job = after;
  static const Job kNoJob;
  const Job& old = before == nullptr ? kNoJob : *before;
  transaction.event = {event.revision, event.wall_micros,          old.state,      after->state,
                       after->attempt, ReasonOfEvent(old, *after), after->message, event.actor};
  if (const auto* committed = std::get_if<CheckpointCommitted>(&event.what)) {
    transaction.checkpoint = committed->checkpoint;
    transaction.event.message = absl::StrCat("checkpoint of step ", committed->checkpoint->step());
  }
  for (const auto& checkpoint : old.checkpoints) {
    if (std::none_of(after->checkpoints.begin(), after->checkpoints.end(),
                     [&](const auto& kept) { return kept->step() == checkpoint->step(); })) {
      transaction.dropped_steps.push_back(checkpoint->step());
    }
  }
  Pending pending{event.revision, uid, before, std::nullopt, clock_.MonotonicNanos()};
  if (request) {
    pending.request = {request->scope, request->request_id};
    pending_requests_[*pending.request] = *request;
    transaction.request = std::move(request);
  }
  pending_.push_back(std::move(pending));

  Live& live = live_[uid];
  const int64_t now = clock_.MonotonicNanos();
  if (old.state != after->state) {
    live.state_nanos = live.step_nanos = now;
    live.due_nanos = now + std::max<int64_t>(0, after->next_attempt_micros - event.wall_micros) * 1000;
    if (after->state == JobState::kStarting) {
      live.progress = after->progress;
      live.stopped_nanos = 0;
    }
    schedule_needed_ = true;
  }
  ++outstanding_;
  store_.Submit(epoch_, std::move(transaction),
                [this, epoch = epoch_, revision = event.revision](const absl::Status& status) {
                  OnCommitted(epoch, revision, status);
                });
  return after;
}

void Coordinator::OnCommitted(uint64_t epoch, int64_t revision, const absl::Status& status) {
  MutexLock lock(mu_);
  --outstanding_;
  if (epoch == epoch_) {
    if (status.ok()) {
      STRATA_CHECK(!pending_.empty() && pending_.front().revision == revision);
      const Pending done = std::move(pending_.front());
      pending_.pop_front();
      if (done.request) pending_requests_.erase(*done.request);
      durable_revision_ = revision;
      // The record of this revision is what the next pending change of the job started from, or what is
      // there.
      JobPtr job = table_.Find(done.uid);
      for (const Pending& later : pending_) {
        if (later.uid == done.uid) {
          job = later.before;
          break;
        }
      }
      Publish(job);
    } else {
      RollBack(status);
    }
  }
  changed_.SignalAll();
}

void Coordinator::Publish(const JobPtr& job) {
  changes_.push_back(job);
  oldest_change_ = std::max(oldest_change_, job->revision - kRevisionsKept);
  while (!changes_.empty() && changes_.front()->revision <= oldest_change_) changes_.pop_front();
  if (IsTerminal(job->state)) {
    table_.Put(job->uid, nullptr);
    live_.erase(job->uid);
  }
  ++live_generation_;
}

void Coordinator::RollBack(const absl::Status& why) {
  STRATA_CHECK(!pending_.empty());
  first_lost_.push_back(pending_.front().revision);
  for (; !pending_.empty(); pending_.pop_back()) {
    const Pending& undone = pending_.back();
    table_.Put(undone.uid, undone.before);
    if (undone.before == nullptr) live_.erase(undone.uid);
  }
  pending_requests_.clear();
  ++epoch_;
  store_.SetEpoch(epoch_);
  degraded_ = std::string(why.message());
  next_probe_nanos_ = clock_.MonotonicNanos() + kProbeEveryNanos;
}

absl::Status Coordinator::WaitDurable(int64_t revision, uint64_t epoch, const CallContext& call) {
  while (true) {
    if (epoch != epoch_) {
      if (revision < first_lost_[epoch]) return absl::OkStatus();
      return StorageDegraded(degraded_.empty() ? "the change was not written; try again" : degraded_);
    }
    if (durable_revision_ >= revision || pending_.empty()) return absl::OkStatus();
    const auto left = call.deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0) || call.cancelled()) {
      return StorageDegraded("the storage did not answer in time; the change may still happen");
    }
    changed_.WaitFor(mu_, std::min<std::chrono::nanoseconds>(left, kWaitSlice));
  }
}

std::string Coordinator::StorageTrouble() {
  const std::string& why = degraded_.empty() ? telemetry_trouble_ : degraded_;
  if (!why.empty()) {
    return absl::StrCat("the coordinator cannot write to its --data-dir (", why,
                        "): training goes on, its steps are kept and shown when there is room");
  }
  if (disk_full_)
    return "the disk of the coordinator's --data-dir is full: free space, or what comes next cannot be "
           "stored";
  if (!pending_.empty() && clock_.MonotonicNanos() - pending_.front().since_nanos > kSlowStoreNanos)
    return "the disk of the coordinator's --data-dir does not answer: what is new is shown when it does";
  return "";
}

// --- timers and scheduling ---

absl::Duration Coordinator::LeaseLeft(const Worker& worker) {
  const absl::Duration silent = absl::Nanoseconds(clock_.MonotonicNanos() - worker.last_sync_nanos);
  const bool expected = worker.state == WorkerState::kExpected;
  return (expected ? options_.restart_wait : options_.lease_ttl + options_.lease_grace) - silent;
}

void Coordinator::ExpireLeases() {
  const int64_t now = clock_.MonotonicNanos();
  for (auto it = workers_.begin(); it != workers_.end();) {
    Worker& worker = it->second;
    const int64_t silent = now - worker.last_sync_nanos;
    if (worker.state != WorkerState::kLost && LeaseLeft(worker) < absl::ZeroDuration()) {
      worker.state = WorkerState::kLost;
      worker.reason = absl::StrCat("silent for ", silent / 1'000'000'000, " s");
      schedule_needed_ = true;
    }
    const std::vector<JobPtr> jobs = table_.JobsOn(worker.id);
    if (worker.state == WorkerState::kLost) {
      // Repeated every tick: a write that fails leaves the job for the next time.
      for (const JobPtr& job : jobs) {
        v1::Failure failure;
        failure.set_cause(v1::WORKER_LOST);
        failure.set_message(absl::StrCat("worker ", worker.id, " was ", worker.reason));
        EndAttempt(job, {job->attempt, failure, std::nullopt}, "coordinator");
      }
      if (jobs.empty() && silent > kLostWorkerKeptNanos) {
        sessions_.erase(worker.id);
        it = workers_.erase(it);
        continue;
      }
    }
    ++it;
  }
}

void Coordinator::RunTimers() {
  const int64_t now = clock_.MonotonicNanos();
  std::vector<std::pair<JobPtr, Live*>> jobs;  // Transact changes the table
  for (auto& [uid, live] : live_) {
    if (JobPtr job = table_.Find(uid); job != nullptr) jobs.emplace_back(std::move(job), &live);
  }
  const auto older = [now](int64_t since, absl::Duration than) {
    return now - since > absl::ToInt64Nanoseconds(than);
  };
  const auto stop = [this](const Job& job, v1::FailureCause cause,
                           std::string message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::Failure failure;
    failure.set_cause(cause);
    failure.set_message(std::move(message));
    // A refusal means that the state has moved on meanwhile, a failed write that the next tick tries again.
    (void)Transact(job.uid, "coordinator", StopRequested{job.attempt, failure, std::nullopt});
  };
  for (const auto& [job, live] : jobs) {
    if (job->state == JobState::kBackoff && now >= live->due_nanos) {
      (void)Transact(job->uid, "coordinator", BackoffElapsed{});
    } else if (job->state == JobState::kStarting && older(live->state_nanos, options_.start_timeout)) {
      stop(*job, v1::START_TIMEOUT,
           absl::StrCat("no first step within ", absl::FormatDuration(options_.start_timeout)));
    } else if (job->state == JobState::kRunning && older(live->step_nanos, options_.stall_timeout)) {
      stop(*job, v1::STALLED,
           absl::StrCat("no step for ", absl::FormatDuration(options_.stall_timeout), " after step ",
                        live->progress.step));
    }
  }
}

void Coordinator::RunSchedule() {
  schedule_needed_ = false;
  schedule_nanos_ = clock_.MonotonicNanos();
  const int64_t wall = absl::ToUnixMicros(clock_.WallNow());
  ScheduleResult result = Schedule(
      table_, workers_, [this](const Job& job, const Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        const Live& live = live_[job.uid];
        const auto plan = live.plans.find(CapacityClass(LimitsOf(worker)));
        return plan == live.plans.end() ? nullptr : plan->second;
      });
  missing_plans_ = std::move(result.missing);
  if (!missing_plans_.empty()) tick_.SignalAll();
  for (auto& [uid, waiting] : result.waiting) {
    v1::Waiting& now = live_[uid].waiting;
    if (now.code() != waiting.code()) ++live_generation_;
    now = std::move(waiting);
    *now.mutable_evaluated_at() = MicrosToProto(wall);
  }
  for (const Grant& grant : result.grants) {
    const Worker& worker = workers_[grant.worker];
    const absl::StatusOr<JobPtr> granted =
        Transact(grant.uid, "coordinator",
                 Granted{grant.worker, worker.incarnation, grant.resources, *grant.plan, worker.identity});
    if (!granted.ok()) {
      // Not written: the job stays queued, and the next pass tries again.
      v1::Waiting& waiting = live_[grant.uid].waiting;
      waiting.Clear();
      waiting.set_code("STORAGE_DEGRADED");
      *waiting.mutable_evaluated_at() = MicrosToProto(wall);
    }
  }
}

void Coordinator::MakeMissingPlans() {
  struct Missing {
    std::string uid;
    std::string capacity_class;
    v1::JobSpec spec;
    Resources total;
    v1::ResourceRequest limits;
    std::shared_ptr<v1::JobPlan> plan;
  };
  std::vector<Missing> todo;
  {
    MutexLock lock(mu_);
    for (const auto& [uid, worker_id] : missing_plans_) {
      const JobPtr job = table_.Find(uid);
      const auto worker = workers_.find(worker_id);
      if (job == nullptr || worker == workers_.end()) continue;
      v1::ResourceRequest limits = LimitsOf(worker->second);
      std::string capacity_class = CapacityClass(limits);
      const auto same = [&, &uid = uid](const Missing& other) {
        return other.uid == uid && other.capacity_class == capacity_class;
      };
      if (std::any_of(todo.begin(), todo.end(), same)) continue;
      todo.push_back(
          {uid, std::move(capacity_class), job->spec, worker->second.total, std::move(limits), nullptr});
      if (todo.size() == kPlansPerTick) break;
    }
    missing_plans_.clear();
  }
  if (todo.empty()) return;
  for (Missing& missing : todo) {
    missing.plan = std::make_shared<v1::JobPlan>();
    absl::StatusOr<v1::JobPlan> plan = planner_(missing.spec, missing.limits);
    if (plan.ok()) {
      *missing.plan = *std::move(plan);
      RefuseBeyondCapacity(*missing.plan, missing.total);
    } else {
      v1::Shortfall* shortfall = missing.plan->add_shortfalls();
      shortfall->set_resource("plan");
      shortfall->set_remedy(TruncateUtf8(plan.status().message(), 1000));
    }
  }
  MutexLock lock(mu_);
  for (Missing& missing : todo) {
    if (const auto live = live_.find(missing.uid); live != live_.end()) {
      live->second.plans[missing.capacity_class] = missing.plan;
    }
  }
  RunSchedule();
}

void Coordinator::ProbeStore() {
  {
    MutexLock lock(mu_);
    if (degraded_.empty() || clock_.MonotonicNanos() < next_probe_nanos_) return;
    next_probe_nanos_ = clock_.MonotonicNanos() + kProbeEveryNanos;
  }
  const absl::Status status = store_.Probe();
  MutexLock lock(mu_);
  degraded_ = std::string(status.ok() ? "" : status.message());
  if (status.ok()) schedule_needed_ = true;
  changed_.SignalAll();
}

// A store that has room in its files left fails only when that is used up, and then for everybody.
void Coordinator::LookAtDisk() {
  {
    MutexLock lock(mu_);
    if (!options_.free_bytes || clock_.MonotonicNanos() < next_look_nanos_) return;
    next_look_nanos_ = clock_.MonotonicNanos() + kProbeEveryNanos;
  }
  const bool full = options_.free_bytes() < kDiskFullBytes;
  MutexLock lock(mu_);
  disk_full_ = full;
}

void Coordinator::EndAttempt(const JobPtr& job, AttemptEnded ended, const std::string& actor) {
  if (ended.failure && SuspectsWorker(ended.failure->cause())) {
    Worker& worker = workers_[job->worker];
    worker.id = job->worker;
    worker.suspect = true;
    worker.reason = absl::StrCat(v1::FailureCause_Name(ended.failure->cause()), " in attempt ", job->attempt,
                                 " of ", job->name, ": ", ended.failure->message(),
                                 "; repair it, then restart its strata_worker");
    if (worker.state == WorkerState::kReady) worker.state = WorkerState::kQuarantined;
  }
  // A refusal means that the state has moved on; a failed write is repeated by who reports or expires again.
  (void)Transact(job->uid, actor, std::move(ended));
}

void Coordinator::Flush() {
  MutexLock lock(mu_);
  while (outstanding_ > 0) changed_.Wait(mu_);
}

absl::Status Coordinator::CheckInvariants() {
  MutexLock lock(mu_);
  STRATA_RETURN_IF_ERROR(table_.CheckInvariants());
  for (const auto& [uid, job] : table_.jobs()) {
    if (live_.count(uid) == 0) return absl::InternalError(absl::StrCat(job->name, " has no live picture"));
  }
  return absl::OkStatus();
}

}  // namespace strata::server
