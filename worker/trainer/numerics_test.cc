// The numerics contract on small real models: skipped steps are perfect no-ops, parameter groups and frozen
// tensors mean what they say, and clipping, accumulation and updates follow float64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/reference_ops.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/exec/block_compute.h"
#include "worker/model/init.h"
#include "worker/model/test_step.h"
#include "worker/trainer/engine_testing.h"

namespace strata {
namespace {

constexpr v1::Mode kModes[] = {v1::MODE_SYNC, v1::MODE_OVERLAP, v1::MODE_FORWARD_OVERLAP,
                               v1::MODE_SPECULATIVE};
constexpr v1::Precision kPrecisions[] = {v1::PRECISION_FP32, v1::PRECISION_BF16, v1::PRECISION_FP16};

// Sees every gradient that a block has written; knows which step and micro-batch it is, since each
// micro-batch has one LOSS, before its BACKWARDs.
class GradientTap : public BlockCompute {
 public:
  GradientTap(std::unique_ptr<BlockCompute> model, int64_t micro_batches)
      : model_(std::move(model)), micro_batches_(micro_batches) {}

  absl::Status Forward(Stream* stream, const BlockArgs& args) override {
    return model_->Forward(stream, args);
  }
  absl::Status RecomputeRest(Stream* stream, const BlockArgs& args) override {
    return model_->RecomputeRest(stream, args);
  }
  absl::Status Backward(Stream* stream, const BlockArgs& args) override {
    const absl::Status status = model_->Backward(stream, args);
    if (status.ok()) OnGradients(args, (losses_ - 1) / micro_batches_, (losses_ - 1) % micro_batches_);
    return status;
  }
  absl::Status Loss(Stream* stream, const BlockArgs& args) override {
    const absl::Status status = model_->Loss(stream, args);
    ++losses_;
    if (status.ok()) OnGradients(args, (losses_ - 1) / micro_batches_, (losses_ - 1) % micro_batches_);
    return status;
  }

 private:
  virtual void OnGradients(const BlockArgs& args, int64_t step, int64_t micro_batch) = 0;

  std::unique_ptr<BlockCompute> model_;
  const int64_t micro_batches_;
  int64_t losses_ = 0;
};

struct Damage {
  int block = 0;
  int64_t micro_batch = 0;
  float value = 0;
};

class DamagedGradients : public GradientTap {
 public:
  DamagedGradients(std::unique_ptr<BlockCompute> model, int64_t micro_batches,
                   std::map<int64_t, Damage> by_step)
      : GradientTap(std::move(model), micro_batches), by_step_(std::move(by_step)) {}

 private:
  void OnGradients(const BlockArgs& args, int64_t step, int64_t micro_batch) override {
    const auto damage = by_step_.find(step);
    if (damage == by_step_.end() || damage->second.block != args.block) return;
    if (damage->second.micro_batch == micro_batch)
      static_cast<float*>(args.grads[0])[5] = damage->second.value;
  }

  const std::map<int64_t, Damage> by_step_;
};

// The sum of the newest step's gradients, by unit, added in float in the order of the micro-batches.
class RecordedGradients : public GradientTap {
 public:
  using Sums = std::vector<std::vector<float>>;
  RecordedGradients(std::unique_ptr<BlockCompute> model, int64_t micro_batches, const ModelLayout& layout,
                    Sums& sums)
      : GradientTap(std::move(model), micro_batches), layout_(layout), sums_(sums) {}

 private:
  void OnGradients(const BlockArgs& args, int64_t step, int64_t) override {
    if (step != step_) sums_.assign(layout_.units.size(), {});
    step_ = step;
    for (size_t i = 0; i < args.grads.size(); ++i) {
      const int unit = layout_.blocks[args.block].units[i];
      const auto* gradient = static_cast<const float*>(args.grads[i]);
      std::vector<float>& sum = sums_[unit];
      if (sum.empty()) {
        sum.assign(gradient, gradient + layout_.units[unit].elements);
        continue;
      }
      for (size_t e = 0; e < sum.size(); ++e) sum[e] += gradient[e];
    }
  }

  const ModelLayout layout_;
  Sums& sums_;
  int64_t step_ = -1;
};

// Master, m and v of a tensor, whole.
using States = std::array<std::vector<float>, 3>;

class NumericsTest : public EngineTest {
 protected:
  int64_t MicroBatches(const v1::JobSpec& spec) {
    return spec.training().global_batch() / spec.training().micro_batch();
  }

