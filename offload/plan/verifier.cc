#include "offload/plan/verifier.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "offload/plan/verifier_util.h"

namespace strata {

absl::Status VerifyPlan(const StepPlan& plan) {
  STRATA_RETURN_IF_ERROR(verifier::CheckStructure(plan));
  STRATA_RETURN_IF_ERROR(verifier::CheckStep(plan));
  return verifier::CheckRuns(plan);
}

absl::Status VerifyPlan(const StepPlan& plan, const std::array<int64_t, kTierCount>& budget) {
  for (int t = 0; t < kTierCount; ++t) {
    if (plan.arena_bytes[t] > budget[t])
      return absl::ResourceExhaustedError(absl::StrCat("the plan takes ", plan.arena_bytes[t], " bytes of ",
                                                       Name(static_cast<Tier>(t)), " memory, the budget is ",
                                                       budget[t]));
  }
  return VerifyPlan(plan);
}

}  // namespace strata
