// Recompute or keep or swap: what of each block's forward pass stays until its backward pass, and where, so
// that the time it adds is least and the bytes fit.
//
// After POFO (Beaumont et al. 2021) and rotor, on a chain whose operations are whole blocks. A block either
//  - keeps what its forward pass saved, on the device, in the host or on NVMe;
//  - keeps the part of it that is dear to compute (selective, Korthikanti et al. 2022), likewise;
//  - keeps its input only and runs its forward pass again; or
//  - keeps nothing, not even its input: it is part of a segment (Chen et al. 2016) that is run again from the
//    input of the segment's first block, and all of a segment lies on the device at once.
//
// The cost model: computing again takes its seconds. Swaps take the host link's seconds (both directions),
// those to NVMe also the drive's; of each as much is free as hides under computing (the slack).
//   added = again + max(0, link - link slack) + max(0, nvme - nvme slack)
// The device must hold what is kept and the largest of what one block or segment has there while it runs.
#ifndef OFFLOAD_PLAN_RECOMPUTE_SEARCH_H_
#define OFFLOAD_PLAN_RECOMPUTE_SEARCH_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "offload/plan/planner.h"
#include "offload/plan/step_plan.h"

namespace strata {

struct ChainBlock {
  double forward_seconds = 0;   // all of it again
  double rest_seconds = 0;      // what selective does not keep, again
  int64_t saved_bytes = 0;      // all that the forward pass leaves
  int64_t selective_bytes = 0;  // of them what selective keeps; 0: there is no such part
  int64_t input_bytes = 0;
};

struct ChainProblem {
  std::vector<ChainBlock> blocks;
  std::array<int64_t, kTierCount> budget{};  // bytes by Tier; 0 in a tier: nothing may go there
  Tier input_home = Tier::kDevice;           // of inputs that are kept
  double link_seconds_per_byte = 0;          // out and back
  double nvme_seconds_per_byte = 0;          // written and read
  double link_slack_seconds = 0, nvme_slack_seconds = 0;
  bool allow_selective = true, allow_swap = true;
  int max_segment = 1;  // blocks
};

struct ChainSolution {
  std::vector<PlanChoice::BlockChoice> blocks;
  double added_seconds = 0;
  std::array<int64_t, kTierCount> bytes{};  // the device's with what runs there
};

// nullopt: nothing fits. `buckets`: per tier, how finely bytes are told apart; with as many as there are
// different sums (or a budget of at most that many bytes) the result is the optimum of the cost model, with
// fewer it is one that fits and is near it.
std::optional<ChainSolution> SolveChain(const ChainProblem& problem, int buckets = 48);

// What `blocks` add by the cost model; nullopt when they do not fit.
std::optional<ChainSolution> EvaluateChain(const ChainProblem& problem,
                                           const std::vector<PlanChoice::BlockChoice>& blocks);

}  // namespace strata

#endif  // OFFLOAD_PLAN_RECOMPUTE_SEARCH_H_
