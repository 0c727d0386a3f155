#include "offload/plan/plan_words.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/seconds.h"
#include "offload/plan/slot_table.h"

namespace strata {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

constexpr Tier kTiers[] = {Tier::kDevice, Tier::kHost, Tier::kNvme};

int64_t& At(TierBytes& bytes, Tier tier) { return bytes[static_cast<int>(tier)]; }

std::string AtLeast(Tier tier, int64_t bytes) {
  return absl::StrCat("memory.", Name(tier), ": at least ", bytes, " bytes (", FormatBytes(bytes), ")");
}

std::string WhereText(const std::array<int64_t, kTierCount>& bytes) {
  std::vector<std::string> parts;
  for (const Tier tier : kTiers) {
    if (const int64_t n = bytes[static_cast<int>(tier)]; n > 0)
      parts.push_back(absl::StrCat(FormatBytes(n), " ", Name(tier)));
  }
  return parts.empty() ? "nothing" : absl::StrJoin(parts, ", ");
}

// Why this one, in numbers. Trials are predicted on samples; shown as a share of the step that is shown.
std::string ModeText(const Candidate& best, double step_seconds) {
  if (best.modes.empty()) return " as asked";
  std::vector<std::string> parts;
  for (const ModeTrial& trial : best.modes) {
    const double scale = step_seconds / best.seconds;
    parts.push_back(absl::StrCat(Name(trial.mode), " ", FormatSeconds(trial.seconds * scale)));
    if (trial.mode == Mode::kSpeculative)
      absl::StrAppend(&parts.back(), " a step, ", FormatSeconds(trial.redo_seconds * scale),
                      " where every step clips");
  }
  return absl::StrCat(": ", absl::StrJoin(parts, ", "));
}

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

}  // namespace

void FillPlacement(const ModelLayout& layout, PlannedJob* job) {
  const int64_t param = SizeOf(layout.compute_dtype), acc = SizeOf(layout.acc_dtype());
  for (size_t u = 0; u < layout.units.size(); ++u) {
    const PlanChoice::UnitHome& home = job->choice.units[u];
    const int64_t n = layout.units[u].elements;
    job->placement[0][static_cast<int>(home.params)] += n * param;
    if (!layout.units[u].frozen()) job->placement[1][static_cast<int>(home.gradients)] += n * acc;
    job->placement[2][static_cast<int>(home.record)] += RecordBytes(layout.moments, n);
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
      case OpKind::kReadDirect:
      case OpKind::kWriteDirect:
      case OpKind::kH2D:
      case OpKind::kD2H:
      case OpKind::kActIn:
      case OpKind::kActOut: {
        const Tier from = train.slots[op.operands[0].slot].tier;
        const Tier to = train.slots[op.operands[1].slot].tier;
        job->read_bytes[static_cast<int>(from)] += op.bytes;
        job->written_bytes[static_cast<int>(to)] += op.bytes;
        if (IsDirect(op.kind))
          (ReadsStore(op.kind) ? job->direct_read_bytes : job->direct_written_bytes) += op.bytes;
        break;
      }
      default:
        break;
    }
  }
}

void FillNotes(const PlanRequest& request, const PlacementSearch& search, const Candidate& best,
               PlannedJob* job) {
  const char* const kClasses[] = {"parameters", "gradients", "optimizer", "activations"};
  for (int i = 0; i < 4; ++i)
    job->notes.push_back(absl::StrCat(kClasses[i], ": ", WhereText(job->placement[i])));
  if (request.layout->moments == Moments::kCode8) {
    const int64_t n = request.layout->total_elements();
    const auto mean = [n](Moments moments) {
      return static_cast<double>(RecordBytes(moments, n)) / static_cast<double>(n);
    };
    job->notes.push_back(absl::StrFormat(
        "optimizer adamw8bit: m and v in eight bits, %.4g bytes of state a parameter instead of %.4g",
        mean(Moments::kCode8), mean(Moments::kF32)));
  }
  if (job->direct_read_bytes > 0)
    job->notes.push_back(absl::StrCat("gpudirect: of a step's bytes on nvme the GPU reads ",
                                      FormatBytes(job->direct_read_bytes), " and writes ",
                                      FormatBytes(job->direct_written_bytes),
                                      " itself, past the host; the way to a GPU is not measured, it is "
                                      "predicted as the slower of the drive and the link"));
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
  job->notes.push_back(absl::StrCat("mode ", Name(job->choice.mode),
                                    ModeText(best, job->simulation.step_seconds), "; prefetch depth ",
                                    job->choice.prefetch_depth));
  if (job->choice.mode == Mode::kDelayed)
    job->notes.push_back(
        "mode delayed changes results: each step applies the gradient of the step before, which was computed "
        "with older parameters");
  if (job->choice.mode == Mode::kSpeculative)
    job->notes.push_back(
        "mode speculative: a step that clips does its NVMe updates twice, which the predicted step leaves "
        "out");
  const Simulation& simulated = job->simulation;
  job->notes.push_back(absl::StrCat("bound by ", simulated.binding, ": ",
                                    FormatSeconds(simulated.bound_seconds), " of a step of ",
                                    FormatSeconds(simulated.step_seconds), "; the device waits ",
                                    FormatSeconds(simulated.exposed_io_seconds), " for transfers"));
  const double day =
      static_cast<double>(job->written_bytes[static_cast<int>(Tier::kNvme)]) * 86400 / simulated.step_seconds;
  if (const double endurance = request.profile.nvme_endurance_bytes; endurance > 0 && day > 0)
    job->notes.push_back(
        absl::StrFormat("nvme: %.2f TB written in a day of such steps; what is rated for %.0f TB lasts %.1f "
                        "days (%.2f years)",
                        day / 1e12, endurance / 1e12, endurance / day, endurance / day / 365));
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
  // Of several tiers together: the smallest of the first when the others are unlimited, then of the next.
  // Where no NVMe alone will do, a device or a host that could hold everything is seldom what there is.
  const bool none_alone = remedies.empty();
  if (!search.Minimum(Tier::kNvme, request.budget).has_value()) {
    TierBytes budget = {kNoLimit, kNoLimit, kNoLimit};
    std::vector<std::string> all;
    for (const Tier tier : kTiers) {
      const int64_t needed = search.Minimum(tier, budget).value_or(0);
      At(budget, tier) = std::max(request.budget[static_cast<int>(tier)], needed);
      if (needed <= request.budget[static_cast<int>(tier)]) continue;
      if (all.empty() && none_alone) {
        shortfall.tier = tier;
        shortfall.needed_bytes = needed;
      }
      all.push_back(AtLeast(tier, needed));
    }
    if (none_alone || all.size() > 1) remedies.push_back(absl::StrJoin(all, " and "));
  }
  for (std::string& remedy : WishesInTheWay(request)) remedies.push_back(std::move(remedy));
  shortfall.budget_bytes = request.budget[static_cast<int>(shortfall.tier)];
  shortfall.remedy = absl::StrJoin(remedies, ", or ");
  return shortfall;
}

}  // namespace strata
