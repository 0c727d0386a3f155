// Who may use a worker id. Pure: decided from what is known of the worker that has it.
#ifndef SERVER_STATE_WORKER_CLAIM_H_
#define SERVER_STATE_WORKER_CLAIM_H_

#include <cstdint>
#include <string>

#include "server/state/scheduler.h"

namespace strata::server {

enum class Claim {
  kGranted,     // the id is the agent's own, or nobody's any more
  kSuperseded,  // a newer incarnation of the same agent has it
  kHeld,        // another agent has it, until its lease is over
};

// `holder` is the worker of that id, `holds_jobs` whether attempts are on it. An agent is the same as another
// when their identities are equal; a restart keeps it, so it has its id back at once. A holder whose identity
// is not known ("": an older agent, or a job stored by an older coordinator) may be anybody's predecessor:
// then only the incarnations are compared.
Claim JudgeClaim(const Worker& holder, bool holds_jobs, const std::string& identity, int64_t incarnation);

// Whether an attempt that was granted to `granted` may be run by an agent of `identity`; "" is as above.
inline bool MayBeSameAgent(const std::string& granted, const std::string& identity) {
  return granted.empty() || identity.empty() || granted == identity;
}

}  // namespace strata::server

#endif  // SERVER_STATE_WORKER_CLAIM_H_
