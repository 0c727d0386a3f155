// A trainer against an agent played by the test: what a run does when the world around it fails.
#include "worker/trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/thread.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/export.h"
#include "proto/job_spec/plan_job.h"
#include "proto/job_spec/validate.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = int64_t{1} << 20;

class TrainerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/trainer_test_" + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_ + "/nvme").ok());
    text_ = folder_ + "/text.txt";
    std::string text;
    for (int i = 0; i < 5000; ++i) text += static_cast<char>('a' + i * i % 26);
    ASSERT_TRUE(WriteFileDurably(text_, text).ok());

    v1::JobSpec& spec = *task_.mutable_spec();
    spec.set_name("trainer-test");
    v1::ModelConfig& model = *spec.mutable_model()->mutable_config();
    model.set_architecture(v1::ARCHITECTURE_LLAMA);
    model.set_layers(1);
    model.set_hidden(16);
    model.set_heads(2);
    model.set_ffn(32);
    model.set_max_seq(16);
    spec.mutable_data()->add_train(text_);
    spec.mutable_data()->set_seq_len(16);
    v1::TrainingSpec& training = *spec.mutable_training();
    training.set_steps(4);
    training.set_global_batch(2);
    training.mutable_optimizer()->set_lr(1e-3);
    training.set_compute_threads(1);
    spec.mutable_memory()->set_device(16 * kMiB);
    spec.mutable_memory()->set_host(16 * kMiB);
    spec.mutable_memory()->set_nvme(16 * kMiB);
    ApplyDefaults(spec);
    task_.set_job_uid("job");
    task_.set_attempt(1);
    *task_.mutable_budget() = BudgetOf(spec, {});
    v1::NvmeScratch& scratch = *task_.add_nvme();
    scratch.set_path(folder_ + "/nvme");
    scratch.set_weight(1);
    task_.set_checkpoint_dir(folder_ + "/checkpoints/job");
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_).ok()); }

  // Runs the task to its end and returns its last message. Commits are granted; `on_row` sees every step.
  v1::TrainerDone Run(const std::function<void(const v1::MetricRow&)>& on_row = nullptr) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    TrainerChannel agent((Fd(fds[0]))), channel((Fd(fds[1])));
    agent_ = &agent;
    Thread trainer("trainer", [&] { exit_code_ = Trainer(channel).Run(); });
    v1::AgentMessage first;
    *first.mutable_task() = task_;
    EXPECT_TRUE(agent.Send(first).ok());
    v1::TrainerMessage message;
    std::vector<int64_t> withheld;
    while (agent.Receive(&message).ok() && !message.has_done()) {
      if (message.has_phase()) started_from_ = message.phase().started_from();
      if (message.has_metrics() && on_row) on_row(message.metrics());
      if (!message.has_commit()) continue;
      commits_.push_back(message.commit());
      withheld.push_back(message.commit().step());
      if (answers_ && !answers_(message.commit().step())) continue;
      for (const int64_t step : std::exchange(withheld, {})) {
        v1::AgentMessage answer;
        answer.mutable_committed()->set_step(step);
        answer.mutable_committed()->set_ok(true);
        EXPECT_TRUE(agent.Send(answer).ok());
      }
    }
    trainer.Join();
    EXPECT_TRUE(message.has_done());
    return message.done();
  }

  TrainerChannel* agent_ = nullptr;  // in Run
  std::string folder_, text_;
  std::vector<v1::CommitCheckpointRequest> commits_;
  // Whether the coordinator answers now, for all steps it has not answered; null: always.
  std::function<bool(int64_t step)> answers_;
  v1::TrainerTask task_;
  std::string started_from_;  // as the last phase told it
  int exit_code_ = -1;
};

