// A trainer that trains nothing: it speaks the agent's channel and behaves as the job's name says, so that
// the agent can be tested from outside. The name is "key=value,key=value"; keys and their defaults:
//
//   steps=5         steps to the end; 0: until stopped
//   step_us=200     pause per step
//   commit_every=0  commit a checkpoint every so many steps, and at the end
//   log_bytes=0     bytes on stdout per step
//   crash_at=0      SIGSEGV before this step          exit_at=0    exit code 7 before this step
//   fail_at=0       report INVALID_DATA before it     garbage_at=0 write bytes that are no frame
//   hang_at=0       stop taking part, channel open    close_at=0   close the channel and stay
//   ignore_stop=0   1: messages change nothing        ignore_term=0  1: SIGTERM neither
//   child=0         1: start a process in the same group that sleeps for ever
//   linger=0        1: stay after the last message
//   ranks=0         meet so many ranks first, and end when one of them does
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "proto/strata/v1/trainer.pb.h"
#include "worker/trainer/channel_rendezvous.h"
#include "worker/trainer_channel/trainer_channel.h"

namespace strata {
namespace {

std::map<std::string, int64_t> ParseBehaviour(const std::string& name) {
  std::map<std::string, int64_t> behaviour = {
      {"steps", 5},       {"step_us", 200},   {"commit_every", 0}, {"log_bytes", 0}, {"crash_at", 0},
      {"exit_at", 0},     {"fail_at", 0},     {"garbage_at", 0},   {"hang_at", 0},   {"close_at", 0},
      {"ignore_stop", 0}, {"ignore_term", 0}, {"child", 0},        {"linger", 0},    {"ranks", 0}};
  for (absl::string_view entry : absl::StrSplit(name, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    int64_t value;
    if (absl::SimpleAtoi(pair.second, &value)) behaviour[pair.first] = value;
  }
  return behaviour;
}

[[noreturn]] void SleepForEver() {
  while (true) pause();
}

class Stub {
 public:
  explicit Stub(Fd socket) : raw_fd_(socket.get()), channel_(std::move(socket)) {}

  int Run() {
    v1::AgentMessage first;
    if (!channel_.Receive(&first).ok() || !first.has_task()) return 3;
    task_ = first.task();
    behaviour_ = ParseBehaviour(task_.job_name());
    if (behaviour_["ignore_term"] != 0) signal(SIGTERM, SIG_IGN);
    if (behaviour_["child"] != 0 && fork() == 0) SleepForEver();
    for (const v1::NvmeScratch& scratch : task_.nvme())
      std::ofstream(scratch.path() + "/extent") << "scratch";
    std::printf("begin %s\n", task_.job_uid().c_str());
    std::fflush(stdout);
    std::fprintf(stderr, "stub error text \xff\n");
    receiver_ = Thread("receiver", [this] { ReceiveLoop(); });
    SendPhase("LOADING", 0);
    const bool finished = Meet() && Train();
    v1::TrainerMessage message;
    message.mutable_done()->set_finished(finished);
    if (finished) message.mutable_done()->mutable_result()->set_train_loss(0.5);
    if (failure_.cause() != v1::FAILURE_CAUSE_UNSPECIFIED)
      *message.mutable_done()->mutable_failure() = failure_;
    (void)channel_.Send(message);
    if (behaviour_["linger"] != 0) SleepForEver();
    std::fflush(stdout);
    _exit(failure_.cause() == v1::FAILURE_CAUSE_UNSPECIFIED ? 0 : 1);  // the receiver thread still waits
  }

 private:
  void ReceiveLoop() {
    while (true) {
      v1::AgentMessage message;
      if (!channel_.Receive(&message).ok()) {
        if (behaviour_["hang_at"] != 0 || behaviour_["close_at"] != 0) SleepForEver();
        _exit(9);  // the agent is gone
      }
      if (message.has_rendezvous()) rendezvous_.Take(message.rendezvous());
      MutexLock lock(mu_);
      if (message.has_committed()) {
        committed_ = message.committed();
        has_committed_ = true;
      } else if (message.message_case() == v1::AgentMessage::kWant && behaviour_["ignore_stop"] == 0) {
        want_ = std::max(want_, static_cast<int>(message.want()));
      }
      changed_.SignalAll();
    }
  }

  // False when the other ranks did not come, or do not go on.
  bool Meet() {
    if (behaviour_["ranks"] == 0) return true;
    JoinRequest request{.rank = task_.rank(), .size = static_cast<int>(behaviour_["ranks"])};
    if (request.rank == 0) request.id = "id of rank 0";
    auto joined = rendezvous_.Join(request);
    if (!joined.ok()) return Lost(joined.status());
    membership_ = *std::move(joined);
    std::printf("met %s\n", membership_->id().c_str());
    std::fflush(stdout);
    return true;
  }
  bool Lost(const absl::Status& status) {
    failure_.set_cause(v1::WORKER_LOST);
    failure_.set_message(std::string(status.message()));
    return false;
  }

  int want() {
    MutexLock lock(mu_);
    return want_;
  }

  void SendPhase(const std::string& phase, int64_t step) {
    v1::TrainerMessage message;
    message.mutable_phase()->set_phase(phase);
    message.mutable_phase()->set_step(step);
    message.mutable_phase()->add_ladder()->set_chosen("stub");
    message.mutable_phase()->set_started_from("from the stub's checkpoint");
    for (int i = 0; i < task_.nvme_size(); ++i) message.add_nvme_written_bytes(1000 * (i + 1));
    (void)channel_.Send(message);
  }

  // False when the commit was refused: a trainer stops then.
  bool Commit(int64_t step) {
    SendPhase("CHECKPOINTING", step);
    v1::TrainerMessage message;
    message.mutable_commit()->set_step(step);
    message.mutable_commit()->set_path(absl::StrCat(task_.checkpoint_dir(), "/step-", step));
    message.mutable_commit()->set_digest(absl::StrCat("digest-", step));
    {
      MutexLock lock(mu_);
      has_committed_ = false;
    }
    if (!channel_.Send(message).ok()) return false;
    MutexLock lock(mu_);
    while (!has_committed_) changed_.Wait(mu_);
    if (!committed_.ok()) {
      failure_.set_cause(v1::CHECKPOINT_CORRUPT);
      failure_.set_message(absl::StrCat("commit refused: ", committed_.error()));
    }
    return committed_.ok();
  }

  void Misbehave(int64_t step) {
    if (step == behaviour_["crash_at"]) raise(SIGSEGV);
    if (step == behaviour_["exit_at"]) _exit(7);
    if (step == behaviour_["hang_at"]) SleepForEver();
    if (step == behaviour_["garbage_at"]) (void)!write(raw_fd_, "\xff\xff\xff\xff garbage", 12);
    if (step == behaviour_["close_at"]) {
      shutdown(raw_fd_, SHUT_RDWR);
      SleepForEver();
    }
  }

  // Whether it came to the last step.
  bool Train() {
    const int64_t steps = behaviour_["steps"];
    const int64_t commit_every = behaviour_["commit_every"];
    int64_t step = task_.resume_size() > 0 ? task_.resume(0).step() : 0;
    while (steps == 0 || step < steps) {
      ++step;
      if (step == behaviour_["fail_at"]) {
        failure_.set_cause(v1::INVALID_DATA);
        failure_.set_message("the stub was told to fail");
        return false;
      }
      Misbehave(step);
      if (membership_ != nullptr && !membership_->Check().ok()) return Lost(membership_->Check());
      SendPhase("STEPPING", step);
      v1::TrainerMessage message;
      message.mutable_metrics()->set_step(step);
      (*message.mutable_metrics()->mutable_values())["loss"] = 5.0 / static_cast<double>(step);
      (*message.mutable_metrics()->mutable_values())["tokens_per_s"] = 1000;
      (void)channel_.Send(message);
      if (behaviour_["log_bytes"] > 0) {
        const std::string line(static_cast<size_t>(behaviour_["log_bytes"]),
                               static_cast<char>('a' + step % 26));
        std::fwrite(line.data(), 1, line.size(), stdout);
        std::fflush(stdout);
      }
      usleep(static_cast<useconds_t>(behaviour_["step_us"]));
      const int wanted = want();
      const bool last = steps != 0 && step == steps;
      if (wanted == v1::DesiredTask::CHECKPOINT_AND_STOP ||
          (commit_every > 0 && (step % commit_every == 0 || last))) {
        if (!Commit(step)) return false;
      }
      if (wanted != 0 && !last) return false;
    }
    return true;
  }

  const int raw_fd_;
  TrainerChannel channel_;
  v1::TrainerTask task_;
  std::map<std::string, int64_t> behaviour_;
  v1::Failure failure_;
  ChannelRendezvous rendezvous_{[this](const v1::TrainerMessage& message) { return channel_.Send(message); }};
  std::unique_ptr<Membership> membership_;
  Thread receiver_;
  Mutex mu_;
  CondVar changed_;
  int want_ ABSL_GUARDED_BY(mu_) = 0;
  v1::CommitResult committed_ ABSL_GUARDED_BY(mu_);
  bool has_committed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace
}  // namespace strata

int main(int argc, char** argv) {
  if (argc != 2 || std::string(argv[1]) != "--agent-fd=3") {
    std::fprintf(stderr, "run by strata_worker only\n");
    return 2;
  }
  strata::Stub stub{strata::Fd(strata::kTrainerAgentFd)};
  return stub.Run();
}
