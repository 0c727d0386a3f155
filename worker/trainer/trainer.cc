#include "worker/trainer/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/crc32c.h"
#include "common/fd.h"
#include "common/process_usage.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "offload/checkpoint/export.h"
#include "offload/device/cuda_plugin.h"
#include "offload/exec/step_metrics.h"
#include "proto/job_spec/plan_job.h"
#include "proto/job_spec/validate.h"
#include "spdlog/spdlog.h"
#include "worker/data/tokenizer.h"
#include "worker/ladder_proto/ladder_proto.h"
#include "worker/trainer/failure.h"

namespace strata {
namespace {

constexpr int kAgentGoneExitCode = 75;  // sysexits' EX_TEMPFAIL: another attempt may work

// Runs the eval windows, in order, as micro-batches; rows past the last window are masked.
class EvalSource : public StepSource {
 public:
  EvalSource(const EvalWindows& windows, int64_t micro_batch, int64_t seq)
      : windows_(windows), micro_batch_(micro_batch), seq_(seq) {}

  int64_t steps() const { return (windows_.count() + micro_batch_ - 1) / micro_batch_; }
  double loss() const { return tokens_ > 0 ? sum_ / tokens_ : 0; }

  absl::Status FillBatch(int64_t step, int64_t, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    const int64_t first = step * micro_batch_;
    const int64_t count = std::min(micro_batch_, windows_.count() - first);
    std::fill(tokens.begin() + count * seq_, tokens.end(), 0);
    std::fill(targets.begin() + count * seq_, targets.end(), -1);
    return WithCause(windows_.Read(first, count, tokens.first(count * seq_), targets.first(count * seq_)),
                     v1::INVALID_DATA);
  }
  double GradientScale(int64_t) override { return 0; }
  AdamWHyper Hyper(int64_t, int) const override { return {}; }
  bool OnStep(const StepResult& result) override {
    sum_ += result.loss_sum;
    tokens_ += result.tokens;
    return true;
  }

