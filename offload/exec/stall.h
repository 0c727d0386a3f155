// Why a lane waited: the cause of a stall, from what the operation waits for and how the two conflict.
#ifndef OFFLOAD_EXEC_STALL_H_
#define OFFLOAD_EXEC_STALL_H_

#include <array>
#include <cstdint>

#include "offload/plan/step_plan.h"

namespace strata {

enum class StallCause : uint8_t {
  kRead,      // bytes from NVMe
  kCopy,      // bytes from the other memory (parameters, activations)
  kCompute,   // the result of a block
  kGradient,  // a gradient, or its sum
  kNorm,      // the global norm: CLIP and what it needs
  kUpdate,    // the result of an optimizer update
  kWrite,     // memory or an item that is still being written to NVMe
  kSlot,      // memory that someone else still uses
  kBatch,     // tokens
  kCommit,    // the end of the step before
};
inline constexpr int kStallCauses = 10;

// "wait_read", "wait_slot", ...
const char* Name(StallCause cause);

// The cause of waiting with `op` for `dependency` (one of its own). Operations that share no bytes are
// ordered by the plan's mode, or stand for a conflict that dependencies imply: then the kind of the producer
// tells.
StallCause StallCauseOf(const StepPlan& plan, const Op& op, const Dependency& dependency);

}  // namespace strata

#endif  // OFFLOAD_EXEC_STALL_H_
