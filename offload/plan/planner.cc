#include "offload/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/checked.h"
#include "common/status.h"
#include "offload/plan/builder.h"
#include "offload/plan/placement_search.h"
#include "offload/plan/slot_table.h"

namespace strata {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t& At(TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }
int64_t At(const TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }

constexpr Tier kTiers[] = {Tier::kDevice, Tier::kHost, Tier::kNvme};

// Rounded up, so that a budget of what is printed fits.
std::string Size(int64_t bytes) {
  const double mib = std::ceil(static_cast<double>(bytes) / (1 << 20) * 10) / 10;
  if (mib < 10240) return absl::StrFormat("%.1fMiB", mib);
  return absl::StrFormat("%.2fGiB", std::ceil(static_cast<double>(bytes) / (1 << 30) * 100) / 100);
}

std::string AtLeast(Tier tier, int64_t bytes) {
  return absl::StrCat("memory.", Name(tier), ": at least ", bytes, " bytes (", Size(bytes), ")");
}

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckRequest(const PlanRequest& r) {
  if (r.layout == nullptr) return Bad("layout", "missing");
  STRATA_RETURN_IF_ERROR(CheckLayout(*r.layout));
  const int64_t chunk = r.chunk_elements != 0 ? r.chunk_elements : AutoChunkElements(*r.layout);
  STRATA_RETURN_IF_ERROR(CheckSizes(*r.layout, chunk, r.micro_batches));
  if (r.prefetch_depth < 0 || r.prefetch_depth > 64)
    return Bad("memory.prefetch_depth", absl::StrCat(r.prefetch_depth, " is outside 0..64"));
  if (r.io_threads < 0 || r.io_threads > 64)
    return Bad("memory.io_threads", absl::StrCat(r.io_threads, " is outside 0..64"));
  for (const Tier tier : kTiers) {
    if (r.budget[static_cast<int>(tier)] < 0)
      return Bad(absl::StrCat("memory.", Name(tier)), "a budget cannot be negative");
  }
  if (r.optimizer == Tier::kDevice && r.gradients.value_or(Tier::kDevice) != Tier::kDevice)
    return Bad("memory.placement.optimizer",
               "device needs the gradients on the device too; set memory.placement.gradients: device, or the "
               "optimizer to host or nvme");
  if (r.optimizer == Tier::kDevice && r.params.value_or(Tier::kDevice) != Tier::kDevice)
    return Bad("memory.placement.optimizer",
               "device needs the parameters on the device too; set memory.placement.params: device, or the "
               "optimizer to host or nvme");
  if (r.mode == Mode::kOverlap && r.clip)
    return Bad(
        "memory.mode",
        "overlap updates before the global norm is known; with training.grad_clip use forward-overlap, "
        "speculative or sync");
  return absl::OkStatus();
}

// ---- Which fitting choice: by predicted time.

// The step time of a choice, from plans that are quick to make: few of many micro-batches that are alike, and
// few of many chunks.
absl::StatusOr<double> Predict(const PlanRequest& request, const PlanChoice& choice) {
  constexpr int64_t kSample = 3;
  constexpr int64_t kChunks = 384;
  const int64_t coarse = RoundUp(CeilDiv(request.layout->total_elements(), kChunks), kChunkMultiple);
  const auto seconds = [&](int64_t micro_batches) -> absl::StatusOr<double> {
    PlanChoice sample = choice;
    sample.micro_batches = micro_batches;
    sample.chunk_elements = std::max(choice.chunk_elements, coarse);
    STRATA_ASSIGN_OR_RETURN(const StepPlan plan, BuildPlan(*request.layout, sample, PlanKind::kTrain));
    return StepSeconds(*request.layout, plan, request.profile);
  };
  if (choice.micro_batches <= kSample) return seconds(choice.micro_batches);
  STRATA_ASSIGN_OR_RETURN(const double fewer, seconds(kSample - 1));
  STRATA_ASSIGN_OR_RETURN(const double sampled, seconds(kSample));
  return sampled + static_cast<double>(choice.micro_batches - kSample) * std::max(0.0, sampled - fewer);
}

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

// How a choice came about: with more memory the same way leads to its neighbour.
struct Candidate {
  PlanChoice start;
  std::vector<Move> order;
  PlanChoice choice;
  double seconds = std::numeric_limits<double>::infinity();
};

// Candidates: each order at the largest depth that fits, from the smallest start that fits and from the next
// kind of start; then the best order at smaller depths. Equal times go to the earlier candidate, so the
// result is a function of the request.
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

// Seconds of a step that kAdviceBytes more of each tier save, filled as the best candidate was.
absl::Status Advise(const PlanRequest& request, const PlacementSearch& search, const Candidate& best,
                    PlannedJob* job) {
  for (int t = 0; t < kTierCount; ++t) {
    TierBytes more = request.budget;
    more[t] += kAdviceBytes;
    const PlanChoice choice = search.Fill(best.start, best.order, more);
    if (search.Peak(choice) == search.Peak(best.choice)) continue;
    STRATA_ASSIGN_OR_RETURN(const double seconds, Predict(request, choice));
    // As a share, so that it is of the step that is shown.
    job->advice_seconds[t] = std::max(0.0, 1 - seconds / best.seconds) * job->simulation.step_seconds;
  }
  return absl::OkStatus();
}

// ---- What a plan says of itself.

void FillPlacement(const ModelLayout& layout, PlannedJob* job) {
  const int64_t param = SizeOf(layout.compute_dtype), acc = SizeOf(layout.acc_dtype());
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const PlanChoice::UnitHome& home = job->choice.units[u];
    const int64_t n = layout.units[u].elements;
    job->placement[0][static_cast<int>(home.params)] += n * param;
    job->placement[1][static_cast<int>(home.gradients)] += n * acc;
    job->placement[2][static_cast<int>(home.record)] += n * kRecordBytesPerElement;
  }
  const SlotTable table = MakeSlotTable(layout, LayoutFacts(layout), job->choice, PlanKind::kTrain);
  const auto add = [&](const SlotTable::Held& held, size_t b, int64_t bytes) {
    auto& placement = job->placement[3];
    if (held.own[b] >= 0 || held.stays[b]) placement[static_cast<int>(Tier::kDevice)] += bytes;
    if (held.host[b] >= 0 || held.staged[b]) placement[static_cast<int>(Tier::kHost)] += bytes;
    if (held.item[b] >= 0) placement[static_cast<int>(Tier::kNvme)] += bytes;
  };
  for (size_t b = 1; b + 1 < layout.blocks.size(); ++b) {
    add(table.activation, b, layout.activation_bytes);
    add(table.saved, b, layout.blocks[b].saved_bytes);
    add(table.saved_rest, b, layout.blocks[b].saved_rest_bytes);
  }
}