 private:
  const EvalWindows& windows_;
  const int64_t micro_batch_;
  const int64_t seq_;
  double sum_ = 0;
  double tokens_ = 0;
};

std::vector<NvmePath> NvmePathsOf(const v1::TrainerTask& task) {
  std::vector<NvmePath> paths;
  for (const v1::NvmeScratch& scratch : task.nvme()) paths.push_back({scratch.path(), scratch.weight()});
  return paths;
}

}  // namespace

Trainer::~Trainer() {
  if (listener_.joinable()) listener_.Join();
}

int Trainer::Run() {
  v1::AgentMessage first;
  if (absl::Status status = channel_.Receive(&first); !status.ok() || !first.has_task()) {
    spdlog::error("trainer: no task from the agent: {}", status.ToString());
    return kAgentGoneExitCode;
  }
  task_ = first.task();
  files_ = &FileOps::Real();
  listener_ = Thread("agent-messages", [this] { Listen(); });

  v1::TrainerMessage last;
  v1::TrainerDone& done = *last.mutable_done();
  absl::Status status = RunTask(done);
  if (engine_ != nullptr) {
    {
      MutexLock lock(mu_);
      runs_may_be_cancelled_ = false;
    }
    absl::Status closed = engine_->Close();
    if (status.ok()) status = closed;
  }
  if (!status.ok()) {
    done.set_finished(false);
    v1::Failure& failure = *done.mutable_failure();
    failure.set_cause(CauseOf(status));
    failure.set_attempt(task_.attempt());
    failure.set_rank(task_.rank());
    failure.set_message(std::string(status.message()));
    spdlog::error("trainer: {}", status.ToString());
  }
  {
    MutexLock lock(mu_);
    ended_ = true;
  }
  if (absl::Status sent = Send(last); !sent.ok()) {
    spdlog::error("trainer: the agent is gone: {}", sent.ToString());
    return kAgentGoneExitCode;
  }
  channel_.Shutdown();
  listener_.Join();
  return status.ok() ? 0 : 1;
}

// Runs on its own thread. An agent that is gone ends the process at once: a later attempt may already own the
// job, so nothing more may be written or committed.
void Trainer::Listen() {
  while (true) {
    v1::AgentMessage message;
    const absl::Status status = channel_.Receive(&message);
    if (status.ok() && message.has_rendezvous()) rendezvous_.Take(message.rendezvous());
    MutexLock lock(mu_);
    if (!status.ok()) {
      if (ended_) return;
      spdlog::error("trainer: the agent is gone, stopping: {}", status.ToString());
      _exit(kAgentGoneExitCode);
    }
    if (message.has_want()) {
      want_ = message.want();
      // No checkpoint is wanted: nobody needs the step in progress, which may take long.
      if (want_ == v1::DesiredTask::STOP) CancelRuns();
    }
    if (message.has_committed()) {
      unanswered_.erase(message.committed().step());
      if (message.committed().ok()) {
        committed_.insert(message.committed().step());
        any_commit_taken_ = true;
      } else {
        commit_error_ = message.committed().error();
      }
    }
    changed_.SignalAll();
  }
}

void Trainer::CancelRuns() {
  if (!runs_may_be_cancelled_) return;
  engine_->train().Cancel();
  engine_->eval().Cancel();
}

bool Trainer::CancelWanted() {
  MutexLock lock(mu_);
  return want_ == v1::DesiredTask::STOP;
}

bool Trainer::StopWanted() {
  MutexLock lock(mu_);
  return want_.has_value() || !commit_error_.empty();
}

absl::Status Trainer::Send(v1::TrainerMessage& message) {
  if (engine_ != nullptr) {
    for (const int64_t bytes : engine_->NvmeWrittenBytes()) message.add_nvme_written_bytes(bytes);
  }
  return channel_.Send(message);
}

void Trainer::SendPhase(const std::string& phase) {
  v1::TrainerMessage message;
  message.mutable_phase()->set_phase(phase);
  message.mutable_phase()->set_step(counters_.iterations);
  if (engine_ != nullptr) {
    for (const Rung& rung : engine_->ladder()) *message.mutable_phase()->add_ladder() = ToProto(rung);
  }
  message.mutable_phase()->set_started_from(started_from_);
  // An agent that is gone is noticed, and acted upon, by Listen.
  (void)Send(message);
}

absl::Status Trainer::RunTask(v1::TrainerDone& done) {
  SendPhase("PREPARING");
  STRATA_RETURN_IF_ERROR(Prepare());
  const absl::Status trained = TrainAndSave(done);
  // What a stop cut off is no failure: what is committed already is all there is.
  if (!(absl::IsCancelled(trained) && CancelWanted())) STRATA_RETURN_IF_ERROR(trained);
  WriteTrace();
  result_.set_train_loss(last_loss_);
  *done.mutable_result() = result_;
  return absl::OkStatus();
}

absl::Status Trainer::TrainAndSave(v1::TrainerDone& done) {
  STRATA_RETURN_IF_ERROR(LoadStates());
  STRATA_RETURN_IF_ERROR(TrainToEnd());
  std::optional<v1::DesiredTask::Want> want;
  {
    MutexLock lock(mu_);
    if (!commit_error_.empty())
      return absl::AbortedError(absl::StrCat("the coordinator refused a checkpoint: ", commit_error_));
    want = want_;
  }
  const bool finished = counters_.iterations == task_.spec().training().steps();
  // An attempt that had nothing left to train has not evaluated.
  if (finished && !result_.has_eval_loss() && EvaluatesAfter(counters_.iterations))
    STRATA_RETURN_IF_ERROR(Evaluate().status());
  // Stopped before the end without a wish for a checkpoint: what is committed already is all there is.
  if (finished || want == v1::DesiredTask::CHECKPOINT_AND_STOP) {
    if (last_checkpoint_ != counters_.iterations) STRATA_RETURN_IF_ERROR(WriteCheckpoint());
    STRATA_RETURN_IF_ERROR(WaitForCommit());
  }
  done.set_finished(finished);
  return absl::OkStatus();
}

// The model is trained and committed by now: a trace that cannot be written is no reason to lose the run.
void Trainer::WriteTrace() {
  std::string path = task_.trace_path();
  if (path.empty()) path = absl::StrCat(task_.checkpoint_dir(), "/trace-", task_.attempt(), ".json");
  const absl::Status written = WriteChromeTrace(path, engine_->train().plan(), engine_->train().traces());
  if (written.ok()) {
    result_.set_trace_path(path);
  } else {
    spdlog::warn("trainer: the run goes without its trace: {}", written.ToString());
  }
}

absl::Status Trainer::Prepare() {
  v1::JobSpec& spec = *task_.mutable_spec();
  ApplyDefaults(spec);
  if (const auto violations = Validate(spec); !violations.empty()) {
    return absl::InvalidArgumentError(FormatViolations("", violations));
  }
  STRATA_RETURN_IF_ERROR(WithCause(OpenData(), v1::INVALID_DATA));
  const v1::TrainingSpec& training = spec.training();
  schedule_ = {.name = training.schedule().name(),
               .lr = training.optimizer().lr(),
               .min_lr = training.schedule().min_lr(),
               .warmup_steps = training.schedule().warmup_steps(),
               .steps = training.steps()};
  groups_ = GroupSettingsOf(training);
  counters_ = StartOf(spec);

  if (task_.gpu()) {
    // The worker has found one and given its memory to the job: without it the CPU is no substitute.
    auto opened = OpenCudaPlugin(ProgramFolder(),
                                 [](const std::string& line) { spdlog::info("trainer: gpu: {}", line); });
    if (!opened.ok()) return WithCause(opened.status(), v1::DEVICE_FAULT);
    accelerator_ = *std::move(opened);
  }
  STRATA_ASSIGN_OR_RETURN(engine_, Engine::Create({.spec = spec,
                                                   .budget = task_.budget(),
                                                   .nvme = NvmePathsOf(task_),
                                                   .owner = task_.job_uid(),
                                                   .accelerator = {accelerator_.get(), task_.why_no_gpu()}}));
  {
    MutexLock lock(mu_);
    runs_may_be_cancelled_ = true;
    if (want_ == v1::DesiredTask::STOP) CancelRuns();  // it came before there was anything to cancel
  }
  v1::TrainerMessage plan;
  *plan.mutable_plan() = engine_->plan();
  (void)Send(plan);
  for (const Rung& rung : engine_->ladder()) {
    spdlog::info("trainer: {}: {}{}", FeatureName(rung.feature), rung.chosen,
                 rung.why.empty() ? "" : absl::StrCat(", because: ", rung.why));
  }
  return absl::OkStatus();
}

absl::Status Trainer::OpenData() {
  const v1::DataSpec& spec = task_.spec().data();
  STRATA_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(spec.tokenizer()),
                          "data.tokenizer");
  DataOptions options;
  options.train.assign(spec.train().begin(), spec.train().end());
  options.eval.assign(spec.eval().begin(), spec.eval().end());
  options.eval_fraction = spec.eval_fraction();
  options.seq_len = spec.seq_len();
  STRATA_ASSIGN_OR_RETURN(Dataset data, Dataset::Open(*tokenizer, options));
  data_.emplace(std::move(data));
  STRATA_ASSIGN_OR_RETURN(Sampler sampler,
                          Sampler::Create(data_->train(), spec.seq_len(), task_.spec().training().seed()));
  sampler_.emplace(std::move(sampler));
  return absl::OkStatus();
}

