#include "offload/plan/chooser.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/checked.h"
#include "common/status.h"
#include "offload/plan/builder.h"
#include "offload/plan/simulator.h"
#include "offload/plan/slot_table.h"

namespace strata {
namespace {

// Orders in which memory that is left over is given away. First what else comes from NVMe and goes there in
// every micro-batch: of a start that has it in the host there is none.
std::vector<std::vector<Move>> FillOrders() {
  return {
      // Everything of a unit on the device, then what saves transfers, then what saves computing again.
      {Move::kGradientsToHost, Move::kActivationsToHost, Move::kSavedToHost, Move::kParamsToHost,
       Move::kUnitsToDevice, Move::kRecordsToHost, Move::kParamsToDevice, Move::kSavedUp, Move::kKeepSaved,
       Move::kActivationsUp, Move::kGradientsUp},
      // What saves computing again first.
      {Move::kSavedUp, Move::kKeepSaved, Move::kActivationsToHost, Move::kSavedToHost, Move::kGradientsToHost,
       Move::kParamsToHost, Move::kUnitsToDevice, Move::kRecordsToHost, Move::kParamsToDevice,
       Move::kActivationsUp, Move::kGradientsUp},
      // As little as possible through the disk, then through the device link.
      {Move::kActivationsToHost, Move::kSavedToHost, Move::kParamsToHost, Move::kGradientsToHost,
       Move::kRecordsToHost, Move::kParamsToDevice, Move::kActivationsUp, Move::kSavedUp, Move::kKeepSaved,
       Move::kGradientsUp, Move::kRecordsToDevice},
  };
}

std::vector<Move> ByBlock(std::vector<Move> order) {
  std::replace(order.begin(), order.end(), Move::kKeepSaved, Move::kOptimizeSaved);
  return order;
}

// Candidates: each order at the largest depth that fits, from the smallest start that fits and from the next
// kind of start; then the best order at smaller depths.
class Chooser {
 public:
  Chooser(const PlanRequest& request, const PlacementSearch& search, const TierBytes& minimum)
      : request_(request), search_(search), minimum_(minimum) {}

  absl::StatusOr<Candidate> Choose(const std::vector<PlanChoice>& starts) {
    STRATA_RETURN_IF_ERROR(Try(Candidate{starts.front(), {}, starts.front()}));
    for (const PlanChoice& start : starts) {
      std::vector<PlanChoice> deep;  // by depth, the largest first
      for (const int depth : request_.prefetch_depth > 0 ? std::vector<int>{request_.prefetch_depth}
                                                         : std::vector<int>{4, 2, 1}) {
        deep.push_back(start);
        deep.back().prefetch_depth = depth;
        if (!PlacementSearch::Within(search_.Peak(deep.back()), request_.budget)) deep.pop_back();
      }
      if (deep.empty()) continue;
      for (const std::vector<Move>& order : FillOrders()) {
        STRATA_RETURN_IF_ERROR(
            TryFilled(deep.front(), request_.recompute == Recompute::kOptimal ? ByBlock(order) : order));
      }
      // The best order with what is kept decided by block.
      if (!request_.recompute.has_value() && !best_.order.empty())
        STRATA_RETURN_IF_ERROR(TryFilled(deep.front(), ByBlock(best_.order)));
      const std::vector<Move> order = best_.order;
      for (size_t i = 1; i < deep.size(); ++i) STRATA_RETURN_IF_ERROR(TryFilled(deep[i], order));
    }
    return std::move(best_);
  }

 private:
  absl::Status TryFilled(const PlanChoice& start, const std::vector<Move>& order) {
    return Try(Candidate{start, order, search_.Fill(start, order, request_.budget)});
  }

  absl::Status Try(Candidate candidate) {
    const TierBytes peak = search_.Peak(candidate.choice);
    // A rare mixture that Fits() does not know could take less than the minimum that is promised.
    if (!PlacementSearch::Within(minimum_, peak)) return absl::OkStatus();
    if (!seen_.insert({candidate.choice.prefetch_depth, peak}).second) return absl::OkStatus();
    STRATA_ASSIGN_OR_RETURN(candidate.seconds, Predict(request_, candidate.choice));
    if (candidate.seconds < best_.seconds) best_ = std::move(candidate);
    return absl::OkStatus();
  }

