#include "offload/plan/dump.h"

#include <algorithm>
#include <string>

#include "gtest/gtest.h"
#include "offload/plan/builder.h"
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
