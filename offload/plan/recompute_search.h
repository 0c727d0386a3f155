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
// The cost model, of a micro-batch, with what goes beyond the device ("swapped"):
//   forward  = max(computing, parameters over the link, swapped out over the link)
//   backward = max(computing + computing again, parameters and swapped in over the link)
//   seconds  = max(forward + backward, what the lanes have to do whatever is chosen,
//                  gradients and swapped out over the link, all that the drive moves)
// The device must hold what is kept, and two pools beside: the most that one block or segment has there of
// what it computes again, and the most that a swapped block has, once for each slot of prefetch depth.
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
  bool allow_selective = true, allow_swap = true;
  int max_segment = 1;  // blocks
  int depth = 1;        // slots through which what is swapped goes
  // Of a micro-batch; swaps and computing again not counted.
  double forward_seconds = 0, backward_seconds = 0;  // computing
  double fetch_seconds = 0;                          // parameters over the link, in each of both passes
  double send_seconds = 0;                           // gradients over the link
  double nvme_seconds = 0;                           // of the drive
  double floor_seconds = 0;                          // of the busiest other lane
  double out_seconds_per_byte = 0, in_seconds_per_byte = 0;  // over the link
  double nvme_seconds_per_byte = 0;                          // written and read
};

struct ChainSolution {
  std::vector<PlanChoice::BlockChoice> blocks;
  double seconds = 0;
  std::array<int64_t, kTierCount> bytes{};  // the device's with what runs there
};

// nullopt: nothing fits. `buckets`: per tier, how finely bytes are told apart; `stages_max`: of longer chains
// some blocks in a row, if they are alike, are decided together. With as many buckets as there are different
// sums and as many stages as blocks (and segments of up to four blocks) the result is the optimum of the cost
// model, with fewer it is one that fits and is near it. Blocks that are alike have their decisions dealt out
// evenly, so that transfers are too.
std::optional<ChainSolution> SolveChain(const ChainProblem& problem, int buckets = 48, int stages_max = 40);

// What `blocks` take by the cost model; nullopt when they do not fit.
std::optional<ChainSolution> EvaluateChain(const ChainProblem& problem,
                                           const std::vector<PlanChoice::BlockChoice>& blocks);

}  // namespace strata

#endif  // OFFLOAD_PLAN_RECOMPUTE_SEARCH_H_