void FillTraffic(const StepPlan& train, PlannedJob* job) {
  job->operations = static_cast<int64_t>(train.ops.size());
  for (const Op& op : train.ops) {
    if (op.speculation == Speculation::kRedo) continue;
    switch (op.kind) {
      case OpKind::kRead:
      case OpKind::kWrite:
      case OpKind::kH2D:
      case OpKind::kD2H:
      case OpKind::kActIn:
      case OpKind::kActOut: {
        const Tier from = train.slots[op.operands[0].slot].tier;
        const Tier to = train.slots[op.operands[1].slot].tier;
        job->read_bytes[static_cast<int>(from)] += op.bytes;
        job->written_bytes[static_cast<int>(to)] += op.bytes;
        break;
      }
      default:
        break;
    }
  }
}

std::string WhereText(const std::array<int64_t, kTierCount>& bytes) {
  std::vector<std::string> parts;
  for (const Tier tier : kTiers) {
    if (const int64_t n = bytes[static_cast<int>(tier)]; n > 0)
      parts.push_back(absl::StrCat(Size(n), " ", Name(tier)));
  }
  return parts.empty() ? "nothing" : absl::StrJoin(parts, ", ");
}

void FillNotes(const PlanRequest& request, const PlacementSearch& search, PlannedJob* job) {
  const char* const kClasses[] = {"parameters", "gradients", "optimizer", "activations"};
  for (int i = 0; i < 4; ++i)
    job->notes.push_back(absl::StrCat(kClasses[i], ": ", WhereText(job->placement[i])));
  const int layers = static_cast<int>(request.layout->blocks.size()) - 2;
  int kept = 0, selective = 0, swapped = 0, inputs = 0;
  for (int b = 1; b <= layers; ++b) {
    const PlanChoice::BlockChoice& block = job->choice.blocks[b];
    kept += block.saved == PlanChoice::Saved::kKeep;
    selective += block.saved == PlanChoice::Saved::kSelective;
    swapped += block.saved != PlanChoice::Saved::kRecompute && block.saved_home != Tier::kDevice;
    inputs += block.checkpoint;
  }
  job->notes.push_back(
      absl::StrCat("recompute: ", layers - kept - selective, " of ", layers, " layers",
                   inputs < layers ? absl::StrCat(" from the inputs of ", inputs) : "",
                   selective > 0 ? absl::StrCat(", a part of ", selective) : "", "; ", kept,
                   " keep what the forward pass saved",
                   swapped > 0 ? absl::StrCat("; ", swapped, " swap it out of the device") : ""));
  job->notes.push_back(
      absl::StrCat("mode ", Name(job->choice.mode),
                   request.mode.has_value() ? " as asked"
                   : request.clip ? ": updates wait for the global norm and run under the next forward pass"
                                  : ": updates run under the backward pass",
                   "; prefetch depth ", job->choice.prefetch_depth));
  if (job->choice.mode == Mode::kDelayed)
    job->notes.push_back(
        "mode delayed changes results: each step applies the gradient of the step before, which was computed "
        "with older parameters");
  if (job->choice.mode == Mode::kSpeculative)
    job->notes.push_back(
        "mode speculative: a step that clips does its NVMe updates twice, which the prediction leaves out; "
        "where most steps clip, forward-overlap is faster");
  const Simulation& simulated = job->simulation;
  job->notes.push_back(absl::StrFormat(
      "%s binds: %.1f ms of a step of %.1f ms; the device waits %.1f ms for transfers", simulated.binding,
      1e3 * simulated.bound_seconds, 1e3 * simulated.step_seconds, 1e3 * simulated.exposed_io_seconds));
  // The next step up: the first move that was not made in full, and what all of it would take.
  const std::pair<Move, const char*> kNext[] = {
      {Move::kKeepSaved, "no recompute at all"},
      {Move::kParamsToHost, "no parameters on nvme"},
      {Move::kRecordsToHost, "no optimizer state on nvme"},
      {Move::kParamsToDevice, "all parameters on the device"},
      {Move::kUnitsToDevice, "all model states on the device"},
  };
  for (const auto& [move, what] : kNext) {
    const TierBytes peak = search.Peak(search.Moved(job->choice, move, search.Movable(move)));
    std::vector<std::string> needs;
    for (const Tier tier : kTiers) {
      if (peak[static_cast<int>(tier)] > request.budget[static_cast<int>(tier)])
        needs.push_back(AtLeast(tier, peak[static_cast<int>(tier)]));
    }
    if (!needs.empty())
      job->notes.push_back(absl::StrCat(what, " would need ", absl::StrJoin(needs, " and ")));
  }
}

