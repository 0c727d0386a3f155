#include "worker/agent/agent.h"

#include <spdlog/spdlog.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/random.h"
#include "common/status.h"
#include "proto/duration/duration.h"
#include "worker/agent/leftovers.h"
#include "worker/agent/memory_kill.h"

namespace strata {
namespace {

constexpr int kProtocolVersion = 1;
constexpr char kVersion[] = "0.1.0";
constexpr absl::Duration kRpcTimeout = absl::Seconds(10);
constexpr absl::Duration kWearInterval = absl::Seconds(10);
constexpr absl::Duration kMinBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(3);
// While another agent has the worker id: it may go before its lease does, in order.
constexpr absl::Duration kMaxIdWait = absl::Seconds(30);
// Between two Syncs when the coordinator answers at once and nothing changed here.
constexpr absl::Duration kMinSyncPause = absl::Milliseconds(50);
// WaitConnected cannot be interrupted: how late a stop request may be seen.
constexpr absl::Duration kConnectSlice = absl::Milliseconds(200);
constexpr absl::Duration kMaxLongPoll = absl::Seconds(10);
constexpr absl::Duration kMaxLongPollBusy = absl::Seconds(2);  // steps and losses ride on Syncs
constexpr absl::Duration kLeftoverTimeout = absl::Seconds(30);
constexpr absl::Duration kFinalReportTimeout = absl::Seconds(5);
constexpr absl::Duration kFinalFlushTimeout = absl::Seconds(3);
// Ends that no coordinator ever takes note of (it lost its store) must not pile up for ever.
// All of them, each with a few KiB of log, stay well under gRPC's 4 MiB.
constexpr size_t kMaxEnded = 256;

int64_t Now() { return Clock::Real().MonotonicNanos(); }

// Telemetry numbers grow over incarnations: those of one life stay below the next one's as long as it does
// not produce 16 million items per second.
int64_t TelemetryBase(int64_t incarnation) { return incarnation << 24; }

// Answers to Register that trying again cannot change.
bool IsPermanent(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnimplemented:
      return true;
    default:
      return false;
  }
}

// Answers to Register and to a worker whose id another agent has.
bool IsIdInUse(const absl::Status& status) { return ErrorReason(status) == "WORKER_ID_IN_USE"; }
bool IsSuperseded(const absl::Status& status) { return ErrorReason(status) == "STALE_INCARNATION"; }

// The end of a task of an earlier incarnation, whose processes and scratch are gone by now.
v1::TaskReport ReportOf(const TaskRecord& record, const std::string& worker_id) {
  v1::TaskReport report;
  if (!record.report.empty() && report.ParseFromString(record.report)) {
    report.set_scratch_removed(true);
    return report;
  }
  report.Clear();
  report.set_job_uid(record.key.job_uid);
  report.set_attempt(record.key.attempt);
  report.set_rank(record.key.rank);
  report.set_phase("STOPPED");
  report.set_processes_gone(true);
  report.set_scratch_removed(true);
  report.mutable_failure()->set_cause(v1::WORKER_LOST);
  report.mutable_failure()->set_attempt(record.key.attempt);
  report.mutable_failure()->set_rank(record.key.rank);
  report.mutable_failure()->set_worker(worker_id);
  report.mutable_failure()->set_message(
      "the worker agent ended while the trainer ran, and has started again");
  // The trainer ended with the agent, by SIGKILL.
  if (record.process.pid != 0 && record.boot_id == BootId() && KilledForMemorySince(record.memory_kills))
    BlameMemory(report.mutable_failure());
  return report;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(AgentOptions options) {
  STRATA_RETURN_IF_ERROR(RaiseFileLimit());
  STRATA_RETURN_IF_ERROR(PreparePaths(&options));
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<StateDir> state,
                          StateDir::Open(options.state_dir, absl::ToUnixSeconds(Clock::Real().WallNow())),
                          "--state-dir");
  // Trainers' own children come to this process when their parent dies, so it can prove that they are gone.
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return ErrnoStatus(errno, "becoming a child subreaper");

  std::vector<std::string> unreadable;
  STRATA_ASSIGN_OR_RETURN(const std::vector<TaskRecord> records, state->ReadAll(&unreadable));
  for (const std::string& problem : unreadable) spdlog::error("unreadable task record: {}", problem);
  STRATA_RETURN_IF_ERROR(KillLeftovers(options.state_dir, records, kLeftoverTimeout));
  STRATA_ASSIGN_OR_RETURN(
      const std::vector<std::string> swept,
      SweepScratch(options.nvme_paths, ScratchOwner(options.worker_id, options.state_dir), records));
  for (const std::string& folder : swept) spdlog::info("removed leftover scratch {}", folder);

  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<WearLog> wear, WearLog::Open(options.state_dir + "/nvme_wear"),
                          "--state-dir");
  STRATA_ASSIGN_OR_RETURN(Machine machine, InspectMachine(options));
  if (!machine.speeds_why_not.empty())
    spdlog::warn("how fast this machine is could not be measured, so predictions are a guess: {}",
                 machine.speeds_why_not);
  std::unique_ptr<Agent> agent(
      new Agent(std::move(options), std::move(state), std::move(wear), std::move(machine)));
  for (const TaskRecord& record : records) {
    agent->ended_[record.key] = ReportOf(record, agent->options_.worker_id);
  }
  return agent;
}

