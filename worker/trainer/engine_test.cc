// The promises of the engine on small real models: placement is invisible to the result (bits), budgets hold,
// the plan's peaks are the run's.
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/checkpoint_writer.h"
#include "offload/exec/step_metrics.h"
#include "worker/trainer/engine_testing.h"

namespace strata {
namespace {

class OptimizerTest : public EngineTest, public ::testing::WithParamInterface<const char*> {
 protected:
  static v1::JobSpec Job(v1::JobSpec spec) { return WithOptimizer(std::move(spec), GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerTest, ::testing::Values("adamw", "adamw8bit"),
                         [](const auto& name) { return std::string(name.param); });

TEST_P(OptimizerTest, PlacementIsInvisibleToTheResult) {
  for (const auto& [what, base] :
       {std::pair("llama bf16", Job(SmallLlama())), std::pair("gpt2 bf16", Job(SmallGpt2()))}) {
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

TEST_F(EngineTest, WhatAJobRequiresIsThereOrTheJobFailsWithTheRemedy) {
  v1::JobSpec spec = SmallLlama();
  Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
  const auto made = Make(spec);
  ASSERT_TRUE(made.ok()) << made.status();
  const Ladder ladder = (*made)->ladder();
  ASSERT_EQ(ladder.size(), static_cast<size_t>(kFeatureCount) - 1);  // no GPU to register memory with
  ASSERT_TRUE((*made)->Close().ok());
  for (int i = 0; i < static_cast<int>(ladder.size()); ++i) {
    const Rung& rung = ladder[i];
    if (i > 0) {
      EXPECT_GT(rung.feature, ladder[i - 1].feature);
    }
    std::printf("%s: %s %s\n", FeatureName(rung.feature), rung.chosen.c_str(), rung.why.c_str());
    v1::JobSpec requiring = spec;
    requiring.mutable_memory()->add_require(static_cast<v1::Feature>(static_cast<int>(rung.feature) + 1));
    auto engine = Make(requiring);
    std::string why = rung.why;
    // Locked memory is the user's: other processes may have taken it, or given it back, since; and the kernel
    // takes a while to count back what a closed ring had.
    for (int attempt = 0; attempt < 20 && engine.ok() != why.empty(); ++attempt) {
      if (engine.ok()) {
        ASSERT_TRUE((*engine)->Close().ok());
      }
      usleep(200'000);
      const auto plain = Make(spec);
      ASSERT_TRUE(plain.ok()) << plain.status();
      why = (*plain)->ladder()[i].why;
      ASSERT_TRUE((*plain)->Close().ok());
      usleep(200'000);
      engine = Make(requiring);
    }
    EXPECT_EQ(engine.ok(), why.empty()) << engine.status();
    if (engine.ok()) continue;
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(engine.status().message().find(FeatureName(rung.feature)), std::string::npos)
        << engine.status();
    EXPECT_NE(engine.status().message().find(why), std::string::npos) << engine.status();
  }
  // What a job forces down is not there for what it requires.
  for (const v1::Feature feature :
       {v1::FEATURE_IO_URING, v1::FEATURE_REGISTERED_BUFFERS, v1::FEATURE_O_DIRECT}) {
    v1::JobSpec forced = spec;
    forced.mutable_memory()->mutable_io()->set_backend(v1::IO_BACKEND_THREADS);
    forced.mutable_memory()->mutable_io()->set_direct(v1::DIRECT_IO_OFF);
    forced.mutable_memory()->add_require(feature);
    EXPECT_EQ(Make(forced).status().code(), absl::StatusCode::kFailedPrecondition) << feature;
  }
}

TEST_P(OptimizerTest, StepsThatOverlapGiveTheSameBitsAsStepsOneByOne) {
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = Job(SmallLlama());
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

TEST_P(OptimizerTest, ModesWithoutClippingAgree) {
  v1::JobSpec spec = Job(SmallLlama());
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

TEST_P(OptimizerTest, TheSmallestPlanRunsToTheSameBitsAndOneByteLessIsRefused) {
  const v1::JobSpec base = Job(SmallLlama());
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

// What a long sequence leaves between forward and backward does not have to be on the device.
TEST_F(EngineTest, ALongSequenceTrainsInADeviceThatCannotKeepItsActivations) {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_model()->mutable_config()->set_layers(8);
  spec.mutable_model()->mutable_config()->set_max_seq(512);
  spec.mutable_data()->set_seq_len(512);
  spec.mutable_training()->set_global_batch(2);
  spec.mutable_training()->set_micro_batch(1);
  spec.mutable_training()->set_steps(2);
  spec.mutable_memory()->set_recompute(v1::RECOMPUTE_FULL);
  spec.mutable_memory()->mutable_placement()->set_activations(v1::TIER_DEVICE);
  const std::string expected = Bits(spec);
  const auto kept = PlanJob(spec, {});
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (const v1::Tier tier : {v1::TIER_HOST, v1::TIER_NVME}) {
    v1::JobSpec small = spec;
    small.mutable_memory()->mutable_placement()->set_activations(tier);
    const auto plan = PlanJob(small, {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LT(plan->tiers(0).minimum_bytes(), kept->tiers(0).minimum_bytes());
    small.mutable_memory()->set_device(plan->tiers(0).minimum_bytes());
    EXPECT_EQ(Bits(small), expected) << v1::Tier_Name(tier);
    small.mutable_memory()->mutable_placement()->set_activations(v1::TIER_DEVICE);
    EXPECT_FALSE(Make(small).ok());
  }
}

TEST_P(OptimizerTest, AStepWithANonFiniteGradientChangesNothing) {
  for (const Setting& setting : kSettings) {
    v1::JobSpec spec = Job(SmallLlama());
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
TEST_P(OptimizerTest, AStepWithANonFiniteGradientChangesNothingInAnyMode) {
  for (const v1::Mode mode :
       {v1::MODE_SYNC, v1::MODE_OVERLAP, v1::MODE_FORWARD_OVERLAP, v1::MODE_SPECULATIVE}) {
    for (const v1::Tier params : {v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_NVME}) {
      v1::JobSpec spec = Job(SmallLlama());
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

TEST_P(OptimizerTest, SpeculativeUpdatesThatAreClippedAreDoneAgainToTheSameBits) {
  for (const double clip : {1e-3, 2.0, 1e6}) {
    v1::JobSpec spec = Job(SmallLlama());
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

TEST_P(OptimizerTest, ACheckpointResumesToTheSameBitsUnderAnyPlacement) {
  // Mode delayed has more to remember: the gradient that the next step applies.
  for (const v1::Mode mode : {v1::MODE_UNSPECIFIED, v1::MODE_DELAYED}) {
    v1::JobSpec base = Job(SmallLlama());
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
      path = Save(**engine, checkpoints, at);
    }
    EXPECT_EQ(at.pending_scale.has_value(), mode == v1::MODE_DELAYED);
    for (const Setting& setting : kSettings) {
      v1::JobSpec spec = base;
      setting.set(*spec.mutable_memory());
      if (mode == v1::MODE_DELAYED) {
        if (spec.memory().placement().gradients() == v1::TIER_NVME) continue;  // there is no such plan
        spec.mutable_memory()->set_mode(mode);
      }
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

TEST_F(EngineTest, ACheckpointOfTheOtherOptimizerIsRefusedWithTheRemedy) {
  for (const auto& [stored, wanted] : {std::pair("adamw", "adamw8bit"), std::pair("adamw8bit", "adamw")}) {
    const v1::JobSpec spec = WithOptimizer(SmallLlama(), stored);
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Initialize(7).ok());
    const std::string path = Save(**engine, absl::StrCat(folder_, "/", stored), {});
    ASSERT_TRUE((*engine)->Close().ok());
    auto other = Make(WithOptimizer(SmallLlama(), wanted));
    ASSERT_TRUE(other.ok()) << other.status();
    const auto reader = CheckpointReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    const absl::Status refused = (*other)->LoadCheckpoint(**reader, 0);
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_NE(refused.message().find(absl::StrCat("holds the optimizer states of ", stored,
                                                  ", training.optimizer.name is ", wanted)),
              absl::string_view::npos)
        << refused;
    EXPECT_NE(refused.message().find("export its weights"), absl::string_view::npos) << refused;
    // Nor is one written for the other.
    CheckpointDescription description{.job_uid = "job"};
    description.state.moments = (*reader)->manifest().state.moments;
    auto writer = CheckpointWriter::Create(FileOps::Real(), absl::StrCat(folder_, "/", wanted), description,
                                           (*other)->Tensors());
    ASSERT_TRUE(writer.ok()) << writer.status();
    EXPECT_EQ((*other)->SaveTo(**writer, 0).code(), absl::StatusCode::kInternal);
  }
}

// What the plan, the NVMe store and a checkpoint hold of it: 4 + 1 + 1 bytes and two floats for 64 elements.
TEST_F(EngineTest, EightBitStatesTakeTheBytesThatTheyShould) {
  v1::JobSpec spec = WithOptimizer(SmallLlama(), "adamw8bit");
  Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
  auto engine = Make(spec);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Initialize(7).ok());
  const ModelLayout& layout = (*engine)->layout();
  EXPECT_EQ((*engine)->planned().placement[2][2] * 8, 49 * layout.total_elements());
  int64_t records = 0;
  for (const auto& unit : (*engine)->planned().train.chunks) {
    for (const ChunkInfo& chunk : unit) {
      const int64_t n = chunk.end - chunk.begin;
      records += (n * 49 / 8 + 4095) / 4096 * 4096;
    }
  }
  RandomTokens source(spec);
  TrainerCounters counters;
  ASSERT_TRUE((*engine)->train().Run(source, 2, counters).ok());
  const StepMetrics metrics = SummarizeStep((*engine)->planned().train, source.results.back());
  constexpr int kNvme = static_cast<int>(Tier::kNvme), kRecords = static_cast<int>(TrafficClass::kRecords);
  EXPECT_EQ(metrics.written[kNvme][kRecords], records);
  EXPECT_EQ(metrics.read[kNvme][kRecords], records);

  const auto reader = CheckpointReader::Open(Save(**engine, folder_ + "/checkpoints", counters));
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader)->Verify().ok());
  EXPECT_EQ((*reader)->manifest().state.moments, Moments::kCode8);
  for (const StateClass scale : {StateClass::kFirstMomentScale, StateClass::kSecondMomentScale}) {
    const auto scales = (*reader)->Tensors(scale);
    const auto codes = (*reader)->Tensors(StateClass::kFirstMoment);
    ASSERT_EQ(scales.size(), codes.size());
    for (size_t i = 0; i < scales.size(); ++i)
      EXPECT_EQ(scales[i].elements, (codes[i].elements + 63) / 64) << codes[i].name;
  }
  for (const ManifestFile& file : (*reader)->manifest().files) {
    const int64_t item = file.name == "m.safetensors" || file.name == "v.safetensors" ? 1 : 4;
    const int64_t each = file.name.find("scale") == std::string::npos ? 1 : 64;
    int64_t data = 0;
    for (const ParamUnit& unit : layout.units) {
      for (const TensorInfo& tensor : unit.tensors) data += (tensor.elements + each - 1) / each * item;
    }
    EXPECT_GT(file.bytes, data) << file.name;
    EXPECT_LT(file.bytes, data + 8192) << file.name;  // the header
  }
  ASSERT_TRUE((*engine)->Close().ok());
}

TEST_F(EngineTest, EightBitStatesLearnWhatFloatsDo) {
  const auto losses = [this](const char* optimizer) {
    v1::JobSpec spec = WithOptimizer(SmallLlama(), optimizer);
    auto engine = Make(spec);
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    source.same_batch_ = true;
    TrainerCounters counters;
    EXPECT_TRUE((*engine)->train().Run(source, 80, counters).ok());
    std::vector<double> losses;
    for (const StepResult& result : source.results) losses.push_back(result.loss);
    return losses;
  };
  const std::vector<double> floats = losses("adamw"), codes = losses("adamw8bit");
  std::printf("loss of step 1: %.4f and %.4f, of step 80: %.4f and %.4f\n", floats[0], codes[0],
              floats.back(), codes.back());
  EXPECT_EQ(codes[0], floats[0]);
  EXPECT_NE(codes[3], floats[3]);
  EXPECT_LT(floats.back(), 0.95 * floats[0]);
  for (size_t i = 0; i < floats.size(); ++i) EXPECT_NEAR(codes[i], floats[i], 0.03 * floats[i]) << i;
}

// The first step has nothing to apply, the second applies the gradient of the first.
TEST_P(OptimizerTest, ModeDelayedIsOneStepBehind) {
  v1::JobSpec spec = Job(SmallLlama());
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
    if (changed.memory().placement().gradients() == v1::TIER_NVME) continue;  // there is no such plan
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