  WrapModel Recording(const v1::JobSpec& spec, RecordedGradients::Sums& sums) {
    const auto layout = ModelLayoutOf(spec, {});
    EXPECT_TRUE(layout.ok()) << layout.status();
    return [this, spec, layout = *layout, &sums](std::unique_ptr<BlockCompute> model) {
      return std::make_unique<RecordedGradients>(std::move(model), MicroBatches(spec), layout, sums);
    };
  }

  // All states by tensor name, by way of a checkpoint.
  std::map<std::string, States> Snapshot(Engine& engine, int64_t iterations) {
    std::map<std::string, States> all;
    const std::string folder = folder_ + "/snapshot-" + std::to_string(snapshots_++);
    const auto reader = CheckpointReader::Open(Save(engine, folder, {.iterations = iterations}));
    EXPECT_TRUE(reader.ok()) << reader.status();
    for (const ParamUnit& unit : engine.layout().units) {
      for (const TensorInfo& tensor : unit.tensors) {
        for (const StateClass state : kStateClasses) {
          std::vector<float>& values = all[tensor.name][static_cast<int>(state)];
          values.resize(tensor.elements);
          EXPECT_TRUE((*reader)->ReadRange(state, tensor.name, 0, values).ok());
        }
      }
    }
    return all;
  }

 private:
  int snapshots_ = 0;
};

// ---- Skipped steps

class SkippedStepTest : public NumericsTest,
                        public testing::WithParamInterface<std::tuple<v1::Mode, v1::Precision, const char*>> {
};

INSTANTIATE_TEST_SUITE_P(ModesAndPrecisions, SkippedStepTest,
                         testing::Combine(testing::ValuesIn(kModes), testing::ValuesIn(kPrecisions),
                                          testing::Values("adamw", "adamw8bit")),
                         [](const auto& info) {
                           return v1::Mode_Name(std::get<0>(info.param)) + "_" +
                                  v1::Precision_Name(std::get<1>(info.param)) + "_" + std::get<2>(info.param);
                         });

TEST_P(SkippedStepTest, InfAndNanInTheFirstAndLastLayerChangeNothing) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Blocks of SmallLlama: the embedding, three layers, the head.
  const std::map<int64_t, Damage> damages = {{1, {0, 0, kNan}}, {2, {1, 2, kInf}}, {4, {1, 0, kNan}},
                                             {5, {3, 1, kInf}}, {6, {3, 2, kNan}}, {8, {4, 0, kInf}},
                                             {9, {4, 1, -kInf}}};
  constexpr int64_t kSteps = 11;
  const auto [mode, precision, optimizer] = GetParam();
  v1::JobSpec spec = WithOptimizer(SmallLlama(), optimizer);
  spec.mutable_training()->set_precision(precision);
  if (mode == v1::MODE_OVERLAP) spec.mutable_training()->set_grad_clip(0);
  spec.mutable_memory()->set_mode(mode);
  Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
  ApplyDefaults(spec);
  const WrapModel damage = [&](std::unique_ptr<BlockCompute> model) {
    return std::make_unique<DamagedGradients>(std::move(model), MicroBatches(spec), damages);
  };

  auto engine = Make(spec, damage);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Initialize(7).ok());
  RandomTokens source(spec);
  TrainerCounters counters = StartOf(spec);
  LossScale scale = counters.loss_scale;
  std::string before = *(*engine)->StateHash(0);
  for (int64_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
    const std::string after = *(*engine)->StateHash(counters.iterations);
    const StepResult& result = source.results.back();
    const auto damaged = damages.find(step);
    EXPECT_EQ(result.skipped, damaged != damages.end()) << step;
    EXPECT_EQ(before == after, damaged != damages.end()) << step;
    if (damaged != damages.end()) {
      const ModelLayout& layout = (*engine)->layout();
      const int unit = layout.blocks[damaged->second.block].units[0];
      EXPECT_EQ(result.bad_tensor, layout.units[unit].tensors[0].name) << step;
    }
    // Nothing but the loss scale changes.
    EXPECT_EQ(result.loss_scale, scale.scale) << step;
    if (precision == v1::PRECISION_FP16) scale = AfterStep(scale, {}, !result.skipped);
    EXPECT_EQ(counters.loss_scale, scale) << step;
    before = after;
  }
  EXPECT_EQ(counters.iterations, kSteps);
  EXPECT_EQ(counters.applied_steps, kSteps - static_cast<int64_t>(damages.size()));
  ASSERT_TRUE((*engine)->Close().ok());
  engine->reset();