Agent::Agent(AgentOptions options, std::unique_ptr<StateDir> state, std::unique_ptr<WearLog> wear,
             Machine machine)
    : options_(std::move(options)),
      state_(std::move(state)),
      wear_(std::move(wear)),
      coordinator_(ConnectCoordinator(options_.server)),
      telemetry_(TelemetryBase(state_->incarnation()), TelemetryBuffer::Limits()),
      capacity_(std::move(machine.capacity)),
      nvme_weights_(std::move(machine.nvme_weights)),
      gpu_(std::move(machine.gpu)),
      memory_(std::move(machine.memory)) {
  environment_.options = &options_;
  environment_.nvme_weights = &nvme_weights_;
  environment_.gpu = gpu_.has_value();
  environment_.why_no_gpu = std::move(machine.why_no_gpu);
  environment_.wear = wear_.get();
  environment_.state = state_.get();
  environment_.spawner = &spawner_;
  environment_.telemetry = &telemetry_;
  environment_.coordinator = coordinator_.get();
  environment_.changed = [this] { OnChange(); };
}

Agent::~Agent() = default;

void Agent::RequestStop() {
  MutexLock lock(mu_);
  ++stop_requests_;
  if (syncing_ != nullptr) syncing_->Cancel();
  wake_.SignalAll();
}

void Agent::OnChange() {
  MutexLock lock(mu_);
  dirty_ = true;
  if (syncing_ != nullptr) syncing_->Cancel();
  wake_.SignalAll();
}

