#include "offload/plan/estimate.h"

#include <algorithm>
#include <string>

#include "gtest/gtest.h"
#include "offload/plan/builder.h"
#include "offload/plan/dump.h"
#include "offload/plan/test_layouts.h"

namespace strata {
namespace {

StepPlan Build(Mode mode, int depth, Tier record = Tier::kNvme) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 6, .layer_elements = 1 << 20});
  PlanChoice choice = UniformChoice(layout, Tier::kHost, Tier::kHost, record, Tier::kHost, false);
  choice.mode = mode;
  choice.prefetch_depth = depth;
  choice.chunk_elements = 1 << 18;
  absl::StatusOr<StepPlan> plan = BuildPlan(layout, choice, PlanKind::kTrain);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(EstimateTest, AStepIsNoFasterThanItsBusiestLaneAndNoSlowerThanAllOfThem) {
  for (const Mode mode : {Mode::kSync, Mode::kOverlap, Mode::kForwardOverlap}) {
    for (const int depth : {1, 4}) {
      const PlanEstimate estimate = EstimatePlan(Build(mode, depth), MachineProfile());
      double sum = 0;
      for (const LaneEstimate& lane : estimate.lanes) {
        EXPECT_GE(estimate.step_seconds, lane.busy_seconds * (1 - 1e-9));
        sum += lane.busy_seconds;
      }
      EXPECT_LE(estimate.step_seconds, sum * (1 + 1e-9));
      EXPECT_GT(estimate.lanes[estimate.binding_lane].busy_seconds, 0);
    }
  }
}

TEST(EstimateTest, OverlapAndPrefetchSaveTime) {
  const MachineProfile profile;
  const double sync = EstimatePlan(Build(Mode::kSync, 1), profile).step_seconds;
  const double overlap = EstimatePlan(Build(Mode::kOverlap, 1), profile).step_seconds;
  const double deep = EstimatePlan(Build(Mode::kOverlap, 4), profile).step_seconds;
  EXPECT_LT(overlap, sync);
  EXPECT_LT(deep, overlap);
  EXPECT_LT(EstimatePlan(Build(Mode::kForwardOverlap, 4), profile).step_seconds,
            EstimatePlan(Build(Mode::kSync, 4), profile).step_seconds);
}

TEST(DumpTest, EqualPlansGiveEqualBytesAndNameEverything) {
  const StepPlan plan = Build(Mode::kOverlap, 2);
  const std::string text = DumpText(plan);
  EXPECT_EQ(text, DumpText(Build(Mode::kOverlap, 2)));
  for (const Slot& slot : plan.slots) EXPECT_NE(text.find(slot.name), std::string::npos) << slot.name;
  const std::string json = DumpJson(plan);
  EXPECT_EQ(json, DumpJson(Build(Mode::kOverlap, 2)));
  EXPECT_NE(json.find("\"kind\":\"COMMIT\""), std::string::npos);
  EXPECT_EQ(std::count(json.begin(), json.end(), '{'), std::count(json.begin(), json.end(), '}'));
}

}  // namespace
}  // namespace strata
