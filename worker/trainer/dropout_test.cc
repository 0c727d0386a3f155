// Dropout in training jobs: what is dropped depends on nothing but the job, and evaluation drops nothing.
#include <cmath>
#include <cstring>
#include <string>

#include "gtest/gtest.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/checkpoint_writer.h"
#include "worker/trainer/engine_testing.h"

namespace strata {
namespace {

// Tokens as a function of (step, sequence in the global batch), so that any micro-batch cuts the same data.
class SequenceTokens : public RandomTokens {
 public:
  explicit SequenceTokens(const v1::JobSpec& spec) : RandomTokens(spec), seq_(spec.data().seq_len()) {}
  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    const int64_t n = static_cast<int64_t>(tokens.size());
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = micro_batch * n + i;
      const CounterRandom random(12, static_cast<uint64_t>(step * 1000 + row / seq_));
      tokens[i] = static_cast<int32_t>(random.Below(row % seq_, 256));
      targets[i] = static_cast<int32_t>(random.Below(row % seq_ + 1, 256));
    }
    return absl::OkStatus();
  }

 private:
  const int64_t seq_;
};

class DropoutTest : public EngineTest {
 protected:
  std::vector<StepResult> Train(const v1::JobSpec& spec, int64_t steps) {
    auto engine = Make(spec);
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Initialize(7).ok());
    SequenceTokens source(spec);
    TrainerCounters counters = StartOf(spec);
    EXPECT_TRUE((*engine)->train().Run(source, steps, counters).ok());
    EXPECT_TRUE((*engine)->Close().ok());
    return source.results;
  }
};

// Recompute policies are among the settings: what is computed again is dropped again.
TEST_F(DropoutTest, PlacementAndRecomputeAreInvisibleToTheResult) {
  const v1::JobSpec base = SmallDroppingGpt2();
  const std::string expected = Bits(base);
  ASSERT_FALSE(HasFailure());
  for (const Setting& setting : kSettings) {
    v1::JobSpec spec = base;
    setting.set(*spec.mutable_memory());
    EXPECT_EQ(Bits(spec), expected) << setting.name;
  }
  EXPECT_NE(Bits(SmallGpt2()), expected);
  v1::JobSpec other = base;
  other.mutable_training()->set_seed(8);
  EXPECT_NE(Bits(other), expected);
}

TEST_F(DropoutTest, UpdatesDoneAgainAndSkippedStepsDropTheSame) {
  v1::JobSpec base = SmallDroppingGpt2();
  base.mutable_training()->set_grad_clip(1e-3);
  Place(*base.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
  std::string expected;
  for (const v1::Mode mode : {v1::MODE_SYNC, v1::MODE_FORWARD_OVERLAP, v1::MODE_SPECULATIVE}) {
    v1::JobSpec spec = base;
    spec.mutable_memory()->set_mode(mode);
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    source.infinite_step_ = 1;
    TrainerCounters counters = StartOf(spec);
    ASSERT_TRUE((*engine)->train().Run(source, 4, counters).ok());
    EXPECT_TRUE(source.results[1].skipped);
    EXPECT_EQ(source.results[2].redone, mode == v1::MODE_SPECULATIVE);
    std::string bits = *(*engine)->StateHash(counters.iterations);
    for (const StepResult& result : source.results)
      bits += " " + std::to_string(std::bit_cast<uint32_t>(result.loss));
    if (expected.empty()) expected = bits;
    EXPECT_EQ(bits, expected) << v1::Mode_Name(mode);
    ASSERT_TRUE((*engine)->Close().ok());
  }
}

TEST_F(DropoutTest, ACheckpointResumesToTheSameBits) {
  const v1::JobSpec spec = SmallDroppingGpt2();
  Bits(spec);
  const std::string expected = final_hash_;
  std::string path;
  {
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    TrainerCounters counters;
    ASSERT_TRUE((*engine)->train().Run(source, 2, counters).ok());
    auto writer = CheckpointWriter::Create(FileOps::Real(), folder_ + "/checkpoints",
                                           {.job_uid = "job", .step = 2}, (*engine)->Tensors());
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*engine)->SaveTo(**writer, 2).ok());
    const auto written = (*writer)->Commit();
    ASSERT_TRUE(written.ok()) << written.status();
    path = written->path;
  }
  for (const char* name : {"all in device memory", "parameters and optimizer on NVMe", "recompute full"}) {
    v1::JobSpec changed = spec;
    SettingNamed(name).set(*changed.mutable_memory());
    auto engine = Make(changed);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto reader = CheckpointReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ASSERT_TRUE((*engine)->LoadCheckpoint(**reader, 2).ok());
    RandomTokens source(changed);
    TrainerCounters counters{.iterations = 2, .applied_steps = 2};
    ASSERT_TRUE((*engine)->train().Run(source, spec.training().steps() - 2, counters).ok());
    EXPECT_EQ(*(*engine)->StateHash(counters.iterations), expected) << name;
  }
}

TEST_F(DropoutTest, EvaluationDropsNothing) {
  const auto eval_loss = [&](const v1::JobSpec& spec) {
    auto engine = Make(spec);
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    TrainerCounters counters = StartOf(spec);
    EXPECT_TRUE((*engine)->eval().Run(source, 2, counters).ok());
    EXPECT_EQ(source.results.size(), 2u);
    return std::pair(source.results[0].loss, source.results[1].loss);
  };
  EXPECT_EQ(eval_loss(SmallDroppingGpt2()), eval_loss(SmallGpt2()));
}

// Sums round differently; what is dropped is the same.
TEST_F(DropoutTest, TheMicroBatchDoesNotShow) {
  v1::JobSpec spec = SmallDroppingGpt2();
  spec.mutable_training()->set_precision(v1::PRECISION_FP32);
  spec.mutable_training()->set_micro_batch(6);
  const std::vector<StepResult> whole = Train(spec, 3);
  for (const int micro_batch : {1, 2}) {
    spec.mutable_training()->set_micro_batch(micro_batch);
    const std::vector<StepResult> cut = Train(spec, 3);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(cut[i].loss, whole[i].loss, 1e-5) << micro_batch << " step " << i;
      EXPECT_NEAR(cut[i].grad_norm, whole[i].grad_norm, 1e-4 * whole[i].grad_norm)
          << micro_batch << " step " << i;
    }
  }
  // Without dropout the losses are others by much more than that.
  v1::JobSpec plain = SmallGpt2();
  plain.mutable_training()->set_precision(v1::PRECISION_FP32);
  EXPECT_GT(std::fabs(Train(plain, 1)[0].grad_norm - whole[0].grad_norm), 2e-3 * whole[0].grad_norm);
}

}  // namespace
}  // namespace strata
