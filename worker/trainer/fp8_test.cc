// precision: fp8 in training jobs.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_spec/plan_job.h"
#include "worker/trainer/engine_testing.h"

namespace strata {
namespace {

using testing::HasSubstr;

using Fp8Test = EngineTest;

TEST_F(Fp8Test, PlacementAndRecomputeAreInvisibleToTheResult) {
  const v1::JobSpec base = SmallFp8Llama();
  const std::string expected = Bits(base);
  ASSERT_FALSE(HasFailure());
  for (const char* name :
       {"all in device memory", "parameters and optimizer on NVMe", "recompute full", "recompute none",
        "recompute selective", "recompute optimal", "gradients on NVMe"}) {
    v1::JobSpec spec = base;
    SettingNamed(name).set(*spec.mutable_memory());
    EXPECT_EQ(Bits(spec), expected) << name;
  }
}

TEST_F(Fp8Test, TrainsAsBf16DoesWithOtherBits) {
  const auto train = [&](v1::Precision precision) {
    v1::JobSpec spec = SmallFp8Llama();
    spec.mutable_training()->set_precision(precision);
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
  const std::vector<StepResult> exact = train(v1::PRECISION_BF16), fp8 = train(v1::PRECISION_FP8);
  EXPECT_LT(exact.back().loss, 0.9 * exact.front().loss);
  double worst_loss = 0, worst_norm = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_FALSE(fp8[i].skipped) << i;
    worst_loss = std::max(worst_loss, std::fabs(fp8[i].loss / exact[i].loss - 1.0));
    worst_norm = std::max(worst_norm, std::fabs(fp8[i].grad_norm / exact[i].grad_norm - 1.0));
  }
  std::printf("loss within %.2g of bf16's, norm within %.2g\n", worst_loss, worst_norm);
  EXPECT_GT(worst_loss, 0);
  EXPECT_LT(worst_loss, 0.02);
  EXPECT_LT(worst_norm, 0.1);
}

TEST_F(Fp8Test, AGradientThatIsNotFiniteIsNotHidden) {
  const v1::JobSpec spec = SmallFp8Llama();
  auto engine = Make(spec);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Initialize(7).ok());
  RandomTokens source(spec);
  source.infinite_step_ = 1;
  TrainerCounters counters = StartOf(spec);
  ASSERT_TRUE((*engine)->train().Run(source, 3, counters).ok());
  EXPECT_FALSE(source.results[0].skipped);
  EXPECT_TRUE(source.results[1].skipped);
  EXPECT_FALSE(source.results[2].skipped);
  ASSERT_TRUE((*engine)->Close().ok());
}

TEST_F(Fp8Test, SizesThatCannotBeAreRefusedByName) {
  const auto refused = [](auto change, const char* what) {
    v1::JobSpec spec = SmallFp8Llama();
    change(spec);
    const absl::Status status = PlanJob(spec, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(std::string(status.message()), HasSubstr("use precision bf16"));
  };
  refused([](v1::JobSpec& s) { s.mutable_model()->mutable_config()->set_ffn(90); },
          "ffn: 90 is no multiple of 16");
  refused([](v1::JobSpec& s) { s.mutable_data()->set_seq_len(23); },
          "micro_batch times seq_len: 46 is no multiple");
  refused(
      [](v1::JobSpec& s) {
        s.mutable_model()->mutable_config()->set_kv_heads(1),
            s.mutable_model()->mutable_config()->set_head_dim(8);
      },
      "kv_heads times head_dim: 8 is no multiple");
}

}  // namespace
}  // namespace strata