absl::Status Trainer::LoadStates() {
  SendPhase("LOADING");
  STRATA_RETURN_IF_ERROR(MakeDirectories(task_.checkpoint_dir()));
  // Only this attempt writes the folder: what earlier ones left unfinished is rubbish.
  STRATA_RETURN_IF_ERROR(SweepTemporary(*files_, task_.checkpoint_dir()));
  if (!task_.resume().empty()) return Resume();
  if (task_.spec().model().has_from()) return engine_->LoadHuggingFace(task_.spec().model().from());
  return engine_->Initialize(task_.spec().training().seed());
}

absl::Status Trainer::Resume() {
  std::vector<CheckpointCandidate> candidates;
  for (const v1::Checkpoint& checkpoint : task_.resume())
    candidates.push_back({checkpoint.path(), checkpoint.digest()});
  const absl::StatusOr<OpenedCheckpoint> found = OpenNewestValid(candidates);
  if (!found.ok()) return WithCause(Annotate(found.status(), "resuming"), v1::CHECKPOINT_CORRUPT);
  const OpenedCheckpoint& opened = *found;
  for (const std::string& reason : opened.rejected)
    spdlog::warn("trainer: a checkpoint is not valid: {}", reason);
  const Manifest& manifest = opened.reader->manifest();
  const absl::StatusOr<ModelConfig> model = ModelConfigFromJson(manifest.model_json);
  if (!model.ok()) {
    return WithCause(Annotate(model.status(), opened.reader->path()), v1::CHECKPOINT_CORRUPT);
  }
  if (!(*model == engine_->layout().config)) {
    return WithCause(absl::FailedPreconditionError(
                         absl::StrCat(opened.reader->path(), " holds another model than the job's")),
                     v1::CHECKPOINT_CORRUPT);
  }
  const auto extra = nlohmann::json::parse(manifest.state.extra_json, nullptr, false);
  if (!extra.is_object() || extra.value("data_fingerprint", "") != data_->fingerprint()) {
    return WithCause(
        absl::FailedPreconditionError(absl::StrCat(
            opened.reader->path(), " was written with other training data than data.train names now")),
        v1::INVALID_DATA);
  }
  STRATA_RETURN_IF_ERROR(engine_->LoadCheckpoint(*opened.reader, manifest.step));
  counters_ = {.iterations = manifest.step,
               .applied_steps = manifest.state.optimizer_step,
               .pending_scale = manifest.state.pending_scale,
               .loss_scale = {manifest.state.loss_scale, manifest.state.loss_scale_good_steps}};
  skipped_total_ = manifest.state.skipped_steps;
  skipped_in_a_row_ = extra.value("skipped_in_a_row", int64_t{0});
  last_loss_ = std::bit_cast<float>(extra.value("loss_bits", uint32_t{0}));
  last_checkpoint_ = manifest.step;
  result_.set_checkpoint_path(opened.reader->path());
  {
    STRATA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                            ListCheckpoints(task_.checkpoint_dir()));
    MutexLock lock(mu_);
    for (const CheckpointEntry& entry : entries) {
      if (entry.step <= manifest.step) committed_.insert(entry.step);
    }
  }
  started_from_ = absl::StrCat("from the checkpoint of step ", manifest.step);
  if (!opened.rejected.empty()) {
    absl::StrAppend(&started_from_, "; newer ones cannot be used: ", absl::StrJoin(opened.rejected, "; "));
  }
  spdlog::info("trainer: resumed from {} at step {}", opened.reader->path(), manifest.step);
  return absl::OkStatus();
}