TEST_F(TrainerTest, TrainsToTheEndAndTellsWhatEachStepCost) {
  int64_t rows = 0;
  const v1::TrainerDone done = Run([&](const v1::MetricRow& row) {
    ++rows;
    for (const char* name :
         {"step_ms", "tokens_per_s", "busy_ms.compute", "exposed_io_ms", "overlap_efficiency",
          "device_peak_bytes", "host_peak_bytes", "rss_bytes", "rss_peak_bytes"}) {
      ASSERT_TRUE(row.values().contains(name)) << name;
    }
    EXPECT_GT(row.values().at("step_ms"), 0);
    EXPECT_GT(row.values().at("busy_ms.compute"), 0);
    EXPECT_GT(row.values().at("rss_bytes"), 0);
    EXPECT_LT(row.ByteSizeLong(), 4096u) << row.DebugString();
  });
  EXPECT_EQ(rows, task_.spec().training().steps());
  EXPECT_EQ(exit_code_, 0);
  EXPECT_TRUE(done.finished()) << done.DebugString();
  EXPECT_TRUE(fs::exists(done.result().trace_path()));
  EXPECT_TRUE(fs::exists(done.result().checkpoint_path() + "/manifest.json"));
}

// The worker must not be blamed, and put into quarantine, for a text that somebody cut under the run.
TEST_F(TrainerTest, ATextThatShrinksIsInvalidData) {
  task_.mutable_spec()->mutable_training()->set_steps(1'000'000);
  const v1::TrainerDone done = Run([&](const v1::MetricRow&) {
    std::error_code error;
    fs::resize_file(text_, 10, error);
    EXPECT_FALSE(error) << error.message();
  });
  EXPECT_EQ(exit_code_, 1);
  EXPECT_FALSE(done.finished());
  EXPECT_EQ(done.failure().cause(), v1::INVALID_DATA) << done.failure().message();
  EXPECT_NE(done.failure().message().find(text_), std::string::npos) << done.failure().message();
}

TEST_F(TrainerTest, AnEvalTextThatShrinksIsInvalidData) {
  const std::string eval = folder_ + "/eval.txt";
  fs::copy_file(text_, eval);
  task_.mutable_spec()->mutable_data()->add_eval(eval);
  const v1::TrainerDone done = Run([&](const v1::MetricRow&) { fs::resize_file(eval, 10); });
  EXPECT_EQ(done.failure().cause(), v1::INVALID_DATA) << done.DebugString();
}

// The coordinator keeps one row of a step of an attempt.
TEST_F(TrainerTest, AnEvaluationIsInTheRowOfItsStep) {
  const std::string eval = folder_ + "/eval.txt";
  fs::copy_file(text_, eval);
  task_.mutable_spec()->mutable_data()->add_eval(eval);
  v1::TrainingSpec& training = *task_.mutable_spec()->mutable_training();
  training.set_eval_every_steps(2);
  const int64_t steps = training.steps();
  for (const bool hash : {false, true}) {
    training.set_report_state_hash(hash);
    std::map<int64_t, bool> evaluated;
    const v1::TrainerDone done = Run([&](const v1::MetricRow& row) {
      EXPECT_TRUE(row.values().contains("loss")) << row.step();
      EXPECT_EQ(row.values().contains("eval_perplexity"), row.values().contains("eval_loss"));
      EXPECT_EQ(row.texts().contains("state_hash"), hash);
      EXPECT_TRUE(evaluated.emplace(row.step(), row.values().contains("eval_loss")).second)
          << "two rows of step " << row.step();
    });
    EXPECT_TRUE(done.finished() && done.result().has_eval_loss()) << done.DebugString();
    ASSERT_EQ(evaluated.size(), steps);
    for (const auto& [step, was] : evaluated) EXPECT_EQ(was, step % 2 == 0 || step == steps) << step;
    fs::remove_all(folder_ + "/checkpoints/job");
  }
}

