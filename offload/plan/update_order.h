// Which updates a step makes under its backward pass and which under the forward pass of the next one.
#ifndef OFFLOAD_PLAN_UPDATE_ORDER_H_
#define OFFLOAD_PLAN_UPDATE_ORDER_H_

#include <vector>

#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"

namespace strata {

// By unit: updated before CLIP, on the assumption that the step is neither clipped nor skipped. Only a record
// with versions survives that: on NVMe the version before is there until COMMIT. Records in memory are
// updated in place and cost no I/O, so they wait.
//
// A unit's update has from the end of its backward pass to the start of its forward pass in the next step:
// that of the model's first unit no time at all, that of the last a whole step. So, from the first outwards,
// records are dealt to the time after CLIP, beside the next forward pass, and to the time before it, beside
// the backward pass, by how long these take: the drive has work beside both, and nobody waits for the last
// half of it.
// `first_use_order`: units by their first use in a forward pass (LayoutFacts).
std::vector<bool> UpdatedBeforeClip(const ModelLayout& layout, const std::vector<int>& first_use_order,
                                    const PlanChoice& choice);

}  // namespace strata

#endif  // OFFLOAD_PLAN_UPDATE_ORDER_H_