  const PlanRequest& request_;
  const PlacementSearch& search_;
  const TierBytes minimum_;
  std::set<std::pair<int, TierBytes>> seen_;
  Candidate best_;
};

// The other policies from their own starts, the simpler ones first. Where `best` keeps everything on the
// device there is nothing to gain.
absl::Status TryPolicies(const PlanRequest& request, const TierBytes& minimum, Candidate* best) {
  const std::vector<PlanChoice::BlockChoice>& blocks = best->choice.blocks;
  if (std::all_of(blocks.begin() + 1, blocks.end() - 1, [](const PlanChoice::BlockChoice& block) {
        return block.saved == PlanChoice::Saved::kKeep && block.saved_home == Tier::kDevice;
      }))
    return absl::OkStatus();
  for (const Recompute policy :
       {Recompute::kNone, Recompute::kSqrt, Recompute::kSelective, Recompute::kOptimal}) {
    if (policy == request.recompute) continue;
    PlanRequest wished = request;
    wished.recompute = policy;
    const PlacementSearch search(wished);
    const std::vector<PlanChoice> starts = search.Fitting(request.budget, 1);
    if (starts.empty()) continue;
    STRATA_ASSIGN_OR_RETURN(Candidate other, Chooser(wished, search, minimum).Choose(starts));
    if (other.seconds < best->seconds) *best = std::move(other);
  }
  return absl::OkStatus();
}

// Another mode is taken for so much.
constexpr double kModeGain = 0.01;

// `best` in another mode: its way at each depth. Infinite: none fits.
absl::StatusOr<Candidate> InMode(const PlanRequest& request, const PlacementSearch& search,
                                 const TierBytes& minimum, const Candidate& best, Mode mode) {
  Candidate found;
  for (const int depth :
       request.prefetch_depth > 0 ? std::vector<int>{request.prefetch_depth} : std::vector<int>{4, 2, 1}) {
    Candidate other = best;
    other.start.mode = mode;
    other.start.prefetch_depth = depth;
    other.choice.mode = mode;
    // A mode may take more memory than another.
    if (!PlacementSearch::Within(search.Peak(other.start), request.budget)) continue;
    if (depth != best.choice.prefetch_depth) {
      other.choice = search.Fill(other.start, other.order, request.budget);
    } else if (!PlacementSearch::Within(search.Peak(other.choice), request.budget)) {
      continue;
    }
    if (!PlacementSearch::Within(minimum, search.Peak(other.choice))) continue;
    STRATA_ASSIGN_OR_RETURN(other.seconds, Predict(request, other.choice));
    if (other.seconds < found.seconds) found = std::move(other);
  }
  return found;
}

// Modes that give the same bits. Sync only adds waits. How often a job will clip nobody knows, so speculative
// has to be worth it where every other step does.
absl::Status TryModes(const PlanRequest& request, const PlacementSearch& search, const TierBytes& minimum,
                      Candidate* best) {
  const Mode mode = request.clip ? Mode::kSpeculative : Mode::kForwardOverlap;
  STRATA_ASSIGN_OR_RETURN(Candidate other, InMode(request, search, minimum, *best, mode));
  best->modes = {{best->choice.mode, best->seconds, best->seconds}};
  if (other.seconds == std::numeric_limits<double>::infinity()) return absl::OkStatus();
  double redo_seconds = other.seconds;
  if (mode == Mode::kSpeculative) {
    STRATA_ASSIGN_OR_RETURN(redo_seconds, Predict(request, other.choice, /*redo=*/true));
  }
  const std::vector<ModeTrial> trials = {best->modes.front(), {mode, other.seconds, redo_seconds}};
  if ((other.seconds + redo_seconds) / 2 < (1 - kModeGain) * best->seconds) *best = std::move(other);
  best->modes = trials;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<double> Predict(const PlanRequest& request, const PlanChoice& choice, bool redo) {
  constexpr int64_t kSample = 3;
  constexpr int64_t kChunks = 384;
  const int64_t coarse = RoundUp(CeilDiv(request.layout->total_elements(), kChunks), kChunkMultiple);
  const auto seconds = [&](int64_t micro_batches) -> absl::StatusOr<double> {
    PlanChoice sample = choice;
    sample.micro_batches = micro_batches;
    sample.chunk_elements = std::max(choice.chunk_elements, coarse);
    STRATA_ASSIGN_OR_RETURN(StepPlan plan, BuildPlan(*request.layout, sample, PlanKind::kTrain));
    for (Op& op : plan.ops) {
      if (redo && op.speculation == Speculation::kRedo) op.speculation = Speculation::kNone;
    }
    return StepSeconds(*request.layout, plan, request.profile);
  };
  if (choice.micro_batches <= kSample) return seconds(choice.micro_batches);
  STRATA_ASSIGN_OR_RETURN(const double fewer, seconds(kSample - 1));
  STRATA_ASSIGN_OR_RETURN(const double sampled, seconds(kSample));
  return sampled + static_cast<double>(choice.micro_batches - kSample) * std::max(0.0, sampled - fewer);
}

absl::StatusOr<Candidate> Choose(const PlanRequest& request, const PlacementSearch& search,
                                 const TierBytes& minimum, const std::vector<PlanChoice>& starts) {
  STRATA_ASSIGN_OR_RETURN(Candidate best, Chooser(request, search, minimum).Choose(starts));
  if (!request.recompute.has_value() || request.recompute == Recompute::kOptimal)
    STRATA_RETURN_IF_ERROR(TryPolicies(request, minimum, &best));
  if (!request.mode.has_value()) {
    STRATA_RETURN_IF_ERROR(TryModes(request, search, minimum, &best));
  }
  return best;
}

}  // namespace strata