TEST_F(TrainerTest, ATraceThatCannotBeWrittenDoesNotLoseTheRun) {
  task_.set_trace_path(folder_ + "/a-folder");
  ASSERT_TRUE(MakeDirectories(folder_ + "/a-folder").ok());
  const v1::TrainerDone done = Run();
  EXPECT_EQ(exit_code_, 0);
  EXPECT_TRUE(done.finished()) << done.DebugString();
  EXPECT_EQ(done.result().trace_path(), "");
  EXPECT_TRUE(fs::exists(done.result().checkpoint_path() + "/manifest.json"));
  EXPECT_FALSE(fs::exists(folder_ + "/a-folder.tmp"));
}

TEST_F(TrainerTest, ADamagedModelFolderIsInvalidData) {
  const std::string checkpoint = Run().result().checkpoint_path();
  const std::string model = folder_ + "/model";
  ASSERT_TRUE(ExportHuggingFace(FileOps::Real(), checkpoint, model).ok());
  task_.set_job_uid("second");
  task_.set_checkpoint_dir(folder_ + "/checkpoints/second");
  task_.mutable_spec()->mutable_model()->set_from(model);
  EXPECT_TRUE(Run().finished()) << "the undamaged folder";

  fs::resize_file(model + "/model.safetensors", 1000);
  const v1::TrainerDone done = Run();
  EXPECT_FALSE(done.finished());
  EXPECT_EQ(done.failure().cause(), v1::INVALID_DATA) << done.DebugString();
  EXPECT_NE(done.failure().message().find("model.safetensors"), std::string::npos);
}

std::vector<int64_t> StepsIn(const std::string& folder) {
  std::vector<int64_t> steps;
  const absl::StatusOr<std::vector<CheckpointEntry>> entries = ListCheckpoints(folder);
  EXPECT_TRUE(entries.ok()) << entries.status();
  if (!entries.ok()) return steps;
  for (const CheckpointEntry& entry : *entries) steps.push_back(entry.step);
  return steps;
}

// A coordinator that is away for long takes none of what is written meanwhile: what it took last is what the
// next attempt resumes from.
TEST_F(TrainerTest, CommittedCheckpointsStayWhileNewerOnesWaitForAnAnswer) {
  task_.mutable_spec()->mutable_training()->set_steps(9);
  task_.mutable_spec()->mutable_checkpoint()->set_every_steps(1);
  task_.mutable_spec()->mutable_checkpoint()->set_keep_last(2);
  std::vector<int64_t> while_away;
  answers_ = [&](int64_t step) {
    if (step == 9) while_away = StepsIn(task_.checkpoint_dir());
    return step <= 3 || step == 9;
  };
  EXPECT_TRUE(Run().finished());
  // The trainer may have removed the oldest that waits by then, or not yet.
  EXPECT_THAT(while_away,
              ::testing::AnyOf(::testing::ElementsAre(9, 8, 3, 2), ::testing::ElementsAre(9, 8, 7, 3, 2)));
  EXPECT_EQ(StepsIn(task_.checkpoint_dir()), (std::vector<int64_t>{9, 8}));
}

// An attempt that lost its lease wrote what nobody took, at steps that this one has yet to reach.
TEST_F(TrainerTest, CheckpointsThatNobodyTookDoNotOustTheAttemptsOwn) {
  task_.mutable_spec()->mutable_checkpoint()->set_every_steps(1);
  task_.mutable_spec()->mutable_checkpoint()->set_keep_last(2);
  EXPECT_TRUE(Run().finished());
  ASSERT_EQ(StepsIn(task_.checkpoint_dir()), (std::vector<int64_t>{4, 3}));
  for (const char* stray : {"/step-000000000050", "/step-000000000060", "/step-000000000070"}) {
    fs::copy(commits_[3].path(), task_.checkpoint_dir() + stray, fs::copy_options::recursive);
  }
  v1::Checkpoint& from = *task_.add_resume();
  from.set_path(commits_[2].path());
  from.set_digest(commits_[2].digest());
  task_.mutable_spec()->mutable_training()->set_steps(6);
  std::map<int64_t, std::vector<int64_t>> at_commit;
  answers_ = [&](int64_t step) {
    at_commit[step] = StepsIn(task_.checkpoint_dir());
    return true;
  };
  EXPECT_TRUE(Run().finished());
  EXPECT_EQ(started_from_, "from the checkpoint of step 3");
  EXPECT_EQ(at_commit[4], (std::vector<int64_t>{70, 60, 50, 4, 3})) << "nothing is taken yet";
  EXPECT_EQ(StepsIn(task_.checkpoint_dir()), (std::vector<int64_t>{6, 5}));
}

