#include "server/service/budget_planner.h"

#include "absl/strings/str_cat.h"

namespace strata::server {
namespace {

// The bytes that the job takes of one resource (limit 0: not known); adds the tier's row, and a shortfall
// when there is less.
int64_t Take(v1::JobPlan& plan, const char* tier, int64_t budget, int64_t limit) {
  const int64_t taken = budget > 0 ? budget : limit;
  v1::TierRow* row = plan.add_tiers();
  row->set_tier(tier);
  row->set_budget_bytes(taken);
  row->set_peak_bytes(taken);
  if (limit > 0 && taken > limit) {
    v1::Shortfall* shortfall = plan.add_shortfalls();
    shortfall->set_resource(tier);
    shortfall->set_requested(taken);
    shortfall->set_free(limit);
    shortfall->set_total(limit);
    shortfall->set_remedy(
        absl::StrCat("set memory.", tier, " to at most ", limit, " or add a worker that has as much"));
  }
  return taken;
}

}  // namespace

absl::StatusOr<v1::JobPlan> PlanByBudget(const v1::JobSpec& spec, const v1::ResourceRequest& limits) {
  v1::JobPlan plan;
  v1::ResourceRequest& resources = *plan.mutable_resources();
  resources.set_device_bytes(Take(plan, "device", spec.memory().device(), limits.device_bytes()));
  resources.set_host_bytes(Take(plan, "host", spec.memory().host(), limits.host_bytes()));
  resources.set_nvme_bytes(Take(plan, "nvme", spec.memory().nvme(), limits.nvme_bytes()));
  if (spec.training().precision() == v1::PRECISION_FP8 && !limits.why_no_fp8().empty()) {
    v1::Shortfall* shortfall = plan.add_shortfalls();
    shortfall->set_resource("fp8");
    shortfall->set_remedy(limits.why_no_fp8());
  }
  plan.set_fits(plan.shortfalls_size() == 0);
  plan.set_micro_batch(spec.training().micro_batch());
  return plan;
}

}  // namespace strata::server
