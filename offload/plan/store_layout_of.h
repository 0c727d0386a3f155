// The NVMe store of a plan.
#ifndef OFFLOAD_PLAN_STORE_LAYOUT_OF_H_
#define OFFLOAD_PLAN_STORE_LAYOUT_OF_H_

#include "offload/plan/step_plan.h"
#include "offload/store/store_layout.h"

namespace strata {

// One item per NVMe slot; its id is the slot's index. CapacityBytes of it is the plan's arena_bytes[kNvme].
// No item is ever written ahead: the plan orders COMMIT of a step before every UPDATE of the next.
StoreLayout StoreLayoutOf(const StepPlan& plan);

}  // namespace strata

#endif  // OFFLOAD_PLAN_STORE_LAYOUT_OF_H_