  // The same with steps that overlap.
  auto again = Make(spec, damage);
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE((*again)->Initialize(7).ok());
  RandomTokens again_source(spec);
  TrainerCounters again_counters = StartOf(spec);
  ASSERT_TRUE((*again)->train().Run(again_source, kSteps, again_counters).ok());
  EXPECT_EQ(*(*again)->StateHash(kSteps), before);
  EXPECT_EQ(again_counters.loss_scale, scale);
  for (int64_t step = 0; step < kSteps; ++step) {
    EXPECT_EQ(again_source.results[step].skipped, source.results[step].skipped) << step;
    EXPECT_EQ(again_source.results[step].bad_tensor, source.results[step].bad_tensor) << step;
  }
  ASSERT_TRUE((*again)->Close().ok());
}

// ---- fp16

// A scale so large that first steps overflow, and that soon tries again.
v1::JobSpec RestlessFp16() {
  v1::JobSpec spec = SmallLlama();
  v1::TrainingSpec& training = *spec.mutable_training();
  training.set_steps(14);
  training.set_precision(v1::PRECISION_FP16);
  training.mutable_loss_scale()->set_initial(0x1p24);
  training.mutable_loss_scale()->set_growth_interval(2);
  ApplyDefaults(spec);
  return spec;
}

struct ModesOfOneResult {
  const char* name;
  double clip;
  v1::Mode first;
  std::vector<v1::Mode> others;
};

class MovingScaleTest : public NumericsTest, public testing::WithParamInterface<ModesOfOneResult> {};

INSTANTIATE_TEST_SUITE_P(
    All, MovingScaleTest,
    testing::Values(
        ModesOfOneResult{"Clipped", 1, v1::MODE_SYNC, {v1::MODE_FORWARD_OVERLAP, v1::MODE_SPECULATIVE}},
        ModesOfOneResult{"NotClipped", 0, v1::MODE_SYNC, {v1::MODE_OVERLAP, v1::MODE_SPECULATIVE}},
        ModesOfOneResult{"Delayed", 1, v1::MODE_DELAYED, {v1::MODE_DELAYED}}),
    [](const auto& info) { return std::string(info.param.name); });

// Real overflows: the scale of a step depends on the gradients of the one before, whatever the timing.
TEST_P(MovingScaleTest, PlacementModeAndOverlapAreInvisible) {
  v1::JobSpec base = RestlessFp16();
  base.mutable_training()->set_grad_clip(GetParam().clip);
  base.mutable_memory()->set_mode(GetParam().first);
  Bits(base, /*hash_each_step=*/true);
  const std::string losses = losses_, hash = final_hash_;
  EXPECT_GE(skipped_, 3);
  EXPECT_LE(skipped_, 10);
  ASSERT_FALSE(HasFailure());
  for (const v1::Mode mode : GetParam().others) {
    for (const char* name :
         {"all in device memory", "parameters and optimizer on NVMe", "recompute optimal"}) {
      const Setting& setting = SettingNamed(name);
      v1::JobSpec spec = base;
      setting.set(*spec.mutable_memory());
      spec.mutable_memory()->set_mode(mode);
      Bits(spec, /*hash_each_step=*/false);
      EXPECT_EQ(losses_, losses) << v1::Mode_Name(mode) << ", " << setting.name;
      EXPECT_EQ(final_hash_, hash) << v1::Mode_Name(mode) << ", " << setting.name;
    }
  }
}

