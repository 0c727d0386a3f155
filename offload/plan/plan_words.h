// What a plan, or the lack of one, says of itself: bytes by class and tier, traffic, reasons, remedies.
#ifndef OFFLOAD_PLAN_PLAN_WORDS_H_
#define OFFLOAD_PLAN_PLAN_WORDS_H_

#include "offload/model/model_layout.h"
#include "offload/plan/chooser.h"
#include "offload/plan/placement_search.h"
#include "offload/plan/planner.h"

namespace strata {

// Each fills the fields it is named after from what stands in `job` already: the choice and, for traffic,
// `train`; for notes all else.
void FillPlacement(const ModelLayout& layout, PlannedJob* job);
void FillTraffic(const StepPlan& train, PlannedJob* job);
void FillNotes(const PlanRequest& request, const PlacementSearch& search, const Candidate& best,
               PlannedJob* job);

// Of a request that nothing fits.
PlanShortfall ExplainShortfall(const PlanRequest& request, const PlacementSearch& search);

}  // namespace strata

#endif  // OFFLOAD_PLAN_PLAN_WORDS_H_
