// A whole plan as text, for people, and as JSON, for tools. Both are complete and stable: equal plans give
// equal bytes.
#ifndef OFFLOAD_PLAN_DUMP_H_
#define OFFLOAD_PLAN_DUMP_H_

#include <string>

#include "offload/plan/step_plan.h"

namespace strata {

std::string DumpText(const StepPlan& plan);
std::string DumpJson(const StepPlan& plan);

}  // namespace strata

#endif  // OFFLOAD_PLAN_DUMP_H_
