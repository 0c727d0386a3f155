// Task: one attempt of one rank of a job on this worker, from the granted start to the proven end.
//
// A thread of the task drives the trainer process: it prepares the scratch folder and the durable record,
// spawns, and multiplexes the trainer's channel, stdout, stderr and exit; a second one forwards checkpoint
// commits, so that a slow coordinator holds up neither logs nor metrics nor a kill; a third one runs once the
// trainer takes part in a rendezvous (rendezvous_relay.h).
//
// The end, in this order: the whole process group is gone; commits are cancelled; the other ranks are told,
// for at most 2 s; scratch is removed; the telemetry of the task is acknowledged or 10 s have passed; the
// final report is durable; ended() is true.
#ifndef WORKER_AGENT_TASK_H_
#define WORKER_AGENT_TASK_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "common/fd.h"
#include "common/memory_limit.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "proto/strata/v1/trainer.pb.h"
#include "proto/strata/v1/worker.pb.h"
#include "worker/agent/coordinator.h"
#include "worker/agent/options.h"
#include "worker/agent/process.h"
#include "worker/agent/rendezvous_relay.h"
#include "worker/agent/state_dir.h"
#include "worker/agent/telemetry_buffer.h"
#include "worker/agent/wear_log.h"
#include "worker/trainer_channel/frame.h"

namespace strata {

// What tasks share; everything outlives them.
struct TaskEnvironment {
  const AgentOptions* options = nullptr;
  const std::vector<double>* nvme_weights = nullptr;  // of options->nvme_paths
  bool gpu = false;                                   // tasks train on it
  std::string why_no_gpu;
  WearLog* wear = nullptr;
  const StateDir* state = nullptr;
  Spawner* spawner = nullptr;
  TelemetryBuffer* telemetry = nullptr;
  Coordinator* coordinator = nullptr;
  // Something changed that the coordinator should hear without delay. Called without locks; must not block.
  std::function<void()> changed;
};

class Task {
 public:
  // Begins at once.
  Task(const TaskEnvironment& environment, const v1::DesiredTask& desired);
  // Kills if still running, and waits for the end.
  ~Task();

  const TaskKey& key() const { return key_; }

  // Wants only rise: RUN < CHECKPOINT_AND_STOP < STOP < KILL. `why` is the cause the final report gives when
  // nothing better is known (FAILURE_CAUSE_UNSPECIFIED: it was the coordinator's wish). Does not block.
  void RaiseWant(v1::DesiredTask::Want want, v1::FailureCause why, const std::string& message);

  // Whether a stop asked of this task shall write a checkpoint first.
  bool checkpoint_on_stop() const { return checkpoint_on_stop_; }

  v1::TaskReport Report();
  // STOPPED is reported and nothing of the task is left.
  bool ended();

 private:
  // What a trainer's life came to.
  struct Outcome {
    bool started = false;
    bool killed_by_us = false;
    int wait_status = 0;
    absl::Status error;  // preparing or spawning failed, or the trainer broke the protocol
    v1::FailureCause error_cause = v1::TRAINER_CRASHED;
    bool killed_for_memory = false;  // by the kernel
    std::optional<v1::TrainerDone> done;
    std::string stderr_tail;
  };

  void Run();
  // Everything up to the running program; on failure *cause says whose fault it was.
  absl::Status Prepare(ChildProcess* child, v1::FailureCause* cause);
  SpawnRequest MakeSpawnRequest() const;
  v1::TrainerTask MakeTrainerTask() const;
  void Drive(ChildProcess& child, Outcome* outcome);
  void Escalate(const ChildProcess& child, Outcome* outcome);
  int64_t NextDeadline() const;
  void TakeNews(const v1::RendezvousResponse& news);
  void TakeOutbox();
  void FlushOutbox(const ChildProcess& child);
  // False at end of file or on an error, which goes to outcome->error when it is the trainer's fault.
  bool ReadChannel(const ChildProcess& child, Outcome* outcome);
  bool ReadLog(const Fd& pipe, const char* stream, int64_t* offset, Outcome* outcome);
  void CountWear(const v1::TrainerMessage& message);
  void Handle(v1::TrainerMessage message, Outcome* outcome);
  void HandlePhase(const v1::TrainerPhase& phase);
  void HandleMetrics(v1::MetricRow row);
  void CommitLoop();
  v1::CommitResult Commit(const v1::CommitCheckpointRequest& request);
  v1::TaskReport FinalReport(const Outcome& outcome);
  bool RemoveScratchWithRetries();
  void SetPhase(const std::string& phase);
  v1::DesiredTask::Want want();

  const TaskEnvironment env_;
  const TaskKey key_;
  const v1::DesiredTask desired_;
  const bool checkpoint_on_stop_;
  const std::vector<std::string> scratch_;  // a folder in each NVMe path
  const std::optional<MemoryKills> kills_before_;
  std::vector<int64_t> written_bytes_;  // to each, as the trainer said last; of the task's thread
  const std::string checkpoint_dir_;
  Fd wake_;  // eventfd: the driving thread looks at wants and outbox

  Mutex mu_;
  CondVar changed_;
  v1::DesiredTask::Want want_ ABSL_GUARDED_BY(mu_) = v1::DesiredTask::RUN;
  v1::FailureCause why_ ABSL_GUARDED_BY(mu_) = v1::FAILURE_CAUSE_UNSPECIFIED;
  std::string why_message_ ABSL_GUARDED_BY(mu_);
  v1::TaskReport report_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<v1::CommitCheckpointRequest> commits_ ABSL_GUARDED_BY(mu_);
  bool commits_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<v1::CommitResult> commit_results_ ABSL_GUARDED_BY(mu_);
  std::optional<v1::RendezvousResponse> news_ ABSL_GUARDED_BY(mu_);  // the latest, not in the outbox yet
  Cancellation cancel_commits_;
  RendezvousRelay relay_;

  // Of the driving thread only.
  FrameDecoder decoder_;
  std::string outbox_;  // bytes for the trainer that the socket has not taken yet
  v1::DesiredTask::Want sent_want_ = v1::DesiredTask::RUN;
  bool terminated_ = false;          // SIGTERM was sent
  int64_t escalate_at_ = INT64_MAX;  // next rung of the ladder towards SIGKILL, on the monotonic clock
  int64_t stdout_offset_ = 0, stderr_offset_ = 0;

  std::atomic<int64_t> last_telemetry_{0};  // sequence of the newest item of this task

  Thread commit_thread_;
  Thread thread_;
};

}  // namespace strata

#endif  // WORKER_AGENT_TASK_H_