// Whoever watches is told, or hours of work would be done again without a word.
TEST_F(TrainerTest, AnAttemptTellsFromWhichCheckpointItStartedAndWhichOnesItCouldNotUse) {
  task_.mutable_spec()->mutable_checkpoint()->set_every_steps(1);
  task_.mutable_spec()->mutable_checkpoint()->set_keep_last(10);
  EXPECT_TRUE(Run().finished());
  EXPECT_EQ(started_from_, "");
  ASSERT_GE(commits_.size(), 3u);
  for (size_t i = 3; i-- > 0;) {
    v1::Checkpoint& from = *task_.add_resume();
    from.set_path(commits_[i].path());
    from.set_digest(commits_[i].digest());
  }
  EXPECT_TRUE(Run().finished());
  EXPECT_EQ(started_from_, "from the checkpoint of step 3");

  const std::string newest = task_.resume(0).path(), second = task_.resume(1).path();
  fs::resize_file(newest + "/m.safetensors", 100);
  fs::remove(second + "/manifest.json");
  EXPECT_TRUE(Run().finished());
  EXPECT_EQ(started_from_.find("from the checkpoint of step 1; newer ones cannot be used: "), 0u)
      << started_from_;
  EXPECT_NE(started_from_.find(newest + " is not usable: DATA_LOSS"), std::string::npos) << started_from_;
  EXPECT_NE(started_from_.find(second + " is not usable: NOT_FOUND"), std::string::npos) << started_from_;
}

// The scaler is part of the checkpoint: what is skipped, and when the scale grows, goes on as if nothing had
// happened.
TEST_F(TrainerTest, AnFp16RunResumesToTheSameBits) {
  v1::TrainingSpec& training = *task_.mutable_spec()->mutable_training();
  training.set_precision(v1::PRECISION_FP16);
  training.set_steps(12);
  training.set_report_state_hash(true);
  training.mutable_loss_scale()->set_initial(0x1p24);
  training.mutable_loss_scale()->set_growth_interval(3);
  task_.mutable_spec()->mutable_checkpoint()->set_every_steps(1);
  task_.mutable_spec()->mutable_checkpoint()->set_keep_last(20);
  const auto rows = [&] {
    std::map<int64_t, std::string> all;
    const v1::TrainerDone done = Run([&](const v1::MetricRow& row) {
      all[row.step()] = row.texts().at("state_hash") + " " + std::to_string(row.values().at("loss_scale")) +
                        " " + (row.values().at("skipped") == 1 ? "1" : "0");
    });
    EXPECT_TRUE(done.finished()) << done.DebugString();
    return all;
  };
  const std::map<int64_t, std::string> whole = rows();
  ASSERT_EQ(whole.size(), 12u);
  EXPECT_EQ(whole.at(1).back(), '1') << "nothing overflows";
  const std::vector<v1::CommitCheckpointRequest> commits = commits_;
  ASSERT_EQ(commits.size(), 12u);
  for (const int64_t step : {2, 9, 10}) {
    task_.set_job_uid("again-" + std::to_string(step));
    task_.set_checkpoint_dir(folder_ + "/checkpoints/again-" + std::to_string(step));
    task_.clear_resume();
    v1::Checkpoint& from = *task_.add_resume();
    from.set_path(commits[step - 1].path());
    from.set_digest(commits[step - 1].digest());
    const std::map<int64_t, std::string> rest = rows();
    EXPECT_EQ(rest.size(), static_cast<size_t>(12 - step));
    for (const auto& [at, row] : rest) EXPECT_EQ(row, whole.at(at)) << "step " << at << " after " << step;
  }
}