absl::StatusOr<PlannedJob> DescribeJob(const PlanRequest& request, const PlacementSearch& search,
                                       const TierBytes& minimum, const Candidate& best) {
  PlannedJob job;
  job.minimum_bytes = minimum;
  job.choice = best.choice;
  job.peak_bytes = search.Peak(job.choice);
  if (request.predict_only) {
    STRATA_ASSIGN_OR_RETURN(job.train, BuildPlan(*request.layout, job.choice, PlanKind::kTrain));
  } else {
    STRATA_ASSIGN_OR_RETURN(BuiltPlans plans, BuildPlans(*request.layout, job.choice));
    job.train = std::move(plans.train);
    job.eval = std::move(plans.eval);
  }
  for (int t = 0; t < kTierCount; ++t) {
    if (std::max(job.train.arena_bytes[t], job.eval.arena_bytes[t]) > job.peak_bytes[t] ||
        job.peak_bytes[t] > request.budget[t])
      return absl::InternalError(absl::StrCat("a plan of ", job.train.arena_bytes[t], " bytes, counted as ",
                                              job.peak_bytes[t], ", for a ", Name(static_cast<Tier>(t)),
                                              " budget of ", request.budget[t]));
  }
  STRATA_ASSIGN_OR_RETURN(job.simulation, Simulate(*request.layout, job.train, request.profile));
  FillPlacement(*request.layout, &job);
  FillTraffic(job.train, &job);
  if (request.advise) STRATA_RETURN_IF_ERROR(Advise(request, search, best, &job));
  FillNotes(request, search, &job);
  if (request.predict_only) job.train = StepPlan();
  return job;
}

// ---- When nothing fits.

// Wishes whose absence alone makes the job fit, as what to write instead.
std::vector<std::string> WishesInTheWay(const PlanRequest& request) {
  std::vector<std::string> remedies;
  const auto try_without = [&](const auto& change, const char* remedy) {
    PlanRequest relaxed = request;
    change(&relaxed);
    if (PlacementSearch(relaxed).Fits(request.budget)) remedies.push_back(remedy);
  };
  if (request.recompute.has_value() && request.recompute != Recompute::kFull)
    try_without([](PlanRequest* r) { r->recompute = Recompute::kFull; }, "memory.recompute: full");
  if (request.prefetch_depth > 1)
    try_without([](PlanRequest* r) { r->prefetch_depth = 1; }, "memory.prefetch_depth: 1");
  if (request.params.has_value())
    try_without([](PlanRequest* r) { r->params.reset(); }, "no wish in memory.placement.params");
  if (request.gradients.has_value())
    try_without([](PlanRequest* r) { r->gradients.reset(); }, "no wish in memory.placement.gradients");
  if (request.optimizer.has_value())
    try_without([](PlanRequest* r) { r->optimizer.reset(); }, "no wish in memory.placement.optimizer");
  if (request.activations.has_value())
    try_without([](PlanRequest* r) { r->activations.reset(); }, "no wish in memory.placement.activations");
  return remedies;
}