absl::Status Agent::Run() {
  spdlog::info("worker {} incarnation {}: {} device, {} host", options_.worker_id, state_->incarnation(),
               FormatBytes(capacity_.device_bytes()), FormatBytes(capacity_.host_bytes()));
  for (const v1::NvmeVolume& volume : capacity_.nvme()) {
    spdlog::info("NVMe: {} at {} ({}, O_DIRECT {})", FormatBytes(volume.bytes()), volume.path(),
                 volume.fs_type(), volume.o_direct() ? "yes" : "no");
  }
  for (const v1::Rung& rung : capacity_.ladder()) {
    spdlog::info("{}: {}{}", rung.rung(), rung.chosen(),
                 rung.why().empty() ? "" : absl::StrCat(", because: ", rung.why()));
  }
  last_answer_sent_ = Now();
  sender_ = std::make_unique<TelemetrySender>(coordinator_.get(), &telemetry_);
  recalibration_ = std::make_unique<Recalibration>(
      [this, on_gpu = !capacity_.machine().device_is_cpu()] {
        return MeasureSpeedsAgain(options_, on_gpu, nvme_weights_);
      },
      [this] { OnChange(); });
  sync_thread_ = Thread("sync", [this] { SyncLoop(); });
  sync_thread_.Join();
  recalibration_.reset();
  tasks_.clear();
  SaveWear();
  if (fatal_.ok() && registered_) {
    (void)telemetry_.WaitAcked(telemetry_.last_sequence(), kFinalFlushTimeout);
  }
  sender_.reset();
  const TelemetryBuffer::Dropped dropped = telemetry_.dropped();
  if (dropped.log_bytes > 0 || dropped.metric_rows > 0) {
    spdlog::warn("telemetry dropped over this agent's life: {} log bytes, {} metric rows", dropped.log_bytes,
                 dropped.metric_rows);
  }
  return fatal_;
}

void Agent::SyncLoop() {
  absl::Duration backoff = kMinBackoff;
  bool ever_registered = false;
  const CounterRandom jitter(static_cast<uint64_t>(state_->incarnation()),
                             std::hash<std::string>()(options_.worker_id));
  uint64_t failures = 0;
  while (true) {
    CollectEnded();
    ApplyStopRequests();
    if (ShutdownDone()) return;
    const int64_t began = Now();
    const absl::Status status = registered_ ? SyncOnce() : RegisterOnce();
    ever_registered = ever_registered || registered_;
    if (status.ok()) {
      backoff = kMinBackoff;
      const absl::Duration took = absl::Nanoseconds(Now() - began);
      Pause(std::max(next_sync_, kMinSyncPause - took), /*for_changes=*/true);
      continue;
    }
    if (IsSuperseded(status) || (ever_registered && IsIdInUse(status))) {
      fatal_ = absl::AbortedError(absl::StrCat(
          "another agent has taken the place of worker ", options_.worker_id, ": its ", tasks_.size(),
          " task(s) are stopped here; the coordinator at ", options_.server, " says: ", status.message()));
      return;
    }
    if (!ever_registered && IsPermanent(status) && !IsIdInUse(status)) {
      fatal_ = Annotate(status, absl::StrCat("the coordinator at ", options_.server, " refuses worker ",
                                             options_.worker_id));
      return;
    }
    if (ever_registered) CheckLease();
    // A fleet whose coordinator comes back should not knock in step.
    absl::Duration pause = backoff * (0.75 + 0.5 * jitter.Uniform(failures++));
    if (IsIdInUse(status)) pause = std::max(pause, std::min(RetryDelay(status), kMaxIdWait));
    spdlog::warn("coordinator {}: {}; again in {}", options_.server, std::string(status.message()),
                 absl::FormatDuration(absl::Trunc(pause, absl::Milliseconds(1))));
    PauseAfterFailure(pause);
    backoff = std::min(backoff * 2, kMaxBackoff);
  }
}

void Agent::Pause(absl::Duration pause, bool for_changes) {
  const int64_t until = Now() + absl::ToInt64Nanoseconds(pause);
  MutexLock lock(mu_);
  while (stop_requests_ == stops_seen_ && !(for_changes && dirty_)) {
    const int64_t left = until - Now();
    if (left <= 0) return;
    wake_.WaitFor(mu_, std::chrono::nanoseconds(left));
  }
}

void Agent::PauseAfterFailure(absl::Duration pause) {
  const int64_t until = Now() + absl::ToInt64Nanoseconds(pause);
  // A coordinator that takes connections and fails calls must not be asked without any pause.
  Pause(std::min(pause, kMinBackoff), /*for_changes=*/false);
  if (coordinator_->IsConnected()) return Pause(absl::Nanoseconds(until - Now()), /*for_changes=*/false);
  while (Now() < until) {
    {
      MutexLock lock(mu_);
      if (stop_requests_ != stops_seen_) return;
    }
    if (coordinator_->WaitConnected(std::min(absl::Nanoseconds(until - Now()), kConnectSlice))) return;
  }
}

