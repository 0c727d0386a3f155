#include "worker/agent/task.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "common/clock.h"
#include "common/seconds.h"
#include "common/status.h"
#include "worker/agent/leftovers.h"
#include "worker/agent/memory_kill.h"
#include "worker/agent/text.h"
#include "worker/trainer_channel/trainer_channel.h"

extern char** environ;

namespace strata {
namespace {

constexpr absl::Duration kKillGrace = absl::Seconds(10);           // SIGTERM to SIGKILL
constexpr absl::Duration kDoneGrace = absl::Seconds(60);           // last message to exit
constexpr absl::Duration kClosedChannelGrace = absl::Seconds(10);  // end of its channel to exit
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);         // exit to the end of its pipes
constexpr absl::Duration kScratchTimeout = absl::Seconds(30);
constexpr absl::Duration kTelemetryTimeout = absl::Seconds(10);
constexpr absl::Duration kCommitTelemetryTimeout = absl::Seconds(5);
constexpr absl::Duration kCommitTimeout = absl::Seconds(10);
constexpr absl::Duration kCommitMaxBackoff = absl::Seconds(2);
constexpr size_t kMaxCommits = 16;  // a trainer waits for each before the next
constexpr size_t kStderrTailBytes = 4 << 10;
constexpr size_t kReadBytes = 64 << 10;
constexpr int kDefaultComputeThreads = 2;  // of spec.training.compute_threads

// What the agent decides about a trainer's environment, in one place. Variables of the agent's own
// environment pass through, except those named here: a trainer's result may depend on its thread count only
// by its job's spec, never by a variable somebody left in the agent's shell.
constexpr std::array<absl::string_view, 9> kDroppedVariables = {
    "OMP_NUM_THREADS", "OMP_DYNAMIC",     "OMP_SCHEDULE", "OMP_PROC_BIND",  "OMP_PLACES",
    "GOMP_SPINCOUNT",  "OMP_WAIT_POLICY", kTaskVariable,  kStateDirVariable};

int64_t Now() { return Clock::Real().MonotonicNanos(); }
int64_t After(absl::Duration duration) { return Now() + absl::ToInt64Nanoseconds(duration); }

// Of a file operation on this worker's disks before the trainer ran.
v1::FailureCause DiskCause(const absl::Status& status) {
  return absl::IsResourceExhausted(status) ? v1::NVME_FULL : v1::NVME_IO_ERROR;
}

std::string DescribeEnd(int wait_status, bool killed_by_us) {
  if (WIFSIGNALED(wait_status)) {
    const int number = WTERMSIG(wait_status);
    std::string text = absl::StrCat("the trainer was killed by signal ", number, " (",
                                    sigabbrev_np(number) != nullptr ? sigabbrev_np(number) : "?", ")");
    if (number == SIGKILL && !killed_by_us) {
      absl::StrAppend(&text,
                      ", which the worker did not send: a person, or the kernel's out-of-memory killer where "
                      "it does not count in the worker's control group (see dmesg)");
    }
    return text;
  }
  return absl::StrCat("the trainer exited with code ", WEXITSTATUS(wait_status), " without saying why");
}

std::vector<std::string> ScratchPaths(const std::vector<std::string>& nvme_paths, const TaskKey& key) {
  std::vector<std::string> paths;
  for (const std::string& path : nvme_paths) paths.push_back(ScratchPath(path, key));
  return paths;
}

std::string StringOr(const std::string& text, absl::string_view otherwise) {
  return text.empty() ? std::string(otherwise) : text;
}

}  // namespace

