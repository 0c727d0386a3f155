#include "offload/plan/placement_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <tuple>

#include "common/checked.h"
#include "offload/plan/recompute_search.h"
#include "offload/plan/simulator.h"

namespace strata {
namespace {

constexpr Tier kUp[] = {Tier::kNvme, Tier::kHost, Tier::kDevice};

// Near enough to the optimum, and quick for a hundred blocks. Where something may go to NVMe there is one
// tier more to tell apart.
constexpr int kChainBuckets = 24, kChainBucketsWithNvme = 10, kChainStages = 20;

// Of the link's time: slots are few, so it cannot be busy all the time that computing takes.
constexpr double kLinkUse = 0.9;

bool Allowed(const std::optional<Tier>& wish, Tier tier) { return !wish.has_value() || *wish == tier; }

int64_t& At(TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }
int64_t At(const TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }

// A wish that keeps something has it swapped where the device is too small.
std::vector<Keeping> Keepings(const std::optional<Recompute>& wish) {
  switch (wish.value_or(Recompute::kOptimal)) {
    case Recompute::kNone:
    case Recompute::kSelective:
      return {{*wish, Tier::kHost}, {*wish, Tier::kDevice}, {*wish, Tier::kNvme}};
    case Recompute::kFull:
    case Recompute::kSqrt:
      return {{*wish}};
    case Recompute::kOptimal:
      break;
  }
  return {{Recompute::kFull}, {Recompute::kNone}};
}

// Transformer blocks are 1 .. head - 1.
void ApplyPolicy(Recompute policy, int head, PlanChoice* choice) {
  const int segment = std::max(1, static_cast<int>(std::lround(std::sqrt(static_cast<double>(head - 1)))));
  for (int b = 1; b < head; ++b) {
    PlanChoice::BlockChoice& block = choice->blocks[b];
    block.saved = policy == Recompute::kNone        ? PlanChoice::Saved::kKeep
                  : policy == Recompute::kSelective ? PlanChoice::Saved::kSelective
                                                    : PlanChoice::Saved::kRecompute;
    block.checkpoint = policy != Recompute::kSqrt || (b - 1) % segment == 0;
  }
}

void MoveBlock(Move move, PlanChoice::BlockChoice* block) {
  switch (move) {
    case Move::kKeepSaved:
      block->saved = PlanChoice::Saved::kKeep;
      block->saved_home = Tier::kDevice;
      block->checkpoint = true;
      break;
    case Move::kSavedToHost:
      if (block->saved_home == Tier::kNvme) block->saved_home = Tier::kHost;
      break;
    case Move::kSavedUp:
      block->saved_home = Tier::kDevice;
      break;
    case Move::kActivationsToHost:
      if (block->activation == Tier::kNvme) block->activation = Tier::kHost;
      break;
    default:
      block->activation = Tier::kDevice;
      break;
  }
}

}  // namespace

PlacementSearch::PlacementSearch(const PlanRequest& request) : request_(request), facts_(*request.layout) {
  constexpr Tier kHomes[] = {Tier::kHost, Tier::kDevice, Tier::kNvme};
  const bool sums_stay = request.mode == Mode::kDelayed;  // those of two steps, not on NVMe
  for (const Keeping& keeping : Keepings(request.recompute)) {
    for (const Tier activation : kHomes) {
      for (const Tier gradients : kHomes) {
        if (gradients == Tier::kNvme && sums_stay && !request.gradients.has_value()) continue;
        // What comes and goes in every micro-batch: sums go to NVMe first, then activations. Relief takes
        // back what the host has room for.
        if (activation == Tier::kNvme && !request.activations.has_value() && gradients != Tier::kNvme &&
            !request.gradients.has_value() && !sums_stay)
          continue;
        for (const Tier params : kUp) {
          for (const Tier record : kUp) AddBase(params, gradients, record, activation, keeping);
        }
      }
    }
  }
  order_.resize(request.layout->units.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
    return request.layout->units[a].elements < request.layout->units[b].elements;
  });
  // Of equal ones those that trouble the drive least.
  std::vector<std::tuple<int64_t, int, size_t>> order;
  for (size_t i = 0; i < bases_.size(); ++i) {
    const PlanChoice::BlockChoice& block = bases_[i].blocks[1];
    const int on_nvme = (bases_[i].units[0].gradients == Tier::kNvme) + (block.activation == Tier::kNvme) +
                        (block.saved_home == Tier::kNvme);
    order.emplace_back(At(Peak(bases_[i]), Tier::kDevice), on_nvme, i);
  }
  std::sort(order.begin(), order.end());
  std::vector<PlanChoice> sorted;
  for (const auto& [bytes, on_nvme, i] : order) sorted.push_back(std::move(bases_[i]));
  bases_ = std::move(sorted);
}

