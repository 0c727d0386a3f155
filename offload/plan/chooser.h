// Which fitting choice: the one that is predicted to be fastest.
#ifndef OFFLOAD_PLAN_CHOOSER_H_
#define OFFLOAD_PLAN_CHOOSER_H_

#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/plan/placement_search.h"
#include "offload/plan/planner.h"

namespace strata {

// Seconds of a step of a choice, from plans that are quick to make: few of many micro-batches that are alike,
// and few of many chunks. `redo`: every assumption proves wrong, as where every step clips.
absl::StatusOr<double> Predict(const PlanRequest& request, const PlanChoice& choice, bool redo = false);

struct ModeTrial {
  Mode mode = Mode::kSync;
  double seconds = 0;
  double redo_seconds = 0;  // speculative: where every step clips. Else as `seconds`.
};

// How a choice came about: with more memory the same way leads to its neighbour.
struct Candidate {
  PlanChoice start;
  std::vector<Move> order;
  PlanChoice choice;
  double seconds = std::numeric_limits<double>::infinity();
  std::vector<ModeTrial> modes;  // that were compared; empty: there was a wish
};

// `starts` fit, and are of `search`; no choice below `minimum` is taken. Equal times go to the earlier
// candidate, so the result is a function of the request.
absl::StatusOr<Candidate> Choose(const PlanRequest& request, const PlacementSearch& search,
                                 const TierBytes& minimum, const std::vector<PlanChoice>& starts);

}  // namespace strata

#endif  // OFFLOAD_PLAN_CHOOSER_H_
