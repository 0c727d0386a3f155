// Runs a plan with symbols instead of numbers, for tests: every 64 bytes of every slot hold a hash of all
// that went into them. It knows nothing of contents, only of operations and where they read and write, so it
// says what a schedule computes: equal digests mean equal data flow.
#ifndef OFFLOAD_PLAN_SYMBOLIC_RUN_H_
#define OFFLOAD_PLAN_SYMBOLIC_RUN_H_

#include <cstdint>
#include <optional>

#include "offload/plan/step_plan.h"

namespace strata {

// A digest of every loss, norm and (between steps) every home over `steps` steps. With a schedule seed, lanes
// take turns at random, bound only by lane order and dependencies (at most two steps in flight), so it may
// differ from that of program order exactly when the plan is unsafe. Two placements of one model have one
// digest when their chunks are the same. `redo`: the steps in which CLIP finds what was assumed wrong; what
// assumed operations computed in them is then no step's result.
enum class RedoSteps { kNone, kAll, kOdd };
uint64_t SymbolicRun(const StepPlan& plan, int steps, std::optional<uint64_t> schedule_seed,
                     RedoSteps redo = RedoSteps::kNone);

}  // namespace strata

#endif  // OFFLOAD_PLAN_SYMBOLIC_RUN_H_