std::string Trainer::NumericAdvice(double loss_scale) const {
  const v1::TrainingSpec& training = task_.spec().training();
  const std::string rest = absl::StrCat("lower training.optimizer.lr (now ", training.optimizer().lr(),
                                        "), set training.grad_clip, or look at the data");
  if (!training.has_loss_scale()) return absl::StrCat("Training diverges: ", rest);
  if (loss_scale > training.loss_scale().min()) {
    return absl::StrCat("The loss scale was still ", loss_scale,
                        ": start lower with training.loss_scale.initial (now ",
                        training.loss_scale().initial(),
                        "), or raise training.max_skipped_steps; if that does not help, ", rest);
  }
  return absl::StrCat("The loss scale is at its training.loss_scale.min of ", loss_scale,
                      ": lower that, use training.precision: bf16, or ", rest);
}

int64_t Trainer::StepsToNextEvent() const {
  const v1::JobSpec& spec = task_.spec();
  int64_t end = spec.training().steps();
  const auto until = [&](int64_t every) {
    if (every > 0) end = std::min(end, (counters_.iterations / every + 1) * every);
  };
  until(spec.checkpoint().every_steps());
  until(spec.training().eval_every_steps());
  if (spec.training().report_state_hash()) until(1);
  return end - counters_.iterations;
}

