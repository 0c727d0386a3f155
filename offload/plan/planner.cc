#include "offload/plan/planner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "offload/plan/builder.h"
#include "offload/plan/chooser.h"
#include "offload/plan/placement_search.h"
#include "offload/plan/plan_words.h"
#include "offload/plan/slot_table.h"

namespace strata {
namespace {

int64_t& At(TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }
int64_t At(const TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }

constexpr Tier kTiers[] = {Tier::kDevice, Tier::kHost, Tier::kNvme};

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
  FillNotes(request, search, best, &job);
  if (request.predict_only) job.train = StepPlan();
  return job;
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
  STRATA_ASSIGN_OR_RETURN(const Candidate best, Choose(request, search, minimum, starts));
  return DescribeJob(request, search, minimum, best);
}

}  // namespace strata
