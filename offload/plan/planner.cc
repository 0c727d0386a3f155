#include "offload/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "offload/plan/builder.h"
#include "offload/plan/estimate.h"
#include "offload/plan/placement_search.h"
#include "offload/plan/plan_text.h"
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
  const int64_t chunk = r.chunk_elements != 0 ? r.chunk_elements : PlanChoice().chunk_elements;
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

// The step time of a choice. Many micro-batches are alike, so a few are enough to know the time of each more.
absl::StatusOr<double> Predict(const PlanRequest& request, const PlanChoice& choice) {
  constexpr int64_t kSample = 3;
  const auto seconds = [&](int64_t micro_batches) -> absl::StatusOr<double> {
    PlanChoice sample = choice;
    sample.micro_batches = micro_batches;
    STRATA_ASSIGN_OR_RETURN(const StepPlan plan, BuildPlan(*request.layout, sample, PlanKind::kTrain));
    return EstimatePlan(plan, request.profile).step_seconds;
  };
  if (choice.micro_batches <= kSample) return seconds(choice.micro_batches);
  STRATA_ASSIGN_OR_RETURN(const double fewer, seconds(kSample - 1));
  STRATA_ASSIGN_OR_RETURN(const double sampled, seconds(kSample));
  return sampled + static_cast<double>(choice.micro_batches - kSample) * std::max(0.0, sampled - fewer);
}

// Orders in which memory that is left over is given away.
std::vector<std::vector<Move>> FillOrders() {
  return {
      // Everything of a unit on the device, then what saves transfers, then what saves computing again.
      {Move::kParamsToHost, Move::kUnitsToDevice, Move::kRecordsToHost, Move::kParamsToDevice,
       Move::kKeepSaved, Move::kActivationsUp, Move::kGradientsUp},
      // What saves computing again first.
      {Move::kKeepSaved, Move::kParamsToHost, Move::kUnitsToDevice, Move::kRecordsToHost,
       Move::kParamsToDevice, Move::kActivationsUp, Move::kGradientsUp},
      // As little as possible through the disk, then through the device link.
      {Move::kParamsToHost, Move::kRecordsToHost, Move::kParamsToDevice, Move::kActivationsUp,
       Move::kKeepSaved, Move::kGradientsUp, Move::kRecordsToDevice},
  };
}

// Candidates: each order at each depth from the smallest start that fits, and from the next kind of start.
// Equal times go to the earlier candidate, so the result is a function of the request.
absl::StatusOr<PlanChoice> ChooseFastest(const PlanRequest& request, const PlacementSearch& search,
                                         const std::vector<PlanChoice>& starts, const TierBytes& minimum) {
  std::vector<PlanChoice> candidates = {starts.front()};
  const auto add = [&](PlanChoice choice) {
    // A rare mixture that Fits() does not know could take less than the minimum that is promised.
    if (!PlacementSearch::Within(minimum, search.Peak(choice))) return;
    for (const PlanChoice& known : candidates) {
      if (known.prefetch_depth == choice.prefetch_depth && search.Peak(known) == search.Peak(choice)) return;
    }
    candidates.push_back(std::move(choice));
  };
  const std::vector<int> depths =
      request.prefetch_depth > 0 ? std::vector<int>{request.prefetch_depth} : std::vector<int>{4, 2, 1};
  for (const PlanChoice& start : starts) {
    for (const int depth : depths) {
      PlanChoice deep = start;
      deep.prefetch_depth = depth;
      if (!PlacementSearch::Within(search.Peak(deep), request.budget)) continue;
      for (const std::vector<Move>& order : FillOrders()) add(search.Fill(deep, order, request.budget));
    }
  }
  PlanChoice best;
  double best_seconds = std::numeric_limits<double>::infinity();
  for (PlanChoice& candidate : candidates) {
    STRATA_ASSIGN_OR_RETURN(const double seconds, Predict(request, candidate));
    if (seconds >= best_seconds) continue;
    best_seconds = seconds;
    best = std::move(candidate);
  }
  return best;
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
  using Saved = PlanChoice::Saved;
  for (size_t b = 1; b + 1 < layout.blocks.size(); ++b) {
    const PlanChoice::BlockChoice& block = job->choice.blocks[b];
    if (block.checkpoint) job->placement[3][static_cast<int>(block.activation)] += layout.activation_bytes;
    int64_t& kept = job->placement[3][static_cast<int>(block.saved_home)];
    if (block.saved != Saved::kRecompute) kept += layout.blocks[b].saved_bytes;
    if (block.saved == Saved::kKeep) kept += layout.blocks[b].saved_rest_bytes;
  }
}