// Un-scaling is exact: but for what fp16 loses to denormals and overflow the scale shows nowhere.
TEST_F(NumericsTest, Fp16TrainsAsFp32DoesAndTheScaleDoesNotShow) {
  const auto train = [&](v1::Precision precision, double scale) {
    v1::JobSpec spec = SmallLlama();
    v1::TrainingSpec& training = *spec.mutable_training();
    training.set_precision(precision);
    if (scale > 0) training.mutable_loss_scale()->set_initial(scale);
    ApplyDefaults(spec);
    auto engine = Make(spec);
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    source.same_batch_ = true;
    TrainerCounters counters = StartOf(spec);
    EXPECT_TRUE((*engine)->train().Run(source, 20, counters).ok());
    EXPECT_TRUE((*engine)->Close().ok());
    return source.results;
  };
  const std::vector<StepResult> exact = train(v1::PRECISION_FP32, 0);
  EXPECT_LT(exact.back().loss, 0.9 * exact.front().loss);
  for (const double scale : {0x1p10, 0x1p16}) {
    const std::vector<StepResult> half = train(v1::PRECISION_FP16, scale);
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_FALSE(half[i].skipped) << i;
      EXPECT_NEAR(half[i].loss, exact[i].loss, 2e-3 * exact[i].loss) << scale << " step " << i;
      EXPECT_NEAR(half[i].grad_norm, exact[i].grad_norm, 1e-2 * exact[i].grad_norm) << scale << " step " << i;
    }
  }
}

// ---- Groups, frozen and tied tensors

// Two groups, frozen tensors between others and a frozen unit, a head that is the embedding.
v1::JobSpec GroupedLlama() {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_model()->mutable_config()->set_tied_head(true);
  v1::TrainingSpec& training = *spec.mutable_training();
  training.set_grad_clip(0.1);
  v1::ParameterGroup& down = *training.mutable_optimizer()->add_groups();
  down.set_match("*.mlp.down_proj.weight");
  down.set_lr_scale(0.5);
  down.add_betas(0.8);
  down.add_betas(0.99);
  v1::ParameterGroup& first = *training.mutable_optimizer()->add_groups();
  first.set_match("model.layers.0.*");
  first.set_weight_decay(0.3);
  training.add_freeze("model.layers.1.*");
  training.add_freeze("*.2.self_attn.?_proj.weight");
  training.add_freeze("model.norm.weight");
  return spec;
}

class GroupedPlacementTest : public NumericsTest,
                             public testing::WithParamInterface<std::tuple<v1::Precision, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Precisions, GroupedPlacementTest,
                         testing::Combine(testing::Values(v1::PRECISION_BF16, v1::PRECISION_FP16),
                                          testing::Values("adamw", "adamw8bit")),
                         [](const auto& info) {
                           return v1::Precision_Name(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                         });

TEST_P(GroupedPlacementTest, PlacementIsInvisibleWithGroupsAndTiedAndFrozenTensors) {
  v1::JobSpec base = WithOptimizer(GroupedLlama(), std::get<1>(GetParam()));
  base.mutable_training()->set_precision(std::get<0>(GetParam()));
  ApplyDefaults(base);
  const std::string expected = Bits(base);
  ASSERT_FALSE(HasFailure());
  EXPECT_EQ(skipped_, 0);
  for (const Setting& setting : kSettings) {
    v1::JobSpec spec = base;
    setting.set(*spec.mutable_memory());
    EXPECT_EQ(Bits(spec), expected) << setting.name;
  }
  v1::JobSpec speculative = base;
  Place(*speculative.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
  speculative.mutable_memory()->set_mode(v1::MODE_SPECULATIVE);
  EXPECT_EQ(Bits(speculative), expected);
  EXPECT_GT(redone_, 0);
}

TEST_F(NumericsTest, FrozenTensorsKeepTheirBitsAndAreNoPartOfTheNorm) {
  const v1::JobSpec spec = GroupedLlama();
  RecordedGradients::Sums sums;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const WrapModel record = Recording(spec, sums);
  // Block 2 is layer 1, whose tensors are all frozen: nobody looks at its gradient.
  auto engine = Make(spec, [&](std::unique_ptr<BlockCompute> model) {
    std::map<int64_t, Damage> damages = {{1, {2, 0, kNan}}};
    return record(
        std::make_unique<DamagedGradients>(std::move(model), MicroBatches(spec), std::move(damages)));
  });
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Initialize(7).ok());
  RandomTokens source(spec);
  TrainerCounters counters = StartOf(spec);
  const std::map<std::string, States> before = Snapshot(**engine, 0);
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
    double squares = 0;
    for (size_t u = 0; u < sums.size(); ++u) {
      for (const TensorInfo& tensor : (*engine)->layout().units[u].tensors) {
        if (tensor.frozen) continue;
        for (int64_t e = 0; e < tensor.elements; ++e)
          squares += std::pow(double{sums[u][tensor.offset + e]}, 2);
      }
    }
    EXPECT_NEAR(source.results.back().grad_norm, std::sqrt(squares), 1e-12 * std::sqrt(squares)) << step;
    EXPECT_FALSE(source.results.back().skipped) << step;
  }
  std::set<std::string> frozen, moved;
  const std::map<std::string, States> after = Snapshot(**engine, counters.iterations);
  for (const auto& [name, states] : after) (states == before.at(name) ? frozen : moved).insert(name);
  std::set<std::string> expected = {"model.norm.weight"};
  for (const TensorInfo& tensor : (*engine)->layout().units[2].tensors) expected.insert(tensor.name);
  for (const char* which : {"q", "k", "v", "o"}) {
    expected.insert(std::string("model.layers.2.self_attn.") + which + "_proj.weight");
  }
  EXPECT_EQ(frozen, expected);
  EXPECT_EQ(moved.size(), 1u + 9 + 9 - 4);
  ASSERT_TRUE((*engine)->Close().ok());
}

