// Verifier: proves that a plan is safe to run, whatever the timing of its lanes. Always on before a run.
//
// It knows nothing of how plans are built. It unrolls the plan over three steps, computes what happens before
// what from lane order and dependencies alone (vector clocks), follows every byte of every slot in program
// order, and demands
//  - structure: indices, ranges, alignment and operands by kind, as step_plan.h says; no cycle;
//  - memory: slots of a tier disjoint and inside its arena;
//  - no race: two accesses to one byte, one of them a write, are ordered, and as in program order; so every
//    run, whatever its timing, computes what program order computes;
//  - the right bytes: each read finds exactly the content (block, unit, chunk, micro-batch, number of
//  gradients,
//    optimizer step) that it names;
//  - the whole step: every micro-batch passes every block, each gradient enters its sum once, each chunk is
//    updated once with the complete sum, and is back in its home before COMMIT; nothing of the next step
//    changes state before COMMIT of this one; of units that are frozen nothing moves but parameters;
//  - no waste: what a transfer writes is read, or is a home's content at COMMIT.
// Time is about linear in the operations.
#ifndef OFFLOAD_PLAN_VERIFIER_H_
#define OFFLOAD_PLAN_VERIFIER_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "offload/plan/step_plan.h"

namespace strata {

// kInternal (a plan comes from our own builder) names the operation, the slot, what it expects and what is
// there.
absl::Status VerifyPlan(const StepPlan& plan);

// Also: kResourceExhausted where an arena is larger than its tier's budget.
absl::Status VerifyPlan(const StepPlan& plan, const std::array<int64_t, kTierCount>& budget);

}  // namespace strata

#endif  // OFFLOAD_PLAN_VERIFIER_H_