PlanShortfall ExplainShortfall(const PlanRequest& request, const PlacementSearch& search) {
  PlanShortfall shortfall;
  std::vector<std::string> remedies;
  // One tier alone, the one that lacks least first.
  int64_t least = kNoLimit;
  for (const Tier tier : kTiers) {
    const std::optional<int64_t> needed = search.Minimum(tier, request.budget);
    if (!needed.has_value()) continue;
    remedies.push_back(AtLeast(tier, *needed));
    const int64_t lack = *needed - request.budget[static_cast<int>(tier)];
    if (lack >= least) continue;
    least = lack;
    shortfall.tier = tier;
    shortfall.needed_bytes = *needed;
    std::swap(remedies.front(), remedies.back());
  }
  if (remedies.empty()) {
    // Several are short: the smallest of the first when the others are unlimited, then of the next.
    TierBytes budget = {kNoLimit, kNoLimit, kNoLimit};
    std::vector<std::string> all;
    for (const Tier tier : kTiers) {
      const int64_t needed = search.Minimum(tier, budget).value_or(0);
      At(budget, tier) = std::max(request.budget[static_cast<int>(tier)], needed);
      if (needed <= request.budget[static_cast<int>(tier)]) continue;
      if (all.empty()) {
        shortfall.tier = tier;
        shortfall.needed_bytes = needed;
      }
      all.push_back(AtLeast(tier, needed));
    }
    remedies.push_back(absl::StrJoin(all, " and "));
  }
  for (std::string& remedy : WishesInTheWay(request)) remedies.push_back(std::move(remedy));
  shortfall.budget_bytes = request.budget[static_cast<int>(shortfall.tier)];
  shortfall.remedy = absl::StrJoin(remedies, ", or ");
  return shortfall;
}

// Relief stops as soon as a tier fits, which now and then leaves another tier worse off than a smaller budget
// would have. A job that fits a part of its budget fits all of it.
std::vector<PlanChoice> Starts(const PlanRequest& request, const PlacementSearch& search) {
  std::vector<PlanChoice> starts = search.Fitting(request.budget, 2);
  for (const Tier tier : kTiers) {
    if (!starts.empty()) break;
    const std::optional<int64_t> minimum = search.Minimum(tier, request.budget);
    if (!minimum.has_value() || *minimum > request.budget[static_cast<int>(tier)]) continue;
    TierBytes part = request.budget;
    At(part, tier) = *minimum;
    starts = search.Fitting(part, 2);
  }
  return starts;
}

}  // namespace

int64_t AutoChunkElements(const ModelLayout& layout) {
  constexpr int64_t kChunksMax = 8192;
  int64_t chunk = PlanChoice().chunk_elements;
  while (layout.total_elements() / chunk >= kChunksMax) chunk *= 2;
  return chunk;
}

absl::StatusOr<std::variant<PlannedJob, PlanShortfall>> MakePlan(const PlanRequest& request) {
  STRATA_RETURN_IF_ERROR(CheckRequest(request));
  const PlacementSearch search(request);
  if (search.bases().empty())
    return Bad("memory.placement", "no placement satisfies these wishes together; leave one of them out");
  STRATA_RETURN_IF_ERROR(CheckChoice(*request.layout, search.bases().front()));
  const std::vector<PlanChoice> starts = Starts(request, search);
  if (starts.empty()) return ExplainShortfall(request, search);
  // Relief at another budget can pass by the start.
  const TierBytes least = search.Peak(starts.front());
  TierBytes minimum{};
  for (const Tier tier : kTiers)
    At(minimum, tier) =
        std::min(search.Minimum(tier, request.budget).value_or(At(request.budget, tier)), At(least, tier));
  STRATA_ASSIGN_OR_RETURN(Candidate best, Chooser(request, search, minimum).Choose(starts));
  if (!request.recompute.has_value() || request.recompute == Recompute::kOptimal)
    STRATA_RETURN_IF_ERROR(TryPolicies(request, minimum, &best));
  return DescribeJob(request, search, minimum, best);
}

}  // namespace strata