absl::Status Trainer::TrainToEnd() {
  const v1::JobSpec& spec = task_.spec();
  SendPhase("STEPPING");
  while (counters_.iterations < spec.training().steps() && !StopWanted()) {
    STRATA_RETURN_IF_ERROR(engine_->train().Run(*this, StepsToNextEvent(), counters_));
    std::string hash;
    if (spec.training().report_state_hash() && held_.has_value()) {
      STRATA_ASSIGN_OR_RETURN(hash, engine_->StateHash(counters_.iterations));
    }
    absl::Status status = given_up_;
    std::optional<double> eval_loss;
    if (status.ok() && EvaluatesAfter(counters_.iterations)) {
      const absl::StatusOr<double> evaluated = Evaluate();
      if (evaluated.ok()) eval_loss = *evaluated;
      status = evaluated.status();
    }
    // Before a checkpoint, which covers only steps that are told; a step has one row, which is never amended.
    if (held_.has_value()) SendStep(*std::exchange(held_, std::nullopt), hash, eval_loss);
    STRATA_RETURN_IF_ERROR(status);
    const int64_t every = spec.checkpoint().every_steps();
    if (every > 0 && counters_.iterations % every == 0) STRATA_RETURN_IF_ERROR(WriteCheckpoint());
  }
  return absl::OkStatus();
}

bool Trainer::EvaluatesAfter(int64_t step) const {
  const int64_t every = task_.spec().training().eval_every_steps();
  return data_->eval().size() > 0 &&
         (step == task_.spec().training().steps() || (every > 0 && step % every == 0));
}

absl::StatusOr<double> Trainer::Evaluate() {
  STRATA_ASSIGN_OR_RETURN(const EvalWindows windows,
                          EvalWindows::Create(data_->eval(), task_.spec().data().seq_len()));
  EvalSource source(windows, engine_->layout().micro_batch, engine_->layout().seq);
  TrainerCounters at = counters_;
  STRATA_RETURN_IF_ERROR(engine_->eval().Run(source, source.steps(), at), "evaluation after step ",
                         at.iterations);
  result_.set_eval_loss(source.loss());
  result_.set_eval_perplexity(std::exp(source.loss()));
  spdlog::info("trainer: step {}: eval loss {:.4f}, perplexity {:.3f}", counters_.iterations, source.loss(),
               std::exp(source.loss()));
  return source.loss();
}