Task::Task(const TaskEnvironment& environment, const v1::DesiredTask& desired)
    : env_(environment),
      key_{desired.job_uid(), desired.attempt(), desired.rank()},
      desired_(desired),
      checkpoint_on_stop_(!desired.spec().checkpoint().has_on_stop() ||
                          desired.spec().checkpoint().on_stop()),
      scratch_(ScratchPaths(environment.options->nvme_paths, key_)),
      kills_before_(ReadMemoryKills()),
      written_bytes_(scratch_.size(), 0),
      checkpoint_dir_(absl::StrCat(environment.options->checkpoint_root, "/", key_.job_uid)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      relay_(*environment.coordinator, key_.job_uid, key_.attempt,
             [this](const v1::RendezvousResponse& news) { TakeNews(news); }) {
  STRATA_CHECK(IsValidJobUid(key_.job_uid));
  {
    MutexLock lock(mu_);
    report_.set_job_uid(key_.job_uid);
    report_.set_attempt(key_.attempt);
    report_.set_rank(key_.rank);
    report_.set_phase("PREPARING");
    report_.set_nvme_written_bytes(desired_.nvme_written_bytes());
  }
  commit_thread_ = Thread("task-commit", [this] { CommitLoop(); });
  thread_ = Thread("task", [this] { Run(); });
}

Task::~Task() {
  RaiseWant(v1::DesiredTask::KILL, v1::FAILURE_CAUSE_UNSPECIFIED, "the agent ends");
  thread_.Join();
  commit_thread_.Join();
}

void Task::RaiseWant(v1::DesiredTask::Want want, v1::FailureCause why, const std::string& message) {
  {
    MutexLock lock(mu_);
    if (want <= want_) return;
    if (want_ <= v1::DesiredTask::RUN) {  // the first reason is the reason
      why_ = why;
      why_message_ = message;
    }
    want_ = want;
  }
  if (want == v1::DesiredTask::KILL) cancel_commits_.Cancel();
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

v1::DesiredTask::Want Task::want() {
  MutexLock lock(mu_);
  return want_;
}

v1::TaskReport Task::Report() {
  MutexLock lock(mu_);
  return report_;
}

bool Task::ended() {
  MutexLock lock(mu_);
  return ended_;
}

void Task::SetPhase(const std::string& phase) {
  {
    MutexLock lock(mu_);
    if (report_.phase() == phase) return;
    report_.set_phase(phase);
  }
  env_.changed();
}

void Task::Run() {
  Outcome outcome;
  if (want() <= v1::DesiredTask::RUN) {
    ChildProcess child;
    outcome.error = Prepare(&child, &outcome.error_cause);
    if (outcome.error.ok()) {
      outcome.started = true;
      Drive(child, &outcome);
    }
  }
  SetPhase("STOPPING");
  cancel_commits_.Cancel();
  {
    MutexLock lock(mu_);
    commits_closed_ = true;
    changed_.SignalAll();
  }
  v1::TaskReport report = FinalReport(outcome);
  // Other ranks may be waiting in a collective for this one.
  relay_.End(absl::StrCat(
      "its trainer on worker ", env_.options->worker_id, " has ended: ",
      report.finished() ? "it has finished" : StringOr(report.failure().message(), "it was told to stop")));
  report.set_phase("STOPPED");
  report.set_processes_gone(true);
  report.set_scratch_removed(RemoveScratchWithRetries());
  // Empty when the job ended before its first checkpoint; a folder with something in it stays.
  (void)rmdir(checkpoint_dir_.c_str());
  if (!env_.telemetry->WaitAcked(last_telemetry_.load(), kTelemetryTimeout)) {
    spdlog::warn("task {}: its end is reported although its last telemetry is not acknowledged",
                 key_.ToString());
  }
  TaskRecord record;
  record.key = key_;
  record.scratch = scratch_;
  record.report = report.SerializeAsString();
  const absl::Status recorded = env_.state->Write(record);
  if (!recorded.ok()) spdlog::error("task {}: recording its end: {}", key_.ToString(), recorded.ToString());
  spdlog::info("task {} ended: {}", key_.ToString(),
               report.finished() ? "finished" : StringOr(report.failure().message(), "stopped as asked"));
  {
    MutexLock lock(mu_);
    report_ = std::move(report);
    ended_ = true;
  }
  env_.changed();
}

absl::Status Task::Prepare(ChildProcess* child, v1::FailureCause* cause) {
  TaskRecord record;
  record.key = key_;
  record.scratch = scratch_;
  record.boot_id = BootId();
  record.memory_kills = kills_before_;
  absl::Status status = Annotate(env_.state->Write(record), "recording the task (--state-dir)");
  const std::string owner = ScratchOwner(env_.options->worker_id, env_.options->state_dir);
  for (const std::string& path : env_.options->nvme_paths) {
    if (status.ok()) status = MakeScratch(path, owner, key_).status();
  }
  *cause = DiskCause(status);
  STRATA_RETURN_IF_ERROR(status);
  v1::AgentMessage first;
  *first.mutable_task() = MakeTrainerTask();
  *cause = v1::COORDINATOR_ERROR;
  STRATA_ASSIGN_OR_RETURN(outbox_, EncodeFrame(first), "the job's task message");
  // A worker that cannot start trainers fails every job it is given: nobody's job is to blame for that, and
  // no job should come here before a person has looked.
  *cause = v1::DEVICE_FAULT;
  // But a full disk empties again, and is nothing that a person has to repair.
  const absl::Status folder = MakeDirectories(checkpoint_dir_);
  if (absl::IsResourceExhausted(folder)) *cause = v1::NVME_FULL;
  STRATA_RETURN_IF_ERROR(folder, "checkpoint folder (--checkpoint-root)");
  STRATA_ASSIGN_OR_RETURN(*child,
                          env_.spawner->Spawn(MakeSpawnRequest(), [&](const ProcessIdentity& identity) {
                            record.process = identity;
                            const absl::Status recorded = env_.state->Write(record);
                            if (absl::IsResourceExhausted(recorded)) *cause = v1::NVME_FULL;
                            return Annotate(recorded, "recording the task (--state-dir)");
                          }));
  spdlog::info("task {}: trainer runs as process {}", key_.ToString(), child->identity.pid);
  *cause = v1::TRAINER_CRASHED;
  return absl::OkStatus();
}

SpawnRequest Task::MakeSpawnRequest() const {
  SpawnRequest request;
  request.argv = {env_.options->trainer, absl::StrCat("--agent-fd=", kTrainerAgentFd)};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view variable = *entry;
    const absl::string_view name = variable.substr(0, variable.find('='));
    if (std::find(kDroppedVariables.begin(), kDroppedVariables.end(), name) == kDroppedVariables.end()) {
      request.environment.emplace_back(variable);
    }
  }
  const int threads = desired_.spec().training().compute_threads();
  request.environment.push_back(
      absl::StrCat("OMP_NUM_THREADS=", threads > 0 ? threads : kDefaultComputeThreads));
  request.environment.push_back("OMP_DYNAMIC=false");
  request.environment.push_back(absl::StrCat(kTaskVariable, "=", key_.ToString()));
  request.environment.push_back(absl::StrCat(kStateDirVariable, "=", env_.state->path()));
  return request;
}

v1::TrainerTask Task::MakeTrainerTask() const {
  v1::TrainerTask task;
  task.set_job_uid(key_.job_uid);
  task.set_job_name(desired_.job_name());
  task.set_attempt(key_.attempt);
  task.set_rank(key_.rank);
  *task.mutable_spec() = desired_.spec();
  *task.mutable_grant() = desired_.grant();
  *task.mutable_budget() = desired_.budget();
  for (size_t i = 0; i < scratch_.size(); ++i) {
    v1::NvmeScratch& scratch = *task.add_nvme();
    scratch.set_path(scratch_[i]);
    scratch.set_weight((*env_.nvme_weights)[i]);
  }
  task.set_checkpoint_dir(checkpoint_dir_);
  *task.mutable_resume() = desired_.resume();
  task.set_gpu(env_.gpu);
  task.set_why_no_gpu(env_.why_no_gpu);
  task.set_nvme_written_bytes(desired_.nvme_written_bytes());
  return task;
}

void Task::Drive(ChildProcess& child, Outcome* outcome) {
  const pid_t pid = child.identity.pid;
  enum { kWake, kExit, kChannel, kStdout, kStderr, kFds };
  bool open[kFds] = {true, child.pidfd.valid(), true, true, true};
  int64_t drain_until = INT64_MAX;
  bool ended = false;
  while (!ended || open[kChannel] || open[kStdout] || open[kStderr]) {
    if (!ended) {
      TakeOutbox();
      Escalate(child, outcome);
      if (HasEnded(pid)) {
        // A zombie keeps its number, so its group can be ended safely. Whoever held the pipes goes with it.
        ended = true;
        open[kExit] = false;
        SignalGroup(pid, SIGKILL);
        drain_until = After(kDrainTimeout);
        continue;  // all three may have been closed before
      }
    } else if (Now() > drain_until) {
      break;  // somebody outside the group holds a pipe
    }
    const short channel_events = static_cast<short>(POLLIN | (outbox_.empty() || ended ? 0 : POLLOUT));
    pollfd fds[kFds] = {{open[kWake] ? wake_.get() : -1, POLLIN, 0},
                        {open[kExit] ? child.pidfd.get() : -1, POLLIN, 0},
                        {open[kChannel] ? child.channel.get() : -1, channel_events, 0},
                        {open[kStdout] ? child.stdout_pipe.get() : -1, POLLIN, 0},
                        {open[kStderr] ? child.stderr_pipe.get() : -1, POLLIN, 0}};
    // Kernels without pidfds say nothing when a process ends: look often. Else the next deadline decides.
    const int64_t wait = ended                 ? drain_until - Now()
                         : child.pidfd.valid() ? std::min<int64_t>(escalate_at_ - Now(), 1'000'000'000)
                                               : 50'000'000;
    if (poll(fds, kFds, static_cast<int>(std::clamp<int64_t>(wait / 1'000'000 + 1, 0, 60'000))) < 0 &&
        errno != EINTR) {
      outcome->error = ErrnoStatus(errno, "polling the trainer");
      break;
    }
    if (fds[kWake].revents != 0) {
      uint64_t count;
      (void)!read(wake_.get(), &count, sizeof(count));
    }
    if ((fds[kChannel].revents & POLLOUT) != 0) FlushOutbox(child);
    if ((fds[kChannel].revents & ~POLLOUT) != 0 && !ReadChannel(child, outcome)) {
      open[kChannel] = false;
      outbox_.clear();
      if (!ended) {
        const absl::Duration grace = outcome->error.ok() ? kClosedChannelGrace : absl::ZeroDuration();
        escalate_at_ = std::min(escalate_at_, After(grace));
        terminated_ = true;
      }
    }
    if (fds[kStdout].revents != 0)
      open[kStdout] = ReadLog(child.stdout_pipe, "stdout", &stdout_offset_, outcome);
    if (fds[kStderr].revents != 0)
      open[kStderr] = ReadLog(child.stderr_pipe, "stderr", &stderr_offset_, outcome);
  }
  SetPhase("STOPPING");
  while (!EndGroup(pid, &outcome->wait_status)) {
    // A member in an uninterruptible sleep; resources are not free before it is gone, however long it takes.
    (void)poll(nullptr, 0, 10);
  }
  const int status = outcome->wait_status;
  outcome->killed_for_memory = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !outcome->killed_by_us &&
                               KilledForMemorySince(kills_before_);
}

void Task::TakeNews(const v1::RendezvousResponse& news) {
  {
    MutexLock lock(mu_);
    news_ = news;
  }
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof(one));
}

void Task::TakeOutbox() {
  std::deque<v1::CommitResult> results;
  std::optional<v1::RendezvousResponse> news;
  {
    MutexLock lock(mu_);
    if (outbox_.size() > kMaxFrameBytes) return;
    results.swap(commit_results_);
    news.swap(news_);
    changed_.SignalAll();
  }
  if (news) {
    v1::AgentMessage message;
    *message.mutable_rendezvous() = *std::move(news);
    if (const auto frame = EncodeFrame(message); frame.ok()) {
      outbox_ += *frame;
    } else {
      spdlog::error("task {}: an answer about its groups: {}", key_.ToString(), frame.status().ToString());
    }
  }
  for (v1::CommitResult& result : results) {
    v1::AgentMessage message;
    *message.mutable_committed() = std::move(result);
    auto frame = EncodeFrame(message);
    STRATA_CHECK(frame.ok());  // its only text was cut to size
    outbox_ += *frame;
  }
}

void Task::Escalate(const ChildProcess& child, Outcome* outcome) {
  using Want = v1::DesiredTask;
  const auto say = [&](v1::DesiredTask::Want want, absl::Duration grace) {
    v1::AgentMessage message;
    message.set_want(want);
    outbox_ += *EncodeFrame(message);
    sent_want_ = want;
    // One that is leaving already (its channel is closed, or it said its last word) gets no new time.
    escalate_at_ = terminated_ ? std::min(escalate_at_, After(grace)) : After(grace);
  };
  const v1::DesiredTask::Want wanted = want();
  const auto kill_now = [&] {
    outcome->killed_by_us = true;
    if (sent_want_ <= Want::RUN && wanted <= Want::RUN && outcome->error.ok() && !outcome->done.has_value()) {
      outcome->error =
          absl::DeadlineExceededError("the trainer closed its channel but did not end, so it was killed");
    }
    SignalGroup(child.identity.pid, SIGKILL);
    escalate_at_ = INT64_MAX;
  };
  if (wanted == Want::KILL) {
    if (!outcome->killed_by_us) kill_now();
    return;
  }
  if (wanted > sent_want_) {
    say(wanted, wanted == Want::STOP ? env_.options->stop_grace : env_.options->checkpoint_grace);
    SetPhase("STOPPING");
    return;
  }
  if (Now() < escalate_at_) return;
  if (sent_want_ == Want::CHECKPOINT_AND_STOP && !terminated_) {
    spdlog::warn("task {}: no checkpoint within {}, stopping without", key_.ToString(),
                 absl::FormatDuration(env_.options->checkpoint_grace));
    say(Want::STOP, env_.options->stop_grace);
  } else if (!terminated_) {
    spdlog::warn("task {}: does not stop when told, sending SIGTERM", key_.ToString());
    SignalGroup(child.identity.pid, SIGTERM);
    terminated_ = true;
    escalate_at_ = After(kKillGrace);
  } else {
    spdlog::warn("task {}: does not end, sending SIGKILL", key_.ToString());
    kill_now();
  }
}

void Task::FlushOutbox(const ChildProcess& child) {
  while (!outbox_.empty()) {
    const ssize_t n = send(child.channel.get(), outbox_.data(), outbox_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    // EAGAIN: later. Anything else is a dead trainer, which reading will find.
    if (n < 0) return;
    outbox_.erase(0, static_cast<size_t>(n));
  }
}

bool Task::ReadChannel(const ChildProcess& child, Outcome* outcome) {
  char buffer[kReadBytes];
  const ssize_t n = recv(child.channel.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  decoder_.Append(absl::string_view(buffer, static_cast<size_t>(n)));
  while (true) {
    auto body = decoder_.Next();
    if (!body.ok()) {
      outcome->error = body.status();
      return false;
    }
    if (!body->has_value()) return true;
    v1::TrainerMessage message;
    outcome->error = ParseFrameBody(**body, &message);
    if (!outcome->error.ok()) return false;
    Handle(std::move(message), outcome);
    if (!outcome->error.ok()) return false;
  }
}

bool Task::ReadLog(const Fd& pipe, const char* stream, int64_t* offset, Outcome* outcome) {
  std::string data(kReadBytes, '\0');
  const ssize_t n = read(pipe.get(), data.data(), data.size());
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  data.resize(static_cast<size_t>(n));
  if (strcmp(stream, "stderr") == 0) {
    std::string& tail = outcome->stderr_tail;
    tail += data;
    if (tail.size() > kStderrTailBytes) tail.erase(0, tail.size() - kStderrTailBytes);
  }
  v1::LogCursor at;
  at.set_attempt(key_.attempt);
  at.set_rank(key_.rank);
  at.set_stream(stream);
  at.set_offset(*offset);
  *offset += n;
  last_telemetry_.store(env_.telemetry->AddLog(at, key_.job_uid, std::move(data), Clock::Real().WallNow()));
  return true;
}

void Task::CountWear(const v1::TrainerMessage& message) {
  const size_t paths = std::min<size_t>(message.nvme_written_bytes_size(), written_bytes_.size());
  for (size_t i = 0; i < paths; ++i) {
    const int64_t written = message.nvme_written_bytes(static_cast<int>(i));
    env_.wear->Add(env_.options->nvme_paths[i], written - written_bytes_[i]);
    written_bytes_[i] = std::max(written_bytes_[i], written);
  }
  if (paths == 0) return;
  MutexLock lock(mu_);
  report_.set_nvme_written_bytes(
      std::accumulate(written_bytes_.begin(), written_bytes_.end(), desired_.nvme_written_bytes()));
}

void Task::Handle(v1::TrainerMessage message, Outcome* outcome) {
  CountWear(message);
  switch (message.message_case()) {
    case v1::TrainerMessage::kPhase:
      return HandlePhase(message.phase());
    case v1::TrainerMessage::kMetrics:
      return HandleMetrics(std::move(*message.mutable_metrics()));
    case v1::TrainerMessage::kCommit: {
      v1::CommitCheckpointRequest request = std::move(*message.mutable_commit());
      // A trainer speaks for its own attempt only.
      request.set_job_uid(key_.job_uid);
      request.set_attempt(key_.attempt);
      if (request.request_id().empty())
        request.set_request_id(absl::StrCat(key_.ToString(), ".", request.step()));
      MutexLock lock(mu_);
      if (commits_.size() >= kMaxCommits) {
        outcome->error = absl::ResourceExhaustedError(
            absl::StrCat("the trainer asked for ", kMaxCommits, " commits without waiting for an answer"));
        return;
      }
      commits_.push_back(std::move(request));
      changed_.SignalAll();
      return;
    }
    case v1::TrainerMessage::kRendezvous:
      outcome->error = relay_.Set(message.rendezvous());
      return;
    case v1::TrainerMessage::kDone:
      outcome->done = std::move(*message.mutable_done());
      // Whatever else was planned: it is leaving by itself, and gets time for it.
      escalate_at_ = After(kDoneGrace);
      terminated_ = true;
      return;
    case v1::TrainerMessage::kPlan:
      spdlog::info("task {}: planned {} per step, bound by {}", key_.ToString(),
                   FormatSeconds(static_cast<double>(message.plan().step_time().seconds()) +
                                 message.plan().step_time().nanos() * 1e-9),
                   message.plan().binding_lane());
      return;
    case v1::TrainerMessage::MESSAGE_NOT_SET:
      spdlog::warn("task {}: a message of a kind this worker does not know", key_.ToString());
      return;
  }
}

void Task::HandlePhase(const v1::TrainerPhase& phase) {
  static constexpr std::array<absl::string_view, 5> kPhases = {"PREPARING", "LOADING", "STEPPING",
                                                               "CHECKPOINTING", "STOPPING"};
  bool changed = false;
  {
    MutexLock lock(mu_);
    report_.set_step(std::max(report_.step(), phase.step()));
    if (phase.ladder_size() > 0) *report_.mutable_ladder() = phase.ladder();
    if (!phase.started_from().empty()) report_.set_started_from(phase.started_from());
    // STOPPED is the agent's word, given on proof.
    const bool stopping = sent_want_ > v1::DesiredTask::RUN;
    if (std::find(kPhases.begin(), kPhases.end(), phase.phase()) != kPhases.end() &&
        // A trainer that was told to stop still finishes its step.
        (!stopping || phase.phase() == "CHECKPOINTING")) {
      changed = report_.phase() != phase.phase();
      report_.set_phase(phase.phase());
    }
  }
  if (changed) env_.changed();
}

void Task::HandleMetrics(v1::MetricRow row) {
  row.set_job_uid(key_.job_uid);
  row.set_attempt(key_.attempt);
  row.set_rank(key_.rank);
  if (!row.has_time()) {
    const int64_t nanos = absl::ToUnixNanos(Clock::Real().WallNow());
    row.mutable_time()->set_seconds(nanos / 1'000'000'000);
    row.mutable_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  }
  {
    MutexLock lock(mu_);
    report_.set_step(std::max(report_.step(), row.step()));
    const auto loss = row.values().find("loss");
    if (loss != row.values().end()) report_.set_loss(loss->second);
    const auto speed = row.values().find("tokens_per_s");
    if (speed != row.values().end()) report_.set_tokens_per_second(speed->second);
  }
  last_telemetry_.store(env_.telemetry->AddMetrics(std::move(row)));
}

void Task::CommitLoop() {
  while (true) {
    v1::CommitCheckpointRequest request;
    {
      MutexLock lock(mu_);
      // A trainer that does not read its answers gets no more of them.
      while ((commits_.empty() || commit_results_.size() >= kMaxCommits) && !commits_closed_)
        changed_.Wait(mu_);
      if (commits_closed_) return;
      request = std::move(commits_.front());
      commits_.pop_front();
    }
    v1::CommitResult result = Commit(request);
    {
      MutexLock lock(mu_);
      commit_results_.push_back(std::move(result));
    }
    const uint64_t one = 1;
    (void)!write(wake_.get(), &one, sizeof(one));
  }
}

v1::CommitResult Task::Commit(const v1::CommitCheckpointRequest& request) {
  v1::CommitResult result;
  result.set_step(request.step());
  // A committed step's metrics should not exist only in this process: a resumed attempt will not do the step
  // again. A coordinator that takes commits but no telemetry holds up checkpoints for this long at most.
  const int64_t metrics = last_telemetry_.load();
  const int64_t deadline = After(kCommitTelemetryTimeout);
  while (!cancel_commits_.cancelled() && Now() < deadline &&
         !env_.telemetry->WaitAcked(metrics, absl::Milliseconds(100))) {
  }
  absl::Duration backoff = absl::Milliseconds(100);
  while (!cancel_commits_.cancelled()) {
    v1::Checkpoint checkpoint;
    const absl::Status status =
        env_.coordinator->CommitCheckpoint(request, kCommitTimeout, &cancel_commits_, &checkpoint);
    if (status.ok()) {
      result.set_ok(true);
      return result;
    }
    if (IsFinal(status)) {
      result.set_error(ToValidUtf8(absl::StrCat(ErrorReason(status), ErrorReason(status).empty() ? "" : ": ",
                                                std::string(status.message()).substr(0, 4096))));
      spdlog::warn("task {}: checkpoint of step {} refused: {}", key_.ToString(), request.step(),
                   result.error());
      return result;
    }
    spdlog::warn("task {}: committing step {}: {}; again in {}", key_.ToString(), request.step(),
                 status.ToString(), absl::FormatDuration(backoff));
    if (cancel_commits_.WaitFor(backoff)) break;
    backoff = std::min(backoff * 2, kCommitMaxBackoff);
  }
  result.set_error("the task is being stopped");
  return result;
}

v1::TaskReport Task::FinalReport(const Outcome& outcome) {
  v1::TaskReport report;
  v1::FailureCause why;
  std::string why_message;
  bool asked;
  {
    MutexLock lock(mu_);
    report = report_;
    why = why_;
    why_message = why_message_;
    asked = want_ > v1::DesiredTask::RUN;
  }
  v1::Failure failure;
  const bool signalled = outcome.started && WIFSIGNALED(outcome.wait_status);
  failure.set_attempt(key_.attempt);
  failure.set_rank(key_.rank);
  failure.set_worker(env_.options->worker_id);
  if (signalled) failure.set_signal(WTERMSIG(outcome.wait_status));
  if (outcome.started && !signalled) failure.set_exit_code(WEXITSTATUS(outcome.wait_status));
  const bool clean = outcome.started && !signalled && failure.exit_code() == 0;

  if (outcome.done.has_value() && outcome.done->finished()) {
    report.set_finished(true);
    *report.mutable_result() = outcome.done->result();
    return report;
  }
  if (outcome.done.has_value() && outcome.done->has_failure() &&
      outcome.done->failure().cause() != v1::FAILURE_CAUSE_UNSPECIFIED) {
    failure.set_cause(outcome.done->failure().cause());
    failure.set_message(outcome.done->failure().message());
  } else if (outcome.killed_for_memory) {
    BlameMemory(&failure);
  } else if (!outcome.error.ok()) {
    failure.set_cause(outcome.error_cause);
    failure.set_message(ToValidUtf8(outcome.error.message()));
  } else if (asked) {
    if (why == v1::FAILURE_CAUSE_UNSPECIFIED && (clean || !outcome.started)) return report;
    failure.set_cause(why);
    failure.set_message(why_message);
  } else {
    failure.set_cause(v1::TRAINER_CRASHED);
    failure.set_message(DescribeEnd(outcome.wait_status, outcome.killed_by_us));
  }
  failure.set_log_tail(ToValidUtf8(outcome.stderr_tail));
  const int64_t nanos = absl::ToUnixNanos(Clock::Real().WallNow());
  failure.mutable_time()->set_seconds(nanos / 1'000'000'000);
  failure.mutable_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  *report.mutable_failure() = std::move(failure);
  return report;
}

bool Task::RemoveScratchWithRetries() {
  const int64_t deadline = After(kScratchTimeout);
  while (true) {
    absl::Status removed;
    for (const std::string& scratch : scratch_) {
      if (removed.ok()) removed = RemoveScratch(scratch);
    }
    if (removed.ok()) return true;
    spdlog::error("task {}: {}", key_.ToString(), removed.ToString());
    if (Now() > deadline) return false;
    (void)poll(nullptr, 0, 1000);
  }
}

}  // namespace strata