// ---- Against float64

// Sequences of the global batch as a function of (step, sequence), so that any micro-batch cuts the same
// data. Each has another number of masked tokens; one has nothing but.
class MaskedSequences : public RandomTokens {
 public:
  explicit MaskedSequences(const v1::JobSpec& spec) : RandomTokens(spec), spec_(spec) {}

  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    const int64_t seq = spec_.data().seq_len(), count = static_cast<int64_t>(tokens.size()) / seq;
    for (int64_t i = 0; i < count; ++i) {
      Fill(step, micro_batch * count + i, tokens.subspan(i * seq, seq), targets.subspan(i * seq, seq));
    }
    return absl::OkStatus();
  }
  double GradientScale(int64_t) override {
    int64_t unmasked = 0;
    for (int64_t s = 0; s < spec_.training().global_batch(); ++s)
      unmasked += spec_.data().seq_len() - Masked(s);
    return 1.0 / static_cast<double>(unmasked);
  }
  AdamWHyper Hyper(int64_t applied, int group) const override {
    return {.lr = 1e-3 / static_cast<double>(1 + applied + group),
            .weight_decay = group == kPlainGroup ? 0 : 0.1};
  }

 private:
  int64_t Masked(int64_t sequence) const {
    return sequence == 5 ? spec_.data().seq_len() : sequence * 5 % spec_.data().seq_len();
  }
  void Fill(int64_t step, int64_t sequence, std::span<int32_t> tokens, std::span<int32_t> targets) const {
    const CounterRandom random(13, static_cast<uint64_t>(step * 1000 + sequence));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(random.Below(i, 256));
      targets[i] =
          static_cast<int64_t>(i) < Masked(sequence) ? -1 : static_cast<int32_t>(random.Below(i + 1, 256));
    }
  }

  const v1::JobSpec& spec_;
};

// AdamW (torch.optim.AdamW) of one element in double.
struct Double {
  double master, m, v;
  double update = 0;  // the size of its terms, before they cancel in m
  void Step(double g, const AdamWHyper& h, int64_t step) {
    update = h.beta1 * std::fabs(m) + (1 - h.beta1) * std::fabs(g);
    m = h.beta1 * m + (1 - h.beta1) * g;
    v = h.beta2 * v + (1 - h.beta2) * g * g;
    const double bias1 = 1 - std::pow(h.beta1, static_cast<double>(step));
    const double bias2 = 1 - std::pow(h.beta2, static_cast<double>(step));
    const double rate = h.lr / bias1 / (std::sqrt(v / bias2) + h.eps);
    update *= rate;
    master = master * (1 - h.lr * h.weight_decay) - rate * m;
  }
};

double Ulp(double value) {
  const float x = std::fabs(static_cast<float>(value));
  return double{std::nextafter(x, std::numeric_limits<float>::infinity())} - double{x};
}

