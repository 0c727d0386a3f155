#include "offload/plan/update_order.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "offload/plan/slot_table.h"
#include "offload/plan/test_layouts.h"

namespace strata {
namespace {

class UpdateOrderTest : public ::testing::Test {
 protected:
  UpdateOrderTest() {
    // The head has no second unit: units are the embedding, the layers and the head, all of one size.
    layout_ = MakeTestLayout(TestShape{
        .layers = 14, .layer_elements = 8192, .edge_elements = 8192, .norm_elements = 0, .tied = false});
    choice_ = UniformChoice(layout_, Tier::kHost, Tier::kHost, Tier::kNvme, Tier::kHost, true);
    choice_.mode = Mode::kOverlap;
    SetFlops(1, 1);
  }
  void SetFlops(double forward, double backward) {
    for (Block& block : layout_.blocks) {
      block.forward_flops = forward;
      block.backward_flops = backward;
    }
  }
  // In the order of a forward pass.
  std::vector<bool> Before() const {
    const LayoutFacts facts(layout_);
    const std::vector<bool> by_unit = UpdatedBeforeClip(layout_, facts.first_use_order, choice_);
    std::vector<bool> before;
    for (const int u : facts.first_use_order) before.push_back(by_unit[u]);
    return before;
  }
  int64_t Count() const {
    const std::vector<bool> before = Before();
    return std::count(before.begin(), before.end(), true);
  }

  ModelLayout layout_;
  PlanChoice choice_;
};

TEST_F(UpdateOrderTest, UnitsAreDealtFromTheFirstOutwards) {
  ASSERT_EQ(layout_.units.size(), 16u);
  const std::vector<bool> before = Before();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i], i % 2 == 1) << i;
  choice_.mode = Mode::kSpeculative;
  EXPECT_EQ(Before(), before);
}

TEST_F(UpdateOrderTest, ThePassThatTakesLongerGetsMore) {
  SetFlops(1, 3);
  EXPECT_EQ(Count(), 12);
  // Recomputing is a part of the backward pass.
  SetFlops(1, 2);
  for (PlanChoice::BlockChoice& block : choice_.blocks) block.saved = PlanChoice::Saved::kRecompute;
  EXPECT_EQ(Count(), 12);
  // FLOPs are not all that a forward pass takes.
  SetFlops(0, 1);
  EXPECT_EQ(Count(), 12);
  SetFlops(0, 0);
  EXPECT_EQ(Count(), 8);
}

TEST_F(UpdateOrderTest, ALargeFirstUnitIsWeighed) {
  for (ParamUnit& unit : layout_.units) unit.elements = 100;
  layout_.units[LayoutFacts(layout_).first_use_order[0]].elements = 450;
  const std::vector<bool> before = Before();
  EXPECT_EQ(std::vector<bool>(before.begin(), before.begin() + 8),
            std::vector<bool>({false, true, true, true, true, true, false, true}));
}

TEST_F(UpdateOrderTest, OnlyRecordsThatHaveVersionsAndOnlyInModesThatAssume) {
  const int last = LayoutFacts(layout_).first_use_order.back();
  EXPECT_TRUE(Before().back());
  choice_.units[last].record = Tier::kHost;
  EXPECT_FALSE(Before().back());
  EXPECT_EQ(Count(), 7);
  for (const Mode mode : {Mode::kSync, Mode::kForwardOverlap, Mode::kDelayed}) {
    choice_.mode = mode;
    EXPECT_EQ(Count(), 0) << Name(mode);
  }
}

}  // namespace
}  // namespace strata
