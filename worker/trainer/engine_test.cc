// The promises of the engine on small real models: placement is invisible to the result (bits), budgets hold,
// the plan's peaks are the run's.
#include "worker/trainer/engine.h"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/random.h"
#include "common/status.h"
#include "gtest/gtest.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/io/path_probe.h"
#include "proto/job_spec/plan_job.h"
#include "proto/job_spec/validate.h"
#include "worker/trainer/schedule.h"

namespace strata {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

v1::JobSpec SmallLlama() {
  v1::JobSpec spec;
  spec.set_name("engine-test");
  v1::ModelConfig& model = *spec.mutable_model()->mutable_config();
  model.set_architecture(v1::ARCHITECTURE_LLAMA);
  model.set_layers(3);
  model.set_hidden(48);
  model.set_heads(4);
  model.set_kv_heads(2);
  model.set_ffn(80);
  model.set_vocab(256);
  model.set_max_seq(32);
  spec.mutable_data()->add_train("unused");
  spec.mutable_data()->set_seq_len(24);
  v1::TrainingSpec& training = *spec.mutable_training();
  training.set_steps(5);
  training.set_global_batch(6);
  training.set_micro_batch(2);
  training.mutable_optimizer()->set_lr(3e-3);
  training.set_grad_clip(1.0);
  training.set_seed(7);
  spec.mutable_memory()->set_device(64 * kMiB);
  spec.mutable_memory()->set_host(64 * kMiB);
  spec.mutable_memory()->set_nvme(256 * kMiB);
  spec.mutable_memory()->set_chunk(32 * 1024);
#ifdef STRATA_SANITIZE
  // ThreadSanitizer does not see the barriers of libgomp, which is not built for it.
  training.set_compute_threads(1);
#endif
  ApplyDefaults(spec);
  return spec;
}

v1::JobSpec SmallGpt2() {
  v1::JobSpec spec = SmallLlama();
  v1::ModelConfig& model = *spec.mutable_model()->mutable_config();
  model.set_architecture(v1::ARCHITECTURE_GPT2);
  model.set_kv_heads(4);
  model.clear_tied_head();
  model.set_activation(v1::ACTIVATION_GELU_TANH);
  ApplyDefaults(spec);
  return spec;
}

// Random tokens as a function of (step, micro-batch), so that every setting sees the same data.
class RandomTokens : public StepSource {
 public:
  explicit RandomTokens(const v1::JobSpec& spec) : spec_(spec) {}
  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    const CounterRandom random(11, static_cast<uint64_t>(step * 1000 + micro_batch));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(random.Below(i, 256));
      targets[i] = static_cast<int32_t>(random.Below(i + 1, 256));
    }
    if (step == poison_step_) targets[0] = poison_target_;
    return absl::OkStatus();
  }
  double GradientScale(int64_t step) override {
    if (step == infinite_step_) return std::numeric_limits<double>::infinity();
    return scale_ / (spec_.training().global_batch() * spec_.data().seq_len());
  }
  AdamWHyper Hyper(int64_t applied) const override { return {.lr = 3e-3 / static_cast<double>(1 + applied)}; }
  bool OnStep(const StepResult& result) override {
    results.push_back(result);
    return true;
  }

  std::vector<StepResult> results;
  double scale_ = 1;
  int64_t infinite_step_ = -1;
  int64_t poison_step_ = -1;
  int32_t poison_target_ = -1;

 private:
  const v1::JobSpec& spec_;
};

class EngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/engine_test_" + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
    const auto info = ProbePath(folder_);
    ASSERT_TRUE(info.ok()) << info.status();
    direct_ = info->o_direct;
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_).ok()); }

  absl::StatusOr<std::unique_ptr<Engine>> Make(v1::JobSpec spec) {
    if (!direct_) spec.mutable_memory()->set_direct_io(v1::DIRECT_IO_OFF);
    std::vector<NvmePath> paths;
    for (size_t i = 0; i < path_weights_.size(); ++i) {
      paths.push_back({folder_ + "/nvme" + std::to_string(i), path_weights_[i]});
      STRATA_RETURN_IF_ERROR(MakeDirectories(paths.back().path));
    }
    return Engine::Create({.spec = spec, .budget = BudgetOf(spec, {}), .nvme = paths, .owner = "job"});
  }

  // Losses, norms and the state hash after each step, as one comparable text.
  std::string Bits(const v1::JobSpec& spec, bool hash_each_step = true) {
    auto engine = Make(spec);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return engine.status().ToString();
    EXPECT_TRUE((*engine)->Initialize(spec.training().seed()).ok());
    RandomTokens source(spec);
    TrainerCounters counters;
    std::string bits;
    const int64_t steps = spec.training().steps();
    for (int64_t i = 0; i < (hash_each_step ? steps : 1); ++i) {
      const absl::Status ran = (*engine)->train().Run(source, hash_each_step ? 1 : steps, counters);
      EXPECT_TRUE(ran.ok()) << ran;
      if (!ran.ok()) return ran.ToString();
      if (hash_each_step) {
        const auto hash = (*engine)->StateHash(counters.iterations);
        EXPECT_TRUE(hash.ok()) << hash.status();
        if (hash.ok()) bits += *hash + "\n";
      }
    }
    final_hash_ = (*engine)->StateHash(counters.iterations).value_or("?");
    losses_.clear();
    redone_ = 0;
    for (const StepResult& result : source.results) redone_ += result.redone;
    for (const StepResult& result : source.results)
      losses_ += std::to_string(std::bit_cast<uint32_t>(result.loss)) + " ";
    EXPECT_EQ(source.results.size(), static_cast<size_t>(steps));
    // The plan is the run: the highest byte that was handed out is the highest byte of the plan.
    for (int tier = 0; tier < kTierCount; ++tier) {
      EXPECT_EQ((*engine)->HighWaterBytes(source.results.back())[tier],
                (*engine)->planned().train.arena_bytes[tier])
          << Name(static_cast<Tier>(tier));
    }
    EXPECT_TRUE((*engine)->Close().ok());
    return bits + losses_;
  }

  std::string folder_;
  bool direct_ = false;
  std::vector<double> path_weights_ = {1};
  std::string losses_;
  std::string final_hash_;
  int redone_ = 0;  // steps of the last Bits()
};

struct Setting {
  const char* name;
  std::function<void(v1::MemorySpec&)> set;
};

void Place(v1::MemorySpec& memory, v1::Tier params, v1::Tier gradients, v1::Tier optimizer,
           v1::Tier activations) {
  memory.mutable_placement()->set_params(params);
  memory.mutable_placement()->set_gradients(gradients);
  memory.mutable_placement()->set_optimizer(optimizer);
  memory.mutable_placement()->set_activations(activations);
}

const Setting kSettings[] = {
    {"all in device memory",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_DEVICE, v1::TIER_DEVICE, v1::TIER_DEVICE, v1::TIER_DEVICE); }},
    {"all in host memory",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_HOST, v1::TIER_HOST, v1::TIER_HOST, v1::TIER_HOST); }},
    {"parameters and optimizer on NVMe",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST); }},
    {"parameters on the device, optimizer on NVMe",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_DEVICE); }},
    {"gradients on the device, optimizer in the host",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_HOST, v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_DEVICE); }},
    {"mixed: NVMe parameters, host optimizer",
     [](v1::MemorySpec& m) { Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_HOST, v1::TIER_DEVICE); }},
    {"mode sync", [](v1::MemorySpec& m) { m.set_mode(v1::MODE_SYNC); }},
    {"mode sync on NVMe",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_mode(v1::MODE_SYNC);
     }},
    {"recompute full", [](v1::MemorySpec& m) { m.set_recompute(v1::RECOMPUTE_FULL); }},
    {"recompute none", [](v1::MemorySpec& m) { m.set_recompute(v1::RECOMPUTE_NONE); }},
    {"prefetch 1, one I/O thread, NVMe",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_prefetch_depth(1);
       m.set_io_threads(1);
     }},
    {"prefetch 2, two I/O threads, NVMe",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_prefetch_depth(2);
       m.set_io_threads(2);
     }},
    {"prefetch 4, four I/O threads, chunks of another size",
     [](v1::MemorySpec& m) {
       Place(m, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
       m.set_prefetch_depth(4);
       m.set_io_threads(4);
       m.set_chunk(100'000);
     }},
    {"one chunk per unit", [](v1::MemorySpec& m) { m.set_chunk(8 * kMiB); }},
};

TEST_F(EngineTest, PlacementIsInvisibleToTheResult) {
  for (const auto& [what, base] :
       {std::pair("llama bf16", SmallLlama()), std::pair("gpt2 bf16", SmallGpt2())}) {
    const std::string expected = Bits(base);
    ASSERT_FALSE(HasFailure());
    for (const Setting& setting : kSettings) {
      v1::JobSpec spec = base;
      setting.set(*spec.mutable_memory());
      EXPECT_EQ(Bits(spec), expected) << what << ": " << setting.name;
    }
  }
}

TEST_F(EngineTest, TheNumberOfNvmePathsIsInvisibleToTheResult) {
  v1::JobSpec spec = SmallLlama();
  Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
  const std::string expected = Bits(spec);
  ASSERT_FALSE(HasFailure());
  for (const std::vector<double>& weights : {std::vector<double>{1, 1, 1}, {3, 1, 0.2}}) {
    path_weights_ = weights;
    EXPECT_EQ(Bits(spec), expected) << weights[0] << " " << weights[1] << " " << weights[2];
  }
}

TEST_F(EngineTest, StepsThatOverlapGiveTheSameBitsAsStepsOneByOne) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = SmallLlama();
    spec.mutable_training()->set_precision(precision);
    spec.mutable_training()->set_steps(12);
    Bits(spec, /*hash_each_step=*/true);
    const std::string losses = losses_;
    const std::string hash = final_hash_;
    for (const Setting& setting : kSettings) {
      v1::JobSpec changed = spec;
      setting.set(*changed.mutable_memory());
      Bits(changed, /*hash_each_step=*/false);
      EXPECT_EQ(losses_, losses) << setting.name;
      EXPECT_EQ(final_hash_, hash) << setting.name;
    }
  }
}