bool Agent::ShutdownDone() {
  int stops;
  {
    MutexLock lock(mu_);
    stops = stop_requests_;
  }
  if (stops == 0 || !tasks_.empty()) return false;
  if (stops > 1) return true;
  // The coordinator learns that it must give this worker nothing more, unless it cannot be reached.
  if (ended_.empty() && (told_draining_ || !registered_)) return true;
  if (report_deadline_ == 0) report_deadline_ = Now() + absl::ToInt64Nanoseconds(kFinalReportTimeout);
  return Now() > report_deadline_;
}

void Agent::ApplyStopRequests() {
  int stops;
  {
    MutexLock lock(mu_);
    stops = stops_seen_ = stop_requests_;
  }
  if (stops == 0) return;
  for (auto& [key, task] : tasks_) {
    task->RaiseWant(stops > 1                    ? v1::DesiredTask::KILL
                    : task->checkpoint_on_stop() ? v1::DesiredTask::CHECKPOINT_AND_STOP
                                                 : v1::DesiredTask::STOP,
                    v1::DRAINED, "the worker is being stopped");
  }
}

void Agent::CollectEnded() {
  for (auto it = tasks_.begin(); it != tasks_.end();) {
    if (!it->second->ended()) {
      ++it;
      continue;
    }
    ended_[it->first] = it->second->Report();
    it = tasks_.erase(it);
  }
  while (ended_.size() > kMaxEnded) {
    spdlog::error("the coordinator never took note of the end of task {}", ended_.begin()->first.ToString());
    (void)state_->Remove(ended_.begin()->first);
    ended_.erase(ended_.begin());
  }
}

std::vector<v1::TaskReport> Agent::Reports() {
  std::vector<v1::TaskReport> reports;
  for (const auto& [key, task] : tasks_) reports.push_back(task->Report());
  for (const auto& [key, report] : ended_) reports.push_back(report);
  for (const auto& [key, report] : waiting_) reports.push_back(report);
  return reports;
}

void Agent::Answered(int64_t sent_nanos, const google::protobuf::Duration& lease_ttl) {
  if (FromProto(lease_ttl) > absl::ZeroDuration()) lease_ttl_ = FromProto(lease_ttl);
  last_answer_sent_ = sent_nanos;
  if (lease_ended_) spdlog::info("the coordinator is back");
  lease_ended_ = false;
}

void Agent::CheckLease() {
  const absl::Duration silent = absl::Nanoseconds(Now() - last_answer_sent_);
  if (silent > lease_ttl_ && !lease_ended_) {
    lease_ended_ = true;
    spdlog::warn("the lease has ended; {} task(s) train on, for at most {} without the coordinator",
                 tasks_.size(), absl::FormatDuration(orphan_timeout_));
  }
  if (silent <= orphan_timeout_) return;
  for (auto& [key, task] : tasks_) {
    task->RaiseWant(v1::DesiredTask::KILL, v1::LEASE_EXPIRED,
                    absl::StrCat("no coordinator for ", absl::FormatDuration(orphan_timeout_)));
  }
}

void Agent::RefreshCapacity() {
  RefreshFreeBytes(&capacity_);
  if (tasks_.empty()) RefreshMemory(options_, gpu_, &memory_, &capacity_);
  if (std::optional<v1::MachineProfile> speeds =
          recalibration_->Poll(tasks_.empty(), capacity_.machine(), Now())) {
    spdlog::info("speeds: {}", speeds->source());
    *capacity_.mutable_machine() = *std::move(speeds);
  }
  for (v1::NvmeVolume& volume : *capacity_.mutable_nvme())
    volume.set_lifetime_written_bytes(wear_->Written(volume.path()));
  if (Now() - wear_saved_ < absl::ToInt64Nanoseconds(kWearInterval)) return;
  wear_saved_ = Now();
  SaveWear();
}

