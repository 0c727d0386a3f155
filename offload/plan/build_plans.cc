#include "common/status.h"
#include "offload/plan/builder.h"
#include "offload/plan/planner.h"
#include "offload/plan/verifier.h"

namespace strata {

absl::StatusOr<BuiltPlans> BuildPlans(const ModelLayout& layout, const PlanChoice& choice) {
  BuiltPlans plans;
  STRATA_ASSIGN_OR_RETURN(plans.train, BuildPlan(layout, choice, PlanKind::kTrain));
  STRATA_RETURN_IF_ERROR(VerifyPlan(plans.train), "training plan");
  STRATA_ASSIGN_OR_RETURN(plans.eval, BuildPlan(layout, choice, PlanKind::kEval));
  STRATA_RETURN_IF_ERROR(VerifyPlan(plans.eval), "evaluation plan");
  return plans;
}

}  // namespace strata
