#include "offload/plan/placement_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>

#include "common/checked.h"

namespace strata {
namespace {

constexpr Tier kUp[] = {Tier::kNvme, Tier::kHost, Tier::kDevice};

bool Allowed(const std::optional<Tier>& wish, Tier tier) { return !wish.has_value() || *wish == tier; }

int64_t& At(TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }
int64_t At(const TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }

}  // namespace

PlacementSearch::PlacementSearch(const PlanRequest& request) : request_(request), facts_(*request.layout) {
  for (const bool keep : {false, true}) {
    if (request.recompute.has_value() && keep != (*request.recompute == Recompute::kNone)) continue;
    for (const Tier activation : {Tier::kHost, Tier::kDevice, Tier::kNvme}) {
      if (!Allowed(request.activations, activation)) continue;
      if (activation == Tier::kNvme && !request.activations.has_value()) continue;
      for (const Tier params : kUp) {
        for (const Tier gradients : {Tier::kHost, Tier::kDevice, Tier::kNvme}) {
          if (gradients == Tier::kNvme && !request.gradients.has_value()) continue;
          for (const Tier record : kUp) AddBase(params, gradients, record, activation, keep);
        }
      }
    }
  }
  order_.resize(request.layout->units.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return request.layout->units[a].elements < request.layout->units[b].elements;
  });
  std::vector<std::pair<int64_t, size_t>> order;
  for (size_t i = 0; i < bases_.size(); ++i) order.emplace_back(At(Peak(bases_[i]), Tier::kDevice), i);
  std::sort(order.begin(), order.end());
  std::vector<PlanChoice> sorted;
  for (const auto& [bytes, i] : order) sorted.push_back(std::move(bases_[i]));
  bases_ = std::move(sorted);
}

void PlacementSearch::AddBase(Tier params, Tier gradients, Tier record, Tier activation, bool keep) {
  if (!Allowed(request_.params, params) || !Allowed(request_.gradients, gradients) ||
      !Allowed(request_.optimizer, record))
    return;
  if (record == Tier::kDevice && (params != Tier::kDevice || gradients != Tier::kDevice)) return;
  PlanChoice choice;
  choice.clip = request_.clip;
  choice.mode = request_.mode.value_or(request_.clip ? Mode::kForwardOverlap : Mode::kOverlap);
  choice.micro_batches = request_.micro_batches;
  if (request_.chunk_elements != 0) choice.chunk_elements = request_.chunk_elements;
  choice.prefetch_depth = request_.prefetch_depth > 0 ? request_.prefetch_depth : 1;
  if (request_.io_threads != 0) choice.io_threads = request_.io_threads;
  choice.units.assign(request_.layout->units.size(), PlanChoice::UnitHome{params, gradients, record});
  choice.blocks.assign(
      request_.layout->blocks.size(),
      PlanChoice::BlockChoice{.saved = keep ? PlanChoice::Saved::kKeep : PlanChoice::Saved::kRecompute,
                              .activation = activation});
  bases_.push_back(std::move(choice));
}

bool PlacementSearch::Within(const TierBytes& peak, const TierBytes& budget) {
  for (int t = 0; t < kTierCount; ++t) {
    if (peak[t] > budget[t]) return false;
  }
  return true;
}

int PlacementSearch::Movable(Move move) const {
  const PlanRequest& r = request_;
  const bool blocks = move == Move::kKeepSaved || move == Move::kActivationsUp;
  bool free = true;
  switch (move) {
    case Move::kKeepSaved:
      free = !r.recompute.has_value();
      break;
    case Move::kActivationsUp:
      free = !r.activations.has_value();
      break;
    case Move::kParamsToHost:
    case Move::kParamsToDevice:
    case Move::kHostParamsToDevice:
      free = !r.params.has_value();
      break;
    case Move::kGradientsUp:
      free = !r.gradients.has_value();
      break;
    case Move::kRecordsToHost:
    case Move::kRecordsToDevice:
      free = !r.optimizer.has_value();
      break;
    case Move::kUnitsToDevice:
      free = Allowed(r.params, Tier::kDevice) && Allowed(r.gradients, Tier::kDevice) &&
             Allowed(r.optimizer, Tier::kDevice);
      break;
  }
  if (!free) return 0;
  return blocks ? facts_.head - 1 : static_cast<int>(request_.layout->units.size());
}