TEST_F(EngineTest, ModesWithoutClippingAgree) {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_training()->set_grad_clip(0);
  spec.mutable_memory()->set_mode(v1::MODE_SYNC);
  const std::string expected = Bits(spec);
  for (const v1::Mode mode : {v1::MODE_OVERLAP, v1::MODE_FORWARD_OVERLAP, v1::MODE_SPECULATIVE}) {
    for (const Setting& setting : kSettings) {
      v1::JobSpec changed = spec;
      setting.set(*changed.mutable_memory());
      changed.mutable_memory()->set_mode(mode);
      EXPECT_EQ(Bits(changed), expected) << v1::Mode_Name(mode) << ", " << setting.name;
    }
  }
}

TEST_F(EngineTest, TheSmallestPlanRunsToTheSameBitsAndOneByteLessIsRefused) {
  const v1::JobSpec base = SmallLlama();
  const std::string expected = Bits(base);
  v1::JobSpec spec = base;
  for (const auto& [tier, set] :
       {std::pair(0, &v1::MemorySpec::set_device), std::pair(1, &v1::MemorySpec::set_host)}) {
    const auto plan = PlanJob(spec, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const int64_t minimum = plan->tiers(tier).minimum_bytes();
    (spec.mutable_memory()->*set)(minimum);
    EXPECT_EQ(Bits(spec), expected) << "minimum of " << plan->tiers(tier).tier() << ": " << minimum;
    v1::JobSpec less = spec;
    (less.mutable_memory()->*set)(minimum - 1);
    const auto refused = PlanJob(less, {});
    ASSERT_TRUE(refused.ok()) << refused.status();
    ASSERT_FALSE(refused->fits());
    EXPECT_EQ(refused->shortfalls(0).resource(), plan->tiers(tier).tier());
    EXPECT_EQ(refused->shortfalls(0).requested(), minimum);
    EXPECT_FALSE(refused->shortfalls(0).remedy().empty());
    EXPECT_FALSE(Make(less).ok());
  }
}

TEST_F(EngineTest, TheSmallestDeviceBudgetDoesNotGrowWithDepth) {
  int64_t minimum = 0;
  for (const int layers : {6, 12, 24}) {
    v1::JobSpec spec = SmallLlama();
    spec.mutable_model()->mutable_config()->set_layers(layers);
    const auto plan = PlanJob(spec, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    if (minimum == 0) minimum = plan->tiers(0).minimum_bytes();
    EXPECT_EQ(plan->tiers(0).minimum_bytes(), minimum) << layers << " layers";
  }
}

TEST_F(EngineTest, AStepWithANonFiniteGradientChangesNothing) {
  for (const Setting& setting : kSettings) {
    v1::JobSpec spec = SmallLlama();
    setting.set(*spec.mutable_memory());
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    source.infinite_step_ = 2;
    TrainerCounters counters;
    ASSERT_TRUE((*engine)->train().Run(source, 2, counters).ok());
    const std::string before = *(*engine)->StateHash(counters.iterations);
    ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
    EXPECT_EQ(*(*engine)->StateHash(counters.iterations), before) << setting.name;
    EXPECT_EQ(counters.iterations, 3);
    EXPECT_EQ(counters.applied_steps, 2);
    EXPECT_TRUE(source.results.back().skipped);
    EXPECT_FALSE(source.results.back().bad_tensor.empty());
    ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
    EXPECT_NE(*(*engine)->StateHash(counters.iterations), before) << setting.name;
    EXPECT_EQ(counters.applied_steps, 3);
  }
}

// In modes that update before they can know, what was updated is done again from the versions before.
TEST_F(EngineTest, AStepWithANonFiniteGradientChangesNothingInAnyMode) {
  for (const v1::Mode mode :
       {v1::MODE_SYNC, v1::MODE_OVERLAP, v1::MODE_FORWARD_OVERLAP, v1::MODE_SPECULATIVE}) {
    for (const v1::Tier params : {v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_NVME}) {
      v1::JobSpec spec = SmallLlama();
      spec.mutable_training()->set_grad_clip(0);
      Place(*spec.mutable_memory(), params, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
      spec.mutable_memory()->set_mode(mode);
      const std::string name = absl::StrCat(v1::Mode_Name(mode), ", parameters on ", v1::Tier_Name(params));
      auto engine = Make(spec);
      ASSERT_TRUE(engine.ok()) << engine.status();
      ASSERT_TRUE((*engine)->Initialize(7).ok());
      RandomTokens source(spec);
      source.infinite_step_ = 1;
      TrainerCounters counters;
      ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
      const std::string before = *(*engine)->StateHash(counters.iterations);
      ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok()) << name;
      EXPECT_EQ(*(*engine)->StateHash(counters.iterations), before) << name;
      EXPECT_EQ(counters.applied_steps, 1) << name;
      EXPECT_TRUE(source.results.back().skipped) << name;
      EXPECT_EQ(source.results.back().redone, mode == v1::MODE_OVERLAP || mode == v1::MODE_SPECULATIVE)
          << name;
      // Two steps in one run: the next one starts before this one is committed.
      source.infinite_step_ = 3;
      ASSERT_TRUE((*engine)->train().Run(source, 4, counters).ok()) << name;
      EXPECT_EQ(counters.applied_steps, 4) << name;
    }
  }
}

TEST_F(EngineTest, SpeculativeUpdatesThatAreClippedAreDoneAgainToTheSameBits) {
  for (const double clip : {1e-3, 2.0, 1e6}) {
    v1::JobSpec spec = SmallLlama();
    spec.mutable_training()->set_grad_clip(clip);
    Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
    spec.mutable_memory()->set_mode(v1::MODE_SYNC);
    const std::string expected = Bits(spec);
    EXPECT_EQ(redone_, 0);
    spec.mutable_memory()->set_mode(v1::MODE_SPECULATIVE);
    EXPECT_EQ(Bits(spec), expected) << clip;
    EXPECT_TRUE(clip != 1e-3 || redone_ == spec.training().steps()) << redone_;
    EXPECT_TRUE(clip != 1e6 || redone_ == 0) << redone_;
    if (clip == 1e6) continue;
    for (const Setting& setting : kSettings) {
      v1::JobSpec changed = spec;
      setting.set(*changed.mutable_memory());
      changed.mutable_memory()->set_mode(v1::MODE_SPECULATIVE);
      EXPECT_EQ(Bits(changed), expected) << clip << ", " << setting.name;
    }
  }
}

TEST_F(EngineTest, StatesThatAreNotFiniteAreNotCheckpointed) {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_training()->set_grad_clip(0);
  auto engine = Make(spec);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Initialize(7).ok());
  RandomTokens source(spec);
  source.scale_ = 1e26;  // the gradients are finite, their squares are not
  TrainerCounters counters;
  ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
  ASSERT_FALSE(source.results.back().skipped);
  const std::string checkpoints = folder_ + "/checkpoints";
  auto writer = CheckpointWriter::Create(FileOps::Real(), checkpoints, {.job_uid = "job", .step = 1},
                                         (*engine)->Tensors());
  ASSERT_TRUE(writer.ok()) << writer.status();
  const absl::Status saved = (*engine)->SaveTo(**writer, 1);
  EXPECT_EQ(saved.GetPayload(kCausePayload), absl::Cord("NUMERIC")) << saved;
  EXPECT_NE(std::string(saved.message()).find("v of "), std::string::npos) << saved;
}

TEST_F(EngineTest, ACheckpointResumesToTheSameBitsUnderAnyPlacement) {
  // Mode delayed has more to remember: the gradient that the next step applies.
  for (const v1::Mode mode : {v1::MODE_UNSPECIFIED, v1::MODE_DELAYED}) {
    v1::JobSpec base = SmallLlama();
    base.mutable_memory()->set_mode(mode);
    Bits(base);
    const std::string expected = final_hash_;
    const std::string checkpoints = absl::StrCat(folder_, "/checkpoints", mode);
    std::string path;
    TrainerCounters at;
    {
      auto engine = Make(base);
      ASSERT_TRUE(engine.ok()) << engine.status();
      ASSERT_TRUE((*engine)->Initialize(7).ok());
      RandomTokens source(base);
      ASSERT_TRUE((*engine)->train().Run(source, 2, at).ok());
      CheckpointDescription description{.job_uid = "job", .step = 2};
      description.state.pending_scale = at.pending_scale;
      auto writer = CheckpointWriter::Create(FileOps::Real(), checkpoints, description, (*engine)->Tensors());
      ASSERT_TRUE(writer.ok()) << writer.status();
      ASSERT_TRUE((*engine)->SaveTo(**writer, 2).ok());
      const auto written = (*writer)->Commit();
      ASSERT_TRUE(written.ok()) << written.status();
      path = written->path;
    }
    EXPECT_EQ(at.pending_scale.has_value(), mode == v1::MODE_DELAYED);
    for (const Setting& setting : kSettings) {
      v1::JobSpec spec = base;
      setting.set(*spec.mutable_memory());
      if (mode == v1::MODE_DELAYED) spec.mutable_memory()->set_mode(mode);
      auto engine = Make(spec);
      ASSERT_TRUE(engine.ok()) << engine.status();
      const auto reader = CheckpointReader::Open(path);
      ASSERT_TRUE(reader.ok()) << reader.status();
      ASSERT_TRUE((*engine)->LoadCheckpoint(**reader, 2).ok());
      RandomTokens source(spec);
      TrainerCounters counters{.iterations = 2,
                               .applied_steps = at.applied_steps,
                               .pending_scale = (*reader)->manifest().state.pending_scale};
      ASSERT_TRUE((*engine)->train().Run(source, base.training().steps() - 2, counters).ok());
      EXPECT_EQ(*(*engine)->StateHash(counters.iterations), expected) << setting.name;
    }
    if (mode != v1::MODE_DELAYED) continue;
    base.mutable_memory()->set_mode(v1::MODE_SYNC);
    auto engine = Make(base);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto reader = CheckpointReader::Open(path);
    EXPECT_EQ((*engine)->LoadCheckpoint(**reader, 2).GetPayload(kCausePayload),
              absl::Cord("CHECKPOINT_CORRUPT"));
  }
}

// The first step has nothing to apply, the second applies the gradient of the first.
TEST_F(EngineTest, ModeDelayedIsOneStepBehind) {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_memory()->set_mode(v1::MODE_SYNC);
  spec.mutable_training()->set_steps(1);
  Bits(spec);
  const std::string after_one = final_hash_;
  spec.mutable_memory()->set_mode(v1::MODE_DELAYED);
  Bits(spec);
  EXPECT_NE(final_hash_, after_one);
  spec.mutable_training()->set_steps(2);
  Bits(spec);
  EXPECT_EQ(final_hash_, after_one);
  spec.mutable_training()->set_steps(5);
  const std::string expected = Bits(spec), expected_hash = final_hash_;
  for (const Setting& setting : kSettings) {
    v1::JobSpec changed = spec;
    setting.set(*changed.mutable_memory());
    changed.mutable_memory()->set_mode(v1::MODE_DELAYED);
    EXPECT_EQ(Bits(changed), expected) << setting.name;
    Bits(changed, /*hash_each_step=*/false);
    EXPECT_EQ(final_hash_, expected_hash) << setting.name;
  }
}

TEST_F(EngineTest, EvaluationChangesNothingAndMaskedTokensDoNotCount) {
  const v1::JobSpec spec = SmallLlama();
  auto engine = Make(spec);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Initialize(7).ok());
  RandomTokens source(spec);
  TrainerCounters counters;
  ASSERT_TRUE((*engine)->train().Run(source, 2, counters).ok());
  const std::string before = *(*engine)->StateHash(2);
  RandomTokens eval(spec);
  eval.poison_step_ = 1;  // one masked token
  ASSERT_TRUE((*engine)->eval().Run(eval, 3, counters).ok());
  EXPECT_EQ(counters.iterations, 2);
  EXPECT_EQ(*(*engine)->StateHash(2), before);
  ASSERT_EQ(eval.results.size(), 3u);
  EXPECT_EQ(eval.results[0].tokens, 2 * 24);
  EXPECT_EQ(eval.results[1].tokens, 2 * 24 - 1);
  EXPECT_NEAR(eval.results[0].loss, std::log(256.0), 0.5);
}

}  // namespace
}  // namespace strata
