// Placement search: which choices fit budgets, and which fitting choice is generous with them.
//
// What fits is decided over a fixed family of choices, so that "the smallest budget" has an exact meaning:
//  - *bases*: one home per class for all units (parameters, gradients, records, activations), one recompute
//    policy for all blocks (none or full; sqrt and selective where they are asked for) with one home for what
//    it keeps (beyond the device where it is asked for), as far as the wishes allow them, at the smallest
//    prefetch depth;
//  - *relief*: from a base that is over budget on NVMe or in the host, the first k units or blocks of a class
//    move one tier up, k the smallest that helps or all of them.
// Fits() asks whether any of them fits; Minimum() is the smallest budget of one tier for which it does.
// Fill() then gives what is left over to what it is worth most to, in an order that the caller tries out.
#ifndef OFFLOAD_PLAN_PLACEMENT_SEARCH_H_
#define OFFLOAD_PLAN_PLACEMENT_SEARCH_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "offload/plan/planner.h"
#include "offload/plan/recompute_search.h"
#include "offload/plan/slot_table.h"

namespace strata {

using TierBytes = std::array<int64_t, kTierCount>;

// What the forward passes of a base leave, and where.
struct Keeping {
  Recompute policy;
  Tier home = Tier::kDevice;
};

// Moves one class one way for the first k units or transformer blocks; what a wish pins down stays.
enum class Move : uint8_t {
  // Of blocks.
  kKeepSaved,          // no recompute
  kOptimizeSaved,      // what recompute_search.h finds; not for counts
  kSavedToHost,        // nvme -> host
  kSavedUp,            // host -> device
  kActivationsToHost,  // nvme -> host
  kActivationsUp,      // host -> device
  // Of units.
  kParamsToHost,  // nvme -> host
  kParamsToDevice,
  kHostParamsToDevice,
  kGradientsToHost,  // nvme -> host
  kGradientsUp,      // host -> device
  kRecordsToHost,    // nvme -> host
  kRecordsToDevice,  // where parameters and gradients are there
  kUnitsToDevice,    // parameters, gradients and records together
};

class PlacementSearch {
 public:
  // `request` has a checked layout, and outlives this.
  explicit PlacementSearch(const PlanRequest& request);

  // Bases, smallest in device memory first. Empty: the wishes exclude each other.
  const std::vector<PlanChoice>& bases() const { return bases_; }

  // All choices of the family that fit, in the order of bases(); at most `limit`.
  std::vector<PlanChoice> Fitting(const TierBytes& budget, size_t limit) const;
  bool Fits(const TierBytes& budget) const { return !Fitting(budget, 1).empty(); }

  // The smallest budget of `tier`, the others as given, for which Fits. nullopt: no budget of it is enough.
  std::optional<int64_t> Minimum(Tier tier, TierBytes budget) const;

  // `choice`, which fits, with each move in turn made as far as it fits.
  PlanChoice Fill(PlanChoice choice, const std::vector<Move>& order, const TierBytes& budget) const;

  TierBytes Peak(const PlanChoice& choice) const { return PeakBytes(*request_.layout, facts_, choice); }
  // The choice with `move` made for the first `count`.
  PlanChoice Moved(PlanChoice choice, Move move, int count) const;
  // Units or blocks that `move` could change.
  int Movable(Move move) const;

  static bool Within(const TierBytes& peak, const TierBytes& budget);

 private:
  std::optional<PlanChoice> Relieve(const PlanChoice& choice, const TierBytes& budget, size_t step) const;
  void AddBase(Tier params, Tier gradients, Tier record, Tier activation, const Keeping& keeping);
  // `choice` with the saved tensors of all blocks decided anew within what it leaves of the budget; as it is
  // where that finds nothing better.
  PlanChoice OptimizeSaved(const PlanChoice& choice, const TierBytes& budget) const;
  ChainProblem ChainOf(const PlanChoice& bare, const TierBytes& budget) const;

  const PlanRequest& request_;
  const LayoutFacts facts_;
  // Units by size: the slots that pools need for the largest go only with the last of a class, so that what
  // is taken from one tier and given to another changes in one direction until then.
  std::vector<int> order_;
  std::vector<PlanChoice> bases_;
};

}  // namespace strata

#endif  // OFFLOAD_PLAN_PLACEMENT_SEARCH_H_