PlanChoice PlacementSearch::Moved(PlanChoice choice, Move move, int count) const {
  for (int i = 0; i < count; ++i) {
    if (move == Move::kKeepSaved) {
      choice.blocks[i + 1].saved = PlanChoice::Saved::kKeep;
      continue;
    }
    if (move == Move::kActivationsUp) {
      choice.blocks[i + 1].activation = Tier::kDevice;
      continue;
    }
    PlanChoice::UnitHome& home = choice.units[order_[i]];
    switch (move) {
      case Move::kParamsToHost:
        if (home.params == Tier::kNvme) home.params = Tier::kHost;
        break;
      case Move::kParamsToDevice:
        home.params = Tier::kDevice;
        break;
      case Move::kHostParamsToDevice:
        if (home.params == Tier::kHost) home.params = Tier::kDevice;
        break;
      case Move::kGradientsUp:
        home.gradients = Tier::kDevice;
        break;
      case Move::kRecordsToHost:
        if (home.record == Tier::kNvme) home.record = Tier::kHost;
        break;
      case Move::kRecordsToDevice:
        if (home.params == Tier::kDevice && home.gradients == Tier::kDevice) home.record = Tier::kDevice;
        break;
      default:
        home = PlanChoice::UnitHome{Tier::kDevice, Tier::kDevice, Tier::kDevice};
        break;
    }
  }
  return choice;
}

// Each step moves as few as help, or else all: with the last of a class its transient slots go too, so all
// can take less of the device than most.
std::optional<PlanChoice> PlacementSearch::Relieve(const PlanChoice& choice, const TierBytes& budget,
                                                   size_t step) const {
  struct Step {
    Tier from;
    Move move;
  };
  constexpr Step kSteps[] = {
      {Tier::kNvme, Move::kRecordsToHost}, {Tier::kNvme, Move::kParamsToHost},
      {Tier::kHost, Move::kGradientsUp},   {Tier::kHost, Move::kHostParamsToDevice},
      {Tier::kHost, Move::kActivationsUp}, {Tier::kHost, Move::kRecordsToDevice},
  };
  const TierBytes peak = Peak(choice);
  if (Within(peak, budget)) return choice;
  while (step < std::size(kSteps) && At(peak, kSteps[step].from) <= At(budget, kSteps[step].from)) ++step;
  if (step == std::size(kSteps)) return std::nullopt;
  const Tier from = kSteps[step].from;
  const Move move = kSteps[step].move;
  const int all = Movable(move);
  if (all == 0) return Relieve(choice, budget, step + 1);
  const auto helps = [&](int count) {
    return At(Peak(Moved(choice, move, count)), from) <= At(budget, from);
  };
  // Slots that appear with the first moves can outweigh them, so the first count that helps is looked for one
  // by one, except where there are too many.
  constexpr int kScan = 48;
  int low = 0, high = all;  // low does not help; high does, or is all there is
  if (all <= kScan) {
    high = 1;
    while (high < all && !helps(high)) ++high;
  } else {
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (helps(middle) ? high : low) = middle;
    }
  }
  std::optional<PlanChoice> relieved = Relieve(Moved(choice, move, high), budget, step + 1);
  if (!relieved.has_value() && high < all) relieved = Relieve(Moved(choice, move, all), budget, step + 1);
  return relieved;
}

std::vector<PlanChoice> PlacementSearch::Fitting(const TierBytes& budget, size_t limit) const {
  std::vector<PlanChoice> fitting;
  for (const PlanChoice& base : bases_) {
    if (fitting.size() >= limit) break;
    if (std::optional<PlanChoice> choice = Relieve(base, budget, 0)) fitting.push_back(std::move(*choice));
  }
  return fitting;
}

// Peaks are whole blocks, so budgets that matter are too. A base is only searched when it beats the best so
// far; the last round, in which none does, is the proof that nothing fits below.
std::optional<int64_t> PlacementSearch::Minimum(Tier tier, TierBytes budget) const {
  At(budget, tier) = std::numeric_limits<int64_t>::max();
  if (!Fits(budget)) return std::nullopt;
  int64_t best = 0;
  for (const PlanChoice& base : bases_) best = std::max(best, At(Peak(base), tier));
  // What relief moves in may exceed every base.
  for (At(budget, tier) = best; !Fits(budget); At(budget, tier) = best) best = 2 * best + kSlotAlignment;
  best += kSlotAlignment;
  const auto fits = [&](const PlanChoice& base, int64_t bytes) {
    At(budget, tier) = bytes;
    return bytes >= 0 && Relieve(base, budget, 0).has_value();
  };
  for (bool better = true; better;) {
    better = false;
    for (const PlanChoice& base : bases_) {
      if (!fits(base, best - kSlotAlignment)) continue;
      better = true;
      int64_t low = -1, high = best / kSlotAlignment - 1;  // low does not fit, high does
      while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        (fits(base, middle * kSlotAlignment) ? high : low) = middle;
      }
      best = high * kSlotAlignment;
    }
  }
  return best;
}

PlanChoice PlacementSearch::Fill(PlanChoice choice, const std::vector<Move>& order,
                                 const TierBytes& budget) const {
  for (const Move move : order) {
    const int all = Movable(move);
    if (all == 0) continue;
    if (PlanChoice moved = Moved(choice, move, all); Within(Peak(moved), budget)) {
      choice = std::move(moved);
      continue;
    }
    int low = 0, high = all;  // low fits, high does not
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (Within(Peak(Moved(choice, move, middle)), budget) ? low : high) = middle;
    }
    choice = Moved(std::move(choice), move, low);
  }
  return choice;
}

}  // namespace strata
