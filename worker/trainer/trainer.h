// Trainer: one attempt of one job in its own process. Prepares the engine, resumes or initialises, steps,
// evaluates, checkpoints, reports; talks only to the agent that started it (proto/strata/v1/trainer.proto).
//
// The agent's end of file ends this process at once: what was not committed does not exist.
#ifndef WORKER_TRAINER_TRAINER_H_
#define WORKER_TRAINER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "offload/checkpoint/file_ops.h"
#include "offload/device/accelerator.h"
#include "offload/exec/step_source.h"
#include "proto/job_spec/parameter_groups.h"
#include "proto/strata/v1/trainer.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/trainer/channel_rendezvous.h"
#include "worker/trainer/engine.h"
#include "worker/trainer/schedule.h"
#include "worker/trainer_channel/trainer_channel.h"

namespace strata {

class Trainer : private StepSource {
 public:
  explicit Trainer(TrainerChannel& channel)
      : channel_(channel),
        rendezvous_([this](const v1::TrainerMessage& message) { return channel_.Send(message); }) {}
  ~Trainer() override;

  // Receives the task, runs it to its end and sends TrainerDone. The process's exit code: 0 when the run
  // finished or was stopped as asked, 1 when it failed (TrainerDone says why).
  int Run();

 private:
  absl::Status RunTask(v1::TrainerDone& done);
  absl::Status TrainAndSave(v1::TrainerDone& done);
  absl::Status Prepare();
  absl::Status OpenData();
  absl::Status LoadStates();
  absl::Status Resume();
  absl::Status TrainToEnd();
  bool EvaluatesAfter(int64_t step) const;  // step: how many are made
  absl::StatusOr<double> Evaluate();        // the mean loss over data.eval
  void WriteTrace();
  absl::Status WriteCheckpoint();
  absl::Status FinishCheckpoint();
  absl::Status WaitForCommit();
  int64_t StepsToNextEvent() const;
  // What to do about gradients that stay not finite; `loss_scale` is that of the last step.
  std::string NumericAdvice(double loss_scale) const;
  void Listen();
  bool StopWanted() ABSL_LOCKS_EXCLUDED(mu_);
  bool CancelWanted() ABSL_LOCKS_EXCLUDED(mu_);
  void CancelRuns() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds what every message carries.
  absl::Status Send(v1::TrainerMessage& message);
  void SendPhase(const std::string& phase);
  void SendStep(const StepResult& result, const std::string& state_hash, std::optional<double> eval_loss);

  // StepSource
  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override;
  double GradientScale(int64_t step) override;
  AdamWHyper Hyper(int64_t applied, int group) const override;
  bool OnStep(const StepResult& result) override;

  TrainerChannel& channel_;
  ChannelRendezvous rendezvous_;  // where an attempt of several ranks meets; one rank says nothing
  v1::TrainerTask task_;
  std::unique_ptr<Accelerator> accelerator_;  // null: the CPU
  std::unique_ptr<Engine> engine_;
  std::optional<Dataset> data_;
  std::optional<Sampler> sampler_;
  Schedule schedule_;
  std::vector<GroupSettings> groups_;
  TrainerCounters counters_;
  int64_t skipped_total_ = 0;
  int64_t skipped_in_a_row_ = 0;
  absl::Status
      given_up_;  // too many steps were skipped in a row; stays, whatever the steps still in flight do
  int64_t last_checkpoint_ =
      -1;  // iterations of the newest written one; -1: none by this attempt or its resume
  float last_loss_ = 0;
  std::optional<StepResult> held_;  // the step whose row waits for its state hash or evaluation
  v1::RunResult result_;
  std::string started_from_;  // as in TaskReport
  FileOps* files_ = nullptr;

  Thread listener_;
  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // the run is over: the agent's end of file is no accident
  std::optional<v1::DesiredTask::Want> want_ ABSL_GUARDED_BY(mu_);
  bool runs_may_be_cancelled_ ABSL_GUARDED_BY(mu_) = false;  // the engine is there, and is not being closed
  // Steps of checkpoints. What is committed on disk: what the coordinator took of this attempt, and all up to
  // the one it started from. A commit without an answer may be one or not.
  std::set<int64_t> committed_ ABSL_GUARDED_BY(mu_), unanswered_ ABSL_GUARDED_BY(mu_);
  bool any_commit_taken_ ABSL_GUARDED_BY(mu_) = false;
  std::string commit_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // WORKER_TRAINER_TRAINER_H_
