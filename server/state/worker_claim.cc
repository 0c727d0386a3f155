#include "server/state/worker_claim.h"

namespace strata::server {

Claim JudgeClaim(const Worker& holder, bool holds_jobs, const std::string& identity, int64_t incarnation) {
  if (holder.identity.empty() || holder.identity == identity)
    return incarnation < holder.incarnation ? Claim::kSuperseded : Claim::kGranted;
  if (holder.state == WorkerState::kLost) return Claim::kGranted;
  // It said that it is stopping, and nothing of it runs any more: it needs the id no longer.
  const bool left = holder.draining && !holds_jobs && holder.leftovers.empty();
  return left ? Claim::kGranted : Claim::kHeld;
}

}  // namespace strata::server