TEST_F(NumericsTest, ClippingAndAccumulationFollowFloat64HoweverTheBatchIsCut) {
  for (const bool tied : {false, true}) {
    for (const int micro_batch : {1, 8}) {
      SCOPED_TRACE(testing::Message()
                   << 8 / micro_batch << " micro-batches of " << micro_batch << ", tied " << tied);
      v1::JobSpec spec = SmallLlama();
      spec.mutable_model()->mutable_config()->set_tied_head(tied);
      v1::TrainingSpec& training = *spec.mutable_training();
      training.set_precision(v1::PRECISION_FP32);
      training.set_global_batch(8);
      training.set_micro_batch(micro_batch);
      training.set_grad_clip(0.5);
      Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
      RecordedGradients::Sums sums;
      auto engine = Make(spec, Recording(spec, sums));
      ASSERT_TRUE(engine.ok()) << engine.status();
      ASSERT_TRUE((*engine)->Initialize(7).ok());
      const ModelLayout& layout = (*engine)->layout();
      MaskedSequences source(spec);
      TrainerCounters counters = StartOf(spec);

      // The truth has the whole batch at once.
      const auto reference_layout = BuildModelLayout(layout.config, DType::kF64, 8, layout.seq);
      ASSERT_TRUE(reference_layout.ok()) << reference_layout.status();
      const std::unique_ptr<Ops> reference_ops = MakeReferenceOps(DType::kF64);
      TestStep truth(*reference_layout, *reference_ops);
      std::vector<int32_t> tokens(8 * layout.seq), targets(8 * layout.seq);

      double worst_ulps = 0, worst_norm = 0;
      std::map<std::string, States> before = Snapshot(**engine, 0);
      for (int64_t step = 0; step < 3; ++step) {
        for (size_t u = 0; u < layout.units.size(); ++u) {
          for (const TensorInfo& tensor : layout.units[u].tensors) {
            for (int64_t e = 0; e < tensor.elements; ++e) {
              truth.SetParam(static_cast<int>(u), tensor.offset + e, before.at(tensor.name)[0][e]);
            }
          }
        }
        ASSERT_TRUE(source.FillBatch(step, 0, tokens, targets).ok());
        double loss[2];
        const absl::Status run = truth.Run(tokens, targets, source.GradientScale(step), false, loss);
        ASSERT_TRUE(run.ok()) << run;
        double squares = 0;
        for (const std::vector<double>& unit : truth.grads()) {
          for (const double g : unit) squares += g * g;
        }
        const double norm = std::sqrt(squares);

        ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
        const StepResult& result = source.results.back();
        EXPECT_EQ(result.tokens, loss[1]);
        EXPECT_NEAR(result.loss, loss[0] / loss[1], 1e-5);
        ASSERT_GT(norm, 0.5) << "nothing to clip";
        worst_norm = std::max(worst_norm, std::fabs(result.grad_norm / norm - 1));

        // AdamW in double on the float gradients of the engine.
        const std::map<std::string, States> after = Snapshot(**engine, counters.iterations);
        const double clip = std::min(1.0, 0.5 / (result.grad_norm + 1e-6));
        for (size_t u = 0; u < layout.units.size(); ++u) {
          for (const TensorInfo& tensor : layout.units[u].tensors) {
            const States& was = before.at(tensor.name);
            const States& is = after.at(tensor.name);
            for (int64_t e = 0; e < tensor.elements; ++e) {
              Double expected{was[0][e], was[1][e], was[2][e]};
              expected.Step(clip * double{sums[u][tensor.offset + e]}, source.Hyper(step, tensor.group),
                            step + 1);
              // The update is a chain of ten roundings, 2^-21 of its terms at most. That is less than 2 ulp
              // of every weight that is four times as large, and what counts for the others.
              const double size = std::max(std::fabs(expected.master), std::fabs(double{was[0][e]}));
              const double error = std::fabs(is[0][e] - expected.master);
              ASSERT_LE(error, std::max(2 * Ulp(size), expected.update * 0x1p-21))
                  << tensor.name << "[" << e << "] step " << step << ": " << was[0][e] << " became "
                  << is[0][e] << ", in float64 " << expected.master;
              if (size >= 4 * expected.update) worst_ulps = std::max(worst_ulps, error / Ulp(size));
            }
          }
        }
        before = after;
      }
      EXPECT_LT(worst_norm, 1e-6);
      std::printf("%d x %d%s: norm within %.2g of float64, parameters within %.3g ulp\n", 8 / micro_batch,
                  micro_batch, tied ? " tied" : "", worst_norm, worst_ulps);
      ASSERT_TRUE((*engine)->Close().ok());
    }
  }
}

}  // namespace
}  // namespace strata