void PlacementSearch::AddBase(Tier params, Tier gradients, Tier record, Tier activation,
                              const Keeping& keeping) {
  if (!Allowed(request_.params, params) || !Allowed(request_.gradients, gradients) ||
      !Allowed(request_.optimizer, record) || !Allowed(request_.activations, activation))
    return;
  if (record == Tier::kDevice && (params != Tier::kDevice || gradients != Tier::kDevice)) return;
  PlanChoice choice;
  choice.clip = request_.clip;
  choice.mode = request_.mode.value_or(request_.clip ? Mode::kForwardOverlap : Mode::kOverlap);
  choice.micro_batches = request_.micro_batches;
  choice.chunk_elements =
      request_.chunk_elements != 0 ? request_.chunk_elements : AutoChunkElements(*request_.layout);
  choice.prefetch_depth = request_.prefetch_depth > 0 ? request_.prefetch_depth : 1;
  if (request_.io_threads != 0) choice.io_threads = request_.io_threads;
  choice.direct = request_.direct;
  choice.units.assign(request_.layout->units.size(), PlanChoice::UnitHome{params, gradients, record});
  choice.blocks.assign(request_.layout->blocks.size(),
                       PlanChoice::BlockChoice{.saved_home = keeping.home, .activation = activation});
  ApplyPolicy(keeping.policy, facts_.head, &choice);
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
  const bool blocks = move <= Move::kActivationsUp;
  bool free = true;
  switch (move) {
    case Move::kKeepSaved:
      free = !r.recompute.has_value();
      break;
    case Move::kOptimizeSaved:
      return 0;
    case Move::kSavedToHost:
    case Move::kSavedUp:
      break;
    case Move::kActivationsToHost:
    case Move::kActivationsUp:
      free = !r.activations.has_value();
      break;
    case Move::kParamsToHost:
    case Move::kParamsToDevice:
    case Move::kHostParamsToDevice:
      free = !r.params.has_value();
      break;
    case Move::kGradientsToHost:
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
    if (move <= Move::kActivationsUp) {
      MoveBlock(move, &choice.blocks[i + 1]);
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
      case Move::kGradientsToHost:
        if (home.gradients == Tier::kNvme) home.gradients = Tier::kHost;
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
  // A segment whose first blocks keep what they saved begins behind them.
  if (move == Move::kKeepSaved && count > 0) choice.blocks[count + 1].checkpoint = true;
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
      {Tier::kNvme, Move::kRecordsToHost},   {Tier::kNvme, Move::kParamsToHost},
      {Tier::kNvme, Move::kGradientsToHost}, {Tier::kNvme, Move::kActivationsToHost},
      {Tier::kNvme, Move::kSavedToHost},     {Tier::kHost, Move::kSavedUp},
      {Tier::kHost, Move::kGradientsUp},     {Tier::kHost, Move::kHostParamsToDevice},
      {Tier::kHost, Move::kActivationsUp},   {Tier::kHost, Move::kRecordsToDevice},
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

// What `bare`, which computes everything again, leaves of the budget, and what it takes in each micro-batch.
ChainProblem PlacementSearch::ChainOf(const PlanChoice& bare, const TierBytes& budget) const {
  const ModelLayout& layout = *request_.layout;
  const MachineProfile& profile = request_.profile;
  const ComputeRates& rates = profile.rates(layout.compute_dtype);
  const TierBytes peak = Peak(bare);
  ChainProblem problem;
  problem.input_home = bare.blocks[1].activation;
  problem.depth = bare.prefetch_depth;
  problem.max_segment = static_cast<int>(std::ceil(std::sqrt(static_cast<double>(facts_.head - 1))));
  int64_t running = 0;
  for (int b = 1; b < facts_.head; ++b) {
    const Block& block = layout.blocks[b];
    ChainBlock chain;
    chain.forward_seconds = ForwardSeconds(block, rates);
    chain.rest_seconds = RestSeconds(block, rates);
    chain.selective_bytes = block.saved_rest_bytes > 0 ? RoundUp(block.saved_bytes, kSlotAlignment) : 0;
    chain.saved_bytes =
        RoundUp(block.saved_bytes, kSlotAlignment) + RoundUp(block.saved_rest_bytes, kSlotAlignment);
    chain.input_bytes = RoundUp(layout.activation_bytes, kSlotAlignment);
    running = std::max(running, chain.saved_bytes);
    problem.forward_seconds += chain.forward_seconds;
    problem.backward_seconds += BackwardSeconds(block, rates);
    problem.blocks.push_back(chain);
  }
  for (int t = 0; t < kTierCount; ++t) problem.budget[t] = std::max<int64_t>(0, budget[t] - peak[t]);
  At(problem.budget, Tier::kDevice) += running;
  At(problem.budget, problem.input_home) += (facts_.head - 1) * problem.blocks[0].input_bytes;
  problem.out_seconds_per_byte = 1 / (kLinkUse * profile.d2h_bytes_per_second);
  problem.in_seconds_per_byte = 1 / (kLinkUse * profile.h2d_bytes_per_second);
  problem.nvme_seconds_per_byte =
      1 / profile.nvme_write_bytes_per_second + 1 / profile.nvme_read_bytes_per_second;
  // Parameters come twice and gradients go once in each micro-batch; records come and go once in a step, and
  // so does the optimizer's work.
  const auto micro_batches = static_cast<double>(bare.micro_batches);
  double cpu = 0;
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const auto n = static_cast<double>(layout.units[u].elements);
    const PlanChoice::UnitHome& home = bare.units[u];
    const double params = n * static_cast<double>(facts_.param_size);
    const double sum = n * static_cast<double>(facts_.acc_size);
    if (home.params != Tier::kDevice) problem.fetch_seconds += params * problem.in_seconds_per_byte;
    if (home.params == Tier::kNvme) problem.nvme_seconds += 2 * params / profile.nvme_read_bytes_per_second;
    if (facts_.frozen[u]) continue;
    if (home.gradients != Tier::kDevice) {
      problem.send_seconds += sum * problem.out_seconds_per_byte;
      cpu += 3 * sum / profile.accumulate_bytes_per_second * (micro_batches - 1) / micro_batches;
      cpu += sum / profile.norm_bytes_per_second / micro_batches;
    }
    if (home.gradients == Tier::kNvme) problem.nvme_seconds += sum * problem.nvme_seconds_per_byte;
    if (home.record == Tier::kNvme)
      problem.nvme_seconds += static_cast<double>(RecordBytes(layout.moments, layout.units[u].elements)) *
                              problem.nvme_seconds_per_byte / micro_batches;
    if (home.record != Tier::kDevice) cpu += n * UpdateSeconds(layout.moments, profile) / micro_batches;
  }
  problem.floor_seconds = cpu;
  return problem;
}

// What recompute_search.h finds is laid out and counted; where pools make it take more than the search counts
// with, it is given so much less.
PlanChoice PlacementSearch::OptimizeSaved(const PlanChoice& choice, const TierBytes& budget) const {
  PlanChoice bare = choice;
  ApplyPolicy(Recompute::kFull, facts_.head, &bare);
  ChainProblem problem = ChainOf(bare, budget);
  // What the host has room for does not go further.
  int64_t all = 0;
  for (const ChainBlock& block : problem.blocks) all += block.saved_bytes + block.input_bytes;
  if (all <= At(problem.budget, Tier::kHost) && problem.input_home != Tier::kNvme)
    At(problem.budget, Tier::kNvme) = 0;
  const int buckets = At(problem.budget, Tier::kNvme) > 0 ? kChainBucketsWithNvme : kChainBuckets;
  for (int attempt = 0; attempt < 4; ++attempt) {
    const std::optional<ChainSolution> solution = SolveChain(problem, buckets, kChainStages);
    if (!solution.has_value()) return choice;
    PlanChoice better = bare;
    for (int b = 1; b < facts_.head; ++b) {
      const PlanChoice::BlockChoice& found = solution->blocks[b - 1];
      better.blocks[b].saved = found.saved;
      better.blocks[b].saved_home = found.saved_home;
      better.blocks[b].checkpoint = found.checkpoint;
    }
    const TierBytes now = Peak(better);
    if (Within(now, budget)) return better;
    for (int t = 0; t < kTierCount; ++t)
      problem.budget[t] -= std::min(problem.budget[t], std::max<int64_t>(0, now[t] - budget[t]));
  }
  return choice;
}

PlanChoice PlacementSearch::Fill(PlanChoice choice, const std::vector<Move>& order,
                                 const TierBytes& budget) const {
  for (const Move move : order) {
    if (move == Move::kOptimizeSaved) {
      choice = OptimizeSaved(choice, budget);
      continue;
    }
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
