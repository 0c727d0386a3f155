// Trainers that the kernel killed because there was no memory left.
#ifndef WORKER_AGENT_MEMORY_KILL_H_
#define WORKER_AGENT_MEMORY_KILL_H_

#include <optional>

#include "common/memory_limit.h"
#include "proto/strata/v1/jobs.pb.h"

namespace strata {

// Whether the kernel has killed in this process's control group since `before`; false where it does not tell.
bool KilledForMemorySince(const std::optional<MemoryKills>& before);

// Makes `failure`, of a trainer that ended by SIGKILL, one that was killed for lack of memory: its cause, and
// as its message the limit and what to lower.
void BlameMemory(v1::Failure* failure);

}  // namespace strata

#endif  // WORKER_AGENT_MEMORY_KILL_H_
