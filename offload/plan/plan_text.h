// Parts of a plan in words, for messages and dumps.
#ifndef OFFLOAD_PLAN_PLAN_TEXT_H_
#define OFFLOAD_PLAN_PLAN_TEXT_H_

#include <string>

#include "offload/plan/step_plan.h"

namespace strata {

// "params unit 3 chunk 0 updates 1"
std::string Describe(const Content& content);
// "op 17 FORWARD block 3 micro-batch 0 on compute.0"
std::string DescribeOp(const StepPlan& plan, int32_t op);
// "slot 4 fetch.params.0 (device)"
std::string DescribeSlot(const StepPlan& plan, int32_t slot);
// "compute.0"
std::string DescribeLane(const Lane& lane);

}  // namespace strata

#endif  // OFFLOAD_PLAN_PLAN_TEXT_H_
