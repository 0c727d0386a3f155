// The lanes of a plan by what runs on them.
#ifndef OFFLOAD_PLAN_LANE_SET_H_
#define OFFLOAD_PLAN_LANE_SET_H_

#include <cstdint>
#include <vector>

#include "offload/plan/planner.h"
#include "offload/plan/slot_table.h"
#include "offload/plan/step_plan.h"

namespace strata {

struct NvmeLanes {
  int32_t read = -1, write = -1;
};

// Indices into StepPlan::lanes; -1: nothing would run there, so there is no such lane.
struct LaneSet {
  int32_t batch = -1, commit = -1, compute = -1, cpu = -1, h2d = -1, d2h = -1;
  // Parameters that come back from a CPU update wait for it; what is fetched for a block must not wait
  // behind.
  int32_t home = -1;
  // NVMe: with one I/O thread everything is on one lane. Else parameters, what is held from FORWARD to
  // BACKWARD, and sums of gradients have a lane each: none waits for another, nor for records, which have the
  // other lanes, one chunk after the other. What is direct has lanes of its own in any case: parameters that
  // are fetched, and what is held.
  NvmeLanes params, held, sums;
  std::vector<NvmeLanes> records;
  // What may have to be done again has lanes of its own in any case: operations that wait for CLIP and then
  // seldom do anything must not stand before those that do.
  NvmeLanes redo;
};

// Appends them to `lanes`. `frozen`: by unit, nothing of it is trained; `table` is that of the choice;
// `redoes`: units are updated before CLIP.
LaneSet MakeLanes(const PlanChoice& choice, const std::vector<bool>& frozen, const SlotTable& table,
                  PlanKind kind, bool redoes, std::vector<Lane>* lanes);

}  // namespace strata

#endif  // OFFLOAD_PLAN_LANE_SET_H_