void FillTraffic(PlannedJob* job) {
  for (const Op& op : job->train.ops) {
    if (op.speculation == Speculation::kRedo) continue;
    switch (op.kind) {
      case OpKind::kRead:
      case OpKind::kWrite:
      case OpKind::kH2D:
      case OpKind::kD2H:
      case OpKind::kActIn:
      case OpKind::kActOut: {
        const Tier from = job->train.slots[op.operands[0].slot].tier;
        const Tier to = job->train.slots[op.operands[1].slot].tier;
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
  int kept = 0;
  for (int b = 1; b <= layers; ++b) kept += job->choice.blocks[b].saved == PlanChoice::Saved::kKeep;
  job->notes.push_back(absl::StrCat("recompute: ", layers - kept, " of ", layers, " layers; ", kept,
                                    " keep what the forward pass saved"));
  job->notes.push_back(
      absl::StrCat("mode ", Name(job->choice.mode),
                   request.mode.has_value() ? " as asked"
                   : request.clip ? ": updates wait for the global norm and run under the next forward pass"
                                  : ": updates run under the backward pass",
                   "; prefetch depth ", job->choice.prefetch_depth));
  if (job->choice.mode == Mode::kDelayed)
    job->notes.push_back(
        "mode delayed changes results: each step applies the gradient of the step before, which was computed "
        "with "
        "older parameters");
  const LaneEstimate& binding = job->lanes[job->binding_lane];
  job->notes.push_back(absl::StrFormat("%s binds: busy %.1f ms of a step of %.1f ms",
                                       DescribeLane(binding.lane), 1e3 * binding.busy_seconds,
                                       1e3 * job->step_seconds));
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
                                       const TierBytes& minimum, PlanChoice choice) {
  PlannedJob job;
  job.minimum_bytes = minimum;
  job.choice = std::move(choice);
  STRATA_ASSIGN_OR_RETURN(BuiltPlans plans, BuildPlans(*request.layout, job.choice));
  job.train = std::move(plans.train);
  job.eval = std::move(plans.eval);
  for (int t = 0; t < kTierCount; ++t) {
    job.peak_bytes[t] = std::max(job.train.arena_bytes[t], job.eval.arena_bytes[t]);
    if (job.peak_bytes[t] > request.budget[t])
      return absl::InternalError(absl::StrCat("a plan of ", job.peak_bytes[t], " bytes for a ",
                                              Name(static_cast<Tier>(t)), " budget of ", request.budget[t]));
    job.minimum_bytes[t] = search.Minimum(static_cast<Tier>(t), request.budget).value_or(job.peak_bytes[t]);
  }
  PlanEstimate estimate = EstimatePlan(job.train, request.profile);
  job.lanes = std::move(estimate.lanes);
  job.step_seconds = estimate.step_seconds;
  job.binding_lane = estimate.binding_lane;
  FillPlacement(*request.layout, &job);
  FillTraffic(&job);
  FillNotes(request, search, &job);
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
  if (request.recompute == Recompute::kNone)
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

absl::StatusOr<std::variant<PlannedJob, PlanShortfall>> MakePlan(const PlanRequest& request) {
  STRATA_RETURN_IF_ERROR(CheckRequest(request));
  const PlacementSearch search(request);
  if (search.bases().empty())
    return Bad("memory.placement", "no placement satisfies these wishes together; leave one of them out");
  STRATA_RETURN_IF_ERROR(CheckChoice(*request.layout, search.bases().front()));
  const std::vector<PlanChoice> starts = Starts(request, search);
  if (starts.empty()) return ExplainShortfall(request, search);
  TierBytes minimum{};
  for (const Tier tier : kTiers)
    At(minimum, tier) = search.Minimum(tier, request.budget).value_or(At(request.budget, tier));
  STRATA_ASSIGN_OR_RETURN(PlanChoice choice, ChooseFastest(request, search, starts, minimum));
  return DescribeJob(request, search, minimum, std::move(choice));
}

}  // namespace strata
