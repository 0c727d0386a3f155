// Estimate: a plan run by a clock instead of a machine.
#ifndef OFFLOAD_PLAN_ESTIMATE_H_
#define OFFLOAD_PLAN_ESTIMATE_H_

#include <vector>

#include "offload/plan/planner.h"
#include "offload/plan/step_plan.h"

namespace strata {

struct PlanEstimate {
  double step_seconds = 0;          // from COMMIT to COMMIT, once the lanes have filled
  std::vector<LaneEstimate> lanes;  // by lane of the plan, per step
  int binding_lane = 0;             // the busiest
};

// Seconds of one operation alone on its lane.
double OpSeconds(const StepPlan& plan, const Op& op, const MachineProfile& profile);

// Lanes are FIFO, an operation starts when its lane is free and its dependencies have ended; three steps are
// run and the last counts. Lanes of one kind share a disk: no step is faster than their bytes together.
PlanEstimate EstimatePlan(const StepPlan& plan, const MachineProfile& profile);

}  // namespace strata

#endif  // OFFLOAD_PLAN_ESTIMATE_H_