absl::Status Trainer::WriteCheckpoint() {
  SendPhase("CHECKPOINTING");
  const v1::TrainingSpec& training = task_.spec().training();
  CheckpointDescription description;
  description.job_uid = task_.job_uid();
  description.attempt = task_.attempt();
  description.step = counters_.iterations;
  description.model_json = ModelConfigToJson(engine_->layout().config);
  description.state.optimizer_step = counters_.applied_steps;
  description.state.pending_scale = counters_.pending_scale;
  description.state.moments = engine_->layout().moments;
  description.state.data_cursor = counters_.iterations * training.global_batch();
  description.state.seed = training.seed();
  description.state.loss_scale = counters_.loss_scale.scale;
  description.state.loss_scale_good_steps = counters_.loss_scale.good_steps;
  description.state.skipped_steps = skipped_total_;
  description.state.tokens = counters_.iterations * training.global_batch() * task_.spec().data().seq_len();
  description.state.extra_json = nlohmann::json{{"data_fingerprint", data_->fingerprint()},
                                                {"loss_bits", std::bit_cast<uint32_t>(last_loss_)},
                                                {"skipped_in_a_row", skipped_in_a_row_},
                                                {"tokenizer", task_.spec().data().tokenizer()},
                                                {"precision", Name(engine_->layout().compute_dtype)}}
                                     .dump();
  STRATA_ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::Create(*files_, task_.checkpoint_dir(), std::move(description), engine_->Tensors()));
  STRATA_RETURN_IF_ERROR(engine_->SaveTo(*writer, counters_.iterations), "checkpoint of step ",
                         counters_.iterations);
  STRATA_ASSIGN_OR_RETURN(const WrittenCheckpoint written, writer->Commit());
  last_checkpoint_ = counters_.iterations;
  result_.set_checkpoint_path(written.path);

  v1::TrainerMessage message;
  v1::CommitCheckpointRequest& commit = *message.mutable_commit();
  commit.set_job_uid(task_.job_uid());
  commit.set_attempt(task_.attempt());
  commit.set_step(counters_.iterations);
  commit.set_path(written.path);
  commit.set_digest(written.digest);
  commit.set_bytes(written.bytes);
  commit.set_request_id(absl::StrCat(task_.job_uid(), "-", task_.attempt(), "-", counters_.iterations));
  for (const ManifestFile& file : written.manifest.files) {
    v1::CheckpointFile* entry = commit.add_files();
    entry->set_path(file.name);
    entry->set_bytes(file.bytes);
    entry->set_crc32c(file.crc32c);
  }
  // Downloads need it too; it lists all files but itself.
  STRATA_ASSIGN_OR_RETURN(const std::string manifest,
                          ReadFile(absl::StrCat(written.path, "/", kManifestName), kManifestLimitBytes));
  v1::CheckpointFile* entry = commit.add_files();
  entry->set_path(kManifestName);
  entry->set_bytes(static_cast<int64_t>(manifest.size()));
  entry->set_crc32c(Crc32c(manifest.data(), manifest.size()));
  {
    MutexLock lock(mu_);
    unanswered_.insert(counters_.iterations);
  }
  STRATA_RETURN_IF_ERROR(Send(message));
  spdlog::info("trainer: checkpoint of step {} in {}", counters_.iterations, written.path);
  STRATA_RETURN_IF_ERROR(FinishCheckpoint());
  SendPhase("STEPPING");
  return absl::OkStatus();
}

// Of the committed checkpoints the newest keep_last stay, however many newer ones wait for an answer (which
// may never come): what resumes is a committed one. Of those that wait, as many. Others are of attempts that
// were not allowed to commit them; they go once the coordinator has taken one of this attempt.
absl::Status Trainer::FinishCheckpoint() {
  STRATA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries,
                          ListCheckpoints(task_.checkpoint_dir()));
  std::set<int64_t> doomed;
  {
    MutexLock lock(mu_);
    int committed = 0, unanswered = 0;
    const int keep = task_.spec().checkpoint().keep_last();
    for (const CheckpointEntry& entry : entries) {  // newest first
      const int64_t step = entry.step;
      const bool stays = committed_.contains(step)    ? ++committed <= keep
                         : unanswered_.contains(step) ? ++unanswered <= keep
                                                      : !any_commit_taken_;
      if (!stays) doomed.insert(step);
    }
  }
  return RemoveCheckpoints(*files_, task_.checkpoint_dir(), doomed);
}

absl::Status Trainer::WaitForCommit() {
  {
    MutexLock lock(mu_);
    while (!unanswered_.empty() && commit_error_.empty()) changed_.Wait(mu_);
    if (!commit_error_.empty()) {
      return absl::AbortedError(absl::StrCat("the coordinator refused the checkpoint: ", commit_error_));
    }
  }
  return FinishCheckpoint();
}

