#include "worker/trainer/schedule.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(ScheduleTest, WarmupReachesTheRateAndTheLastUpdateTheMinimum) {
  for (const char* name : {"cosine", "linear"}) {
    const Schedule schedule{.name = name, .lr = 1e-3, .min_lr = 1e-4, .warmup_steps = 20, .steps = 300};
    EXPECT_DOUBLE_EQ(schedule.LearningRate(0), 1e-3 / 20);
    EXPECT_DOUBLE_EQ(schedule.LearningRate(19), 1e-3);
    EXPECT_DOUBLE_EQ(schedule.LearningRate(20), 1e-3);
    EXPECT_NEAR(schedule.LearningRate(299), 1e-4, 1e-18);
    EXPECT_NEAR(schedule.LearningRate(5000), 1e-4, 1e-18);
    for (int64_t step = 20; step < 299; ++step) {
      EXPECT_LE(schedule.LearningRate(step + 1), schedule.LearningRate(step));
    }
  }
}

TEST(ScheduleTest, ConstantStaysAndAWarmupOfTheWholeRunIsFine) {
  const Schedule constant{.name = "constant", .lr = 0.5, .warmup_steps = 0, .steps = 3};
  EXPECT_EQ(constant.LearningRate(0), 0.5);
  EXPECT_EQ(constant.LearningRate(2), 0.5);
  const Schedule warmup{.name = "cosine", .lr = 1, .min_lr = 0, .warmup_steps = 3, .steps = 3};
  EXPECT_DOUBLE_EQ(warmup.LearningRate(2), 1);
}

}  // namespace
}  // namespace strata
