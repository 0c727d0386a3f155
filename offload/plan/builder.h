// Builder: a layout and the choices of a planner to the operations of a step. No choice is made here.
#ifndef OFFLOAD_PLAN_BUILDER_H_
#define OFFLOAD_PLAN_BUILDER_H_

#include "absl/status/statusor.h"
#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"
#include "offload/plan/step_plan.h"

namespace strata {

// Not verified: BuildPlans (planner.h) builds both kinds and verifies them. kInvalidArgument: CheckLayout and
// CheckChoice (slot_table.h).
absl::StatusOr<StepPlan> BuildPlan(const ModelLayout& layout, const PlanChoice& choice, PlanKind kind);

}  // namespace strata

#endif  // OFFLOAD_PLAN_BUILDER_H_
