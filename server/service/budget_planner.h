// BudgetPlanner: admission by the budgets of the job alone, for tests of what stands around a planner.
#ifndef SERVER_SERVICE_BUDGET_PLANNER_H_
#define SERVER_SERVICE_BUDGET_PLANNER_H_

#include "server/service/coordinator.h"

namespace strata::server {

// A Planner for a coordinator that knows nothing of models: a job takes its memory budgets, and all that the
// worker has where it leaves them open.
absl::StatusOr<v1::JobPlan> PlanByBudget(const v1::JobSpec& spec, const v1::ResourceRequest& limits);

}  // namespace strata::server

#endif  // SERVER_SERVICE_BUDGET_PLANNER_H_