void Agent::SaveWear() {
  // Statistics: a full disk must not end jobs.
  if (const absl::Status saved = wear_->Save(); !saved.ok()) spdlog::warn("NVMe wear: {}", saved.ToString());
}

absl::Status Agent::RegisterOnce() {
  v1::RegisterRequest request;
  request.set_worker_id(options_.worker_id);
  request.set_incarnation(state_->incarnation());
  request.set_identity(state_->identity());
  RefreshCapacity();
  *request.mutable_capacity() = capacity_;
  request.set_version(kVersion);
  request.set_protocol_version(kProtocolVersion);
  for (v1::TaskReport& report : Reports()) *request.add_running() = std::move(report);
  request.set_checkpoint_root(options_.checkpoint_root);
  v1::RegisterResponse response;
  const int64_t sent = Now();
  STRATA_RETURN_IF_ERROR(coordinator_->Register(request, kRpcTimeout, nullptr, &response));
  Answered(sent, response.lease_ttl());
  if (FromProto(response.orphan_timeout()) > absl::ZeroDuration()) {
    orphan_timeout_ = FromProto(response.orphan_timeout());
  }
  worker_ = response.worker().empty() ? options_.worker_id : response.worker();
  registered_ = true;
  next_sync_ = absl::ZeroDuration();
  sender_->SetWorker(worker_);
  spdlog::info("registered as {} with coordinator {} (lease {}, orphan timeout {})", worker_,
               response.coordinator_instance(), absl::FormatDuration(lease_ttl_),
               absl::FormatDuration(orphan_timeout_));
  return absl::OkStatus();
}

absl::Status Agent::SyncOnce() {
  Cancellation cancellation;
  // News cuts a long poll short. Not when answers are overdue: tasks that change all the time must not
  // keep the lease from being renewed.
  const bool may_cancel = absl::Nanoseconds(Now() - last_answer_sent_) < lease_ttl_ / 3;
  {
    // From here on a change cancels this Sync, whether or not the reports below already hold it.
    MutexLock lock(mu_);
    dirty_ = false;
    if (may_cancel) syncing_ = &cancellation;
  }
  v1::SyncRequest request;
  request.set_worker(worker_);
  request.set_incarnation(state_->incarnation());
  request.set_identity(state_->identity());
  RefreshCapacity();
  *request.mutable_capacity() = capacity_;
  for (v1::TaskReport& report : Reports()) *request.add_tasks() = std::move(report);
  bool draining;
  {
    MutexLock lock(mu_);
    draining = stop_requests_ > 0;
  }
  request.set_draining(draining);
  const absl::Duration max_wait =
      may_cancel && !draining
          ? std::min(lease_ttl_ / 3, tasks_.empty() && waiting_.empty() ? kMaxLongPoll : kMaxLongPollBusy)
          : absl::ZeroDuration();
  *request.mutable_max_wait() = ToProto(max_wait);
  v1::SyncResponse response;
  const int64_t sent = Now();
  const absl::Status status = coordinator_->Sync(request, max_wait + kRpcTimeout, &cancellation, &response);
  {
    MutexLock lock(mu_);
    syncing_ = nullptr;
  }
  if (!status.ok() && cancellation.cancelled()) {
    next_sync_ = absl::ZeroDuration();
    return absl::OkStatus();
  }
  STRATA_RETURN_IF_ERROR(status);
  if (response.unknown_worker()) {
    spdlog::info("the coordinator does not know this worker: registering again");
    registered_ = false;
    next_sync_ = kMinBackoff;
    return absl::OkStatus();
  }
  Answered(sent, response.lease_ttl());
  told_draining_ = draining;
  next_sync_ = std::clamp(FromProto(response.next_sync()), absl::ZeroDuration(), lease_ttl_ / 3);
  Apply(response);
  return absl::OkStatus();
}

