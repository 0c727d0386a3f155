// Dependencies of a plan, from the hazards between its operands.
#ifndef OFFLOAD_PLAN_DEPENDENCIES_H_
#define OFFLOAD_PLAN_DEPENDENCIES_H_

#include <vector>

#include "offload/plan/step_plan.h"

namespace strata {

// Order beyond hazards: `op` waits for `on` (of the same step, or of the step before).
struct ExplicitOrder {
  int32_t op = -1;
  Dependency on;
};

// Fills Op::dependencies of every operation: read after write, write after read and write after write on
// overlapping bytes of a slot, and `orders`. Two copies of the step are analysed one after the other; what
// the second copy waits for in the first becomes a dependency of distance 1. Dependencies that lane order
// and other dependencies imply are left out, so the lists are as short as they can be.
void DeriveDependencies(const std::vector<ExplicitOrder>& orders, StepPlan* plan);

}  // namespace strata

#endif  // OFFLOAD_PLAN_DEPENDENCIES_H_
