// Order that no operand shows: what a step is made of before COMMIT, and what a mode asks for.
#ifndef OFFLOAD_PLAN_MODE_ORDER_H_
#define OFFLOAD_PLAN_MODE_ORDER_H_

#include <cstdint>
#include <vector>

#include "offload/plan/dependencies.h"
#include "offload/plan/step_plan.h"

namespace strata {

// Operations that such order is about, by index; -1: there is none.
struct StepMarks {
  std::vector<int32_t> losses, norms, updates, hand_overs;
  int32_t last_backward = -1, clip = -1, commit = -1;
};

std::vector<ExplicitOrder> OrderByMode(const StepPlan& plan, const StepMarks& marks);

}  // namespace strata

#endif  // OFFLOAD_PLAN_MODE_ORDER_H_