absl::Status Trainer::FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                                std::span<int32_t> targets) {
  const int64_t global = task_.spec().training().global_batch();
  const int64_t per_micro_batch = engine_->layout().micro_batch;
  // A text that changed under the run is the job's affair: it must not be taken for a broken NVMe drive.
  return WithCause(
      sampler_->Read(step * global + micro_batch * per_micro_batch, per_micro_batch, tokens, targets),
      v1::INVALID_DATA);
}

double Trainer::GradientScale(int64_t) {
  // The tokenizer masks nothing, so every step has the same number of tokens.
  return 1.0 / (static_cast<double>(task_.spec().training().global_batch()) *
                static_cast<double>(task_.spec().data().seq_len()));
}

AdamWHyper Trainer::Hyper(int64_t applied, int group) const {
  AdamWHyper hyper = groups_[group].hyper;
  hyper.lr = groups_[group].lr_scale * schedule_.LearningRate(applied);
  return hyper;
}

bool Trainer::OnStep(const StepResult& result) {
  last_loss_ = result.loss;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  if (result.skipped) {
    ++skipped_total_;
    spdlog::warn("trainer: step {} skipped: the gradient of {} is not finite", result.step + 1,
                 result.bad_tensor);
  }
  if (given_up_.ok() && skipped_in_a_row_ >= task_.spec().training().max_skipped_steps()) {
    given_up_ =
        WithCause(absl::FailedPreconditionError(absl::StrCat(
                      skipped_in_a_row_,
                      " steps in a row (training.max_skipped_steps) had a gradient that is not finite; ",
                      "in step ", result.step + 1, ", the last of them, that of ", result.bad_tensor, ". ",
                      NumericAdvice(result.loss_scale))),
                  v1::NUMERIC);
  }
  if (task_.spec().training().report_state_hash() || EvaluatesAfter(result.step + 1)) {
    held_ = result;
  } else {
    SendStep(result, "", std::nullopt);
  }
  return !StopWanted() && given_up_.ok();
}

void Trainer::SendStep(const StepResult& result, const std::string& state_hash,
                       std::optional<double> eval_loss) {
  const StepPlan& plan = engine_->train().plan();
  v1::TrainerMessage message;
  v1::MetricRow& row = *message.mutable_metrics();
  row.set_job_uid(task_.job_uid());
  row.set_attempt(task_.attempt());
  row.set_rank(task_.rank());
  row.set_step(result.step + 1);
  auto& values = *row.mutable_values();
  const auto high_water = engine_->HighWaterBytes(result);
  for (int tier = 0; tier < kTierCount; ++tier) {
    values[absl::StrCat(Name(static_cast<Tier>(tier)), "_peak_bytes")] =
        static_cast<double>(high_water[tier]);
  }
  const ProcessUsage usage = ReadProcessUsage();
  values["rss_bytes"] = static_cast<double>(usage.rss_bytes);
  values["rss_peak_bytes"] = static_cast<double>(usage.rss_peak_bytes);
  const v1::MachineProfile& machine = engine_->plan().machine();
  VisitStepMetrics(plan, result,
                   {machine.nvme_read_bytes_per_second(), machine.nvme_write_bytes_per_second()},
                   [&](const std::string& name, double value) { values[name] = value; });
  if (const auto written = values.find("nvme_lifetime_written_bytes"); written != values.end())
    written->second += static_cast<double>(task_.nvme_written_bytes());
  if (eval_loss.has_value()) {
    values["eval_loss"] = *eval_loss;
    values["eval_perplexity"] = std::exp(*eval_loss);
  }
  auto& texts = *row.mutable_texts();
  texts["loss_bits"] = absl::StrFormat("%08x", std::bit_cast<uint32_t>(result.loss));
  if (!state_hash.empty()) texts["state_hash"] = state_hash;
  if (result.skipped) texts["bad_tensor"] = result.bad_tensor;
  (void)Send(message);
}

}  // namespace strata