// Weights that are not finite make every gradient so.
TEST_F(TrainerTest, TooManySkippedStepsInARowFailTheJobWithTheReason) {
  const std::string checkpoint = Run().result().checkpoint_path();
  const std::string model = folder_ + "/model";
  ASSERT_TRUE(ExportHuggingFace(FileOps::Real(), checkpoint, model, {.weights = StoredType::kF32}).ok());
  {
    std::fstream weights(model + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    weights.seekp(-4, std::ios::end);
    weights.write("\0\0\xC0\x7F", 4);
  }
  task_.set_job_uid("second");
  task_.set_checkpoint_dir(folder_ + "/checkpoints/second");
  v1::JobSpec& spec = *task_.mutable_spec();
  spec.mutable_model()->set_from(model);
  spec.mutable_training()->set_steps(1000);
  spec.mutable_training()->set_grad_clip(1);
  for (const auto& [limit, expected] : {std::pair(0, 20), std::pair(3, 3)}) {
    spec.mutable_training()->set_max_skipped_steps(limit);
    int64_t rows = 0, skipped = 0;
    std::string tensor;
    const v1::TrainerDone done = Run([&](const v1::MetricRow& row) {
      ++rows;
      skipped += row.values().at("skipped") == 1;
      tensor = row.texts().at("bad_tensor");
    });
    EXPECT_EQ(exit_code_, 1);
    EXPECT_FALSE(done.finished());
    EXPECT_EQ(done.failure().cause(), v1::NUMERIC) << done.DebugString();
    const std::string& message = done.failure().message();
    EXPECT_NE(message.find(std::to_string(expected) + " steps in a row"), std::string::npos) << message;
    EXPECT_NE(message.find("step " + std::to_string(expected) + ", the last of them,"), std::string::npos)
        << message;
    EXPECT_NE(message.find(tensor), std::string::npos) << message;
    EXPECT_EQ(rows, skipped);
    EXPECT_GE(rows, expected);
    EXPECT_LE(rows, expected + 1) << "at most one further step was in flight";
    EXPECT_NE(message.find("lower training.optimizer.lr"), std::string::npos) << message;
    EXPECT_EQ(message.find("loss_scale"), std::string::npos) << message;
    EXPECT_FALSE(fs::exists(task_.checkpoint_dir() + "/manifest.json"));
  }
  // In fp16 the scale is the first thing to look at; at its least, that.
  spec.mutable_training()->set_precision(v1::PRECISION_FP16);
  EXPECT_NE(Run().failure().message().find("training.loss_scale.initial (now 65536)"), std::string::npos);
  spec.mutable_training()->mutable_loss_scale()->set_min(65536);
  EXPECT_NE(Run().failure().message().find("training.loss_scale.min of 65536"), std::string::npos);
}

TEST_F(TrainerTest, AStopWithoutACheckpointIsNoFailureAndLeavesNone) {
  task_.mutable_spec()->mutable_training()->set_steps(1'000'000);
  int64_t rows = 0;
  const v1::TrainerDone done = Run([&](const v1::MetricRow&) {
    if (++rows != 3) return;
    v1::AgentMessage stop;
    stop.set_want(v1::DesiredTask::STOP);
    EXPECT_TRUE(agent_->Send(stop).ok());
  });
  EXPECT_EQ(exit_code_, 0);
  EXPECT_FALSE(done.finished());
  EXPECT_FALSE(done.has_failure()) << done.DebugString();
  EXPECT_GE(rows, 3);
  EXPECT_TRUE(commits_.empty());
  EXPECT_TRUE(fs::is_empty(folder_ + "/nvme"));
}

}  // namespace
}  // namespace strata
