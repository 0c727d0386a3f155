#include "offload/exec/loss_scale.h"

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(LossScale, HalvesOnOverflowAndDoublesAfterGoodSteps) {
  const LossScaleRule rule{.growth_interval = 3, .min = 2, .max = 64};
  LossScale now{.scale = 16};
  const auto expect = [&](bool finite, double scale, int64_t good_steps) {
    now = AfterStep(now, rule, finite);
    EXPECT_EQ(now, (LossScale{scale, good_steps}));
  };
  expect(true, 16, 1);
  expect(true, 16, 2);
  expect(true, 32, 0);
  expect(true, 32, 1);
  expect(false, 16, 0);  // good steps before an overflow do not count
  expect(true, 16, 1);
  expect(true, 16, 2);
  expect(true, 32, 0);
  for (const double scale : {16, 8, 4, 2, 2, 2}) expect(false, scale, 0);
  for (const double scale : {4, 8, 16, 32, 64, 64}) {
    expect(true, scale / 2 < 2 ? 2 : now.scale, 1);
    expect(true, now.scale, 2);
    expect(true, scale, 0);
  }
}

TEST(LossScale, TheDefaultsAreThoseOfGradScaler) {
  LossScale now{.scale = 65536};
  for (int i = 0; i < 1999; ++i) now = AfterStep(now, {}, true);
  EXPECT_EQ(now, (LossScale{65536, 1999}));
  EXPECT_EQ(AfterStep(now, {}, true), (LossScale{131072, 0}));
  EXPECT_EQ(AfterStep(now, {}, false), (LossScale{32768, 0}));
}

}  // namespace
}  // namespace strata
