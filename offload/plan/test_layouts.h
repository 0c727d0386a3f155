// Hand-made layouts and choices for tests of plans: shapes that no real model needs but a planner must take.
#ifndef OFFLOAD_PLAN_TEST_LAYOUTS_H_
#define OFFLOAD_PLAN_TEST_LAYOUTS_H_

#include <vector>

#include "common/random.h"
#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"

namespace strata {

struct TestShape {
  int layers = 3;
  int64_t layer_elements = 10240;
  int64_t edge_elements = 6144;  // embedding and head
  int64_t norm_elements = 64;    // a second, small unit of the head; 0: none
  bool tied = false;
  int units_per_layer = 1;
  DType compute = DType::kBF16;
  Moments moments = Moments::kF32;
  int64_t activation_bytes = 8192;
  int64_t saved_bytes = 12000;
  int64_t saved_rest_bytes = 8000;
  uint64_t frozen_units = 0;  // a bit for each
};

ModelLayout MakeTestLayout(const TestShape& shape);

// All units and blocks alike.
PlanChoice UniformChoice(const ModelLayout& layout, Tier params, Tier gradients, Tier record,
                         Tier activations, bool keep_saved);

// What blocks keep between FORWARD and BACKWARD, and where: one of each kind that a plan can have.
struct Holding {
  const char* name;
  PlanChoice::Saved saved;
  Tier saved_home;
  Tier activation;
  int segment = 1;     // blocks of a segment
  bool mixed = false;  // only every other segment; the blocks of the others turn through all that is kept
};
const std::vector<Holding>& Holdings();
void Hold(const Holding& holding, PlanChoice* choice);

// Numbers in a row from a seed.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : random_(seed, 0) {}
  int Below(int n) { return static_cast<int>(random_.Below(draw_++, static_cast<uint64_t>(n))); }
  double Uniform() { return random_.Uniform(draw_++); }
  Tier AnyTier() { return static_cast<Tier>(Below(kTierCount)); }

 private:
  const CounterRandom random_;
  uint64_t draw_ = 0;
};

// Any shape, and of it any choice there is a plan for: modes, homes of every unit, what every block keeps and
// where, segments, micro-batches, depths, lanes and chunks, direct or not. `minimum_slots`: depth 1, the
// least memory that works.
TestShape RandomShape(TestRandom& random);
PlanChoice RandomChoice(const ModelLayout& layout, TestRandom& random, bool minimum_slots);

}  // namespace strata

#endif  // OFFLOAD_PLAN_TEST_LAYOUTS_H_
