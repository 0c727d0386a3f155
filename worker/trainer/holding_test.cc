// What blocks hold between FORWARD and BACKWARD, and where, on small real models: the same bits whatever is
// kept, moved or computed again, and no byte above the plan's.
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/random.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/engine/rank_engine.h"
#include "offload/io/path_probe.h"
#include "offload/plan/test_layouts.h"
#include "worker/model/init.h"
#include "worker/model/model.h"

namespace strata {
namespace {

constexpr int64_t kMicroBatches = 3;
constexpr int kVocab = 64;

ModelConfig SmallLlama() {
  ModelConfig config;
  config.layers = 4;
  config.hidden = 48;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 12;
  config.ffn = 80;
  config.vocab = kVocab;
  config.max_seq = 24;
  return config;
}

ModelConfig SmallGpt2() {
  ModelConfig config = SmallLlama();
  config.architecture = Architecture::kGpt2;
  config.activation = Activation::kGeluTanh;
  config.kv_heads = 4;
  config.tied_head = true;
  return config;
}

// Random tokens as a function of (step, micro-batch).
class RandomTokens : public StepSource {
 public:
  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    const CounterRandom random(11, static_cast<uint64_t>(step * 1000 + micro_batch));
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<int32_t>(random.Below(i, kVocab));
      targets[i] = static_cast<int32_t>(random.Below(i + 1, kVocab));
    }
    return absl::OkStatus();
  }
  double GradientScale(int64_t) override { return 1e-2; }
  AdamWHyper Hyper(int64_t, int) const override { return {.lr = 3e-3}; }
  bool OnStep(const StepResult& result) override {
    losses += absl::StrCat(std::bit_cast<uint32_t>(result.loss), " ");
    last = result;
    return true;
  }

  std::string losses;
  StepResult last;
};

class HoldingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/holding_test_" + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
    const auto info = ProbePath(folder_);
    ASSERT_TRUE(info.ok()) << info.status();
    direct_ = info->o_direct;
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_).ok()); }

  // Losses of a few steps, of an evaluation between them, and the state hash at the end.
  std::string Bits(const ModelLayout& layout, const PlanChoice& choice) {
    absl::StatusOr<BuiltPlans> built = BuildPlans(layout, choice);
    EXPECT_TRUE(built.ok()) << built.status();
    if (!built.ok()) return "";
    PlannedJob job;
    job.choice = choice;
    job.train = std::move(built->train);
    job.eval = std::move(built->eval);
    for (int t = 0; t < kTierCount; ++t)
      job.peak_bytes[t] = std::max(job.train.arena_bytes[t], job.eval.arena_bytes[t]);
    const std::unique_ptr<StateOps> state_ops = MakeCpuStateOps(1);
    const std::unique_ptr<Ops> ops = MakeCpuOps(layout.compute_dtype, 1);
    const std::unique_ptr<BlockCompute> model = MakeModel(layout, *ops);
    RankEngineOptions options;
    options.store.paths = {NvmePath{.path = folder_}};
    options.store.owner = "job";
    options.store.direct = direct_ ? DirectIo::kRequire : DirectIo::kBuffered;
    options.train.clip_norm = 1.0;
    auto engine = RankEngine::Create(layout, std::move(job), *model, *state_ops, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return "";
    EXPECT_TRUE((*engine)
                    ->Initialize([](const TensorInfo& tensor, int64_t element, std::span<float> out) {
                      InitializeTensor(tensor, 7, element, out);
                      return absl::OkStatus();
                    })
                    .ok());
    RandomTokens source, eval;
    TrainerCounters counters;
    for (const int64_t steps : {1, 2}) {
      const absl::Status trained = (*engine)->train().Run(source, steps, counters);
      EXPECT_TRUE(trained.ok()) << trained;
      TrainerCounters unchanged = counters;
      const absl::Status evaluated = (*engine)->eval().Run(eval, 1, unchanged);
      EXPECT_TRUE(evaluated.ok()) << evaluated;
      if (!trained.ok() || !evaluated.ok()) return "";
    }
    const absl::StatusOr<std::string> hash = (*engine)->StateHash(counters.iterations);
    EXPECT_TRUE(hash.ok()) << hash.status();
    for (int t = 0; t < kTierCount; ++t) {
      EXPECT_EQ((*engine)->HighWaterBytes(source.last)[t], (*engine)->planned().train.arena_bytes[t])
          << Name(static_cast<Tier>(t));
    }
    EXPECT_TRUE((*engine)->Close().ok());
    return absl::StrCat(source.losses, eval.losses, hash.value_or("?"));
  }

  std::string folder_;
  bool direct_ = false;
};

TEST_F(HoldingTest, IsInvisibleToTheResult) {
  for (const auto& [model, config] : {std::pair("llama", SmallLlama()), std::pair("gpt2", SmallGpt2())}) {
    const absl::StatusOr<ModelLayout> layout = BuildModelLayout(config, DType::kBF16, 2, 24);
    ASSERT_TRUE(layout.ok()) << layout.status();
    PlanChoice choice =
        UniformChoice(*layout, Tier::kDevice, Tier::kDevice, Tier::kDevice, Tier::kDevice, true);
    choice.clip = true;
    choice.micro_batches = kMicroBatches;
    const std::string expected = Bits(*layout, choice);
    ASSERT_FALSE(HasFailure());
    int n = 0;
    for (const Holding& holding : Holdings()) {
      for (const int depth : {1, 3}) {
        for (PlanChoice::UnitHome& home : choice.units)
          home = {static_cast<Tier>(n % 3), static_cast<Tier>((n / 3) % 3),
                  n % 2 == 0 ? Tier::kHost : Tier::kNvme};
        choice.io_threads = 1 + n % 3;
        choice.prefetch_depth = depth;
        Hold(holding, &choice);
        EXPECT_EQ(Bits(*layout, choice), expected) << model << ", " << holding.name << ", prefetch " << depth;
        ++n;
      }
    }
  }
}

}  // namespace
}  // namespace strata