void Agent::Apply(const v1::SyncResponse& response) {
  for (const v1::TaskRef& ref : response.forget()) Forget(ref);
  waiting_.clear();
  std::set<TaskKey> wanted;
  for (const v1::DesiredTask& desired : response.desired()) {
    wanted.insert(TaskKey{desired.job_uid(), desired.attempt(), desired.rank()});
  }
  // First what must go, so that its successor finds it already ending.
  for (auto& [key, task] : tasks_) {
    if (!wanted.contains(key)) {
      task->RaiseWant(v1::DesiredTask::KILL, v1::FAILURE_CAUSE_UNSPECIFIED,
                      "the coordinator no longer wants this attempt here");
    }
  }
  for (const v1::DesiredTask& desired : response.desired()) ApplyDesired(desired);
}

void Agent::ApplyDesired(const v1::DesiredTask& desired) {
  const TaskKey key{desired.job_uid(), desired.attempt(), desired.rank()};
  if (ended_.contains(key)) return;
  const auto running = tasks_.find(key);
  if (running != tasks_.end()) {
    running->second->RaiseWant(desired.want(), v1::FAILURE_CAUSE_UNSPECIFIED,
                               "the coordinator asked it to stop");
    return;
  }
  if (!IsValidJobUid(key.job_uid))
    return Refuse(desired, v1::COORDINATOR_ERROR, "the job's uid is not valid");
  if (desired.want() > v1::DesiredTask::RUN) {
    return Refuse(desired, v1::FAILURE_CAUSE_UNSPECIFIED, "stopped before it started");
  }
  {
    MutexLock lock(mu_);
    if (stop_requests_ > 0) return;
  }
  bool waits = recalibration_->running();
  for (const auto& [other, task] : tasks_)
    waits = waits || (other.job_uid == key.job_uid && other.rank == key.rank);
  if (waits) {
    v1::TaskReport& report = waiting_[key];
    report.set_job_uid(key.job_uid);
    report.set_attempt(key.attempt);
    report.set_rank(key.rank);
    report.set_phase("PREPARING");
    return;  // the end of what it waits for is a change, which brings the next Sync and this task again
  }
  spdlog::info("task {} ({}) starts", key.ToString(), desired.job_name());
  tasks_[key] = std::make_unique<Task>(environment_, desired);
}

void Agent::Refuse(const v1::DesiredTask& desired, v1::FailureCause cause, const std::string& why) {
  const TaskKey key{desired.job_uid(), desired.attempt(), desired.rank()};
  v1::TaskReport& report = ended_[key];
  report.set_job_uid(key.job_uid);
  report.set_attempt(key.attempt);
  report.set_rank(key.rank);
  report.set_phase("STOPPED");
  report.set_processes_gone(true);
  report.set_scratch_removed(true);
  if (cause != v1::FAILURE_CAUSE_UNSPECIFIED) {
    report.mutable_failure()->set_cause(cause);
    report.mutable_failure()->set_attempt(key.attempt);
    report.mutable_failure()->set_rank(key.rank);
    report.mutable_failure()->set_worker(options_.worker_id);
    report.mutable_failure()->set_message(why);
  }
  spdlog::info("task {} does not run: {}", key.ToString(), why);
  OnChange();
}

void Agent::Forget(const v1::TaskRef& ref) {
  for (auto it = ended_.begin(); it != ended_.end();) {
    if (it->first.job_uid != ref.job_uid() || it->first.attempt != ref.attempt()) {
      ++it;
      continue;
    }
    if (IsValidJobUid(it->first.job_uid)) {
      const absl::Status removed = state_->Remove(it->first);
      if (!removed.ok()) spdlog::error("{}", removed.ToString());
    }
    it = ended_.erase(it);
  }
}

}  // namespace strata
