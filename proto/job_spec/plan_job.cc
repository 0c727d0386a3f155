#include "proto/job_spec/plan_job.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/checked.h"
#include "common/fd.h"
#include "common/status.h"
#include "offload/checkpoint/export.h"
#include "offload/exec/trace.h"
#include "offload/model/moments.h"
#include "offload/plan/chunk_size.h"
#include "proto/job_spec/parameter_groups.h"
#include "proto/machine/machine.h"

namespace strata {
namespace {

constexpr int64_t kConfigLimitBytes = 1 << 20;
// An auto budget on a machine of unknown size: more than any job takes, small enough for sums of budgets.
constexpr int64_t kUnlimitedBytes = int64_t{1} << 50;

std::optional<Tier> TierOf(v1::Tier tier) {
  switch (tier) {
    case v1::TIER_DEVICE:
      return Tier::kDevice;
    case v1::TIER_HOST:
      return Tier::kHost;
    case v1::TIER_NVME:
      return Tier::kNvme;
    default:
      return std::nullopt;
  }
}

std::optional<Mode> ModeOf(v1::Mode mode) {
  switch (mode) {
    case v1::MODE_SYNC:
      return Mode::kSync;
    case v1::MODE_OVERLAP:
      return Mode::kOverlap;
    case v1::MODE_FORWARD_OVERLAP:
      return Mode::kForwardOverlap;
    case v1::MODE_SPECULATIVE:
      return Mode::kSpeculative;
    case v1::MODE_DELAYED:
      return Mode::kDelayed;
    default:
      return std::nullopt;
  }
}

std::optional<Recompute> RecomputeOf(v1::Recompute recompute) {
  switch (recompute) {
    case v1::RECOMPUTE_NONE:
      return Recompute::kNone;
    case v1::RECOMPUTE_FULL:
      return Recompute::kFull;
    case v1::RECOMPUTE_SQRT:
      return Recompute::kSqrt;
    case v1::RECOMPUTE_SELECTIVE:
      return Recompute::kSelective;
    case v1::RECOMPUTE_OPTIMAL:
      return Recompute::kOptimal;
    default:
      return std::nullopt;
  }
}

DType DTypeOf(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_FP32:
      return DType::kF32;
    case v1::PRECISION_FP16:
      return DType::kF16;
    default:
      return DType::kBF16;
  }
}

v1::Mode ToProto(Mode mode) {
  switch (mode) {
    case Mode::kSync:
      return v1::MODE_SYNC;
    case Mode::kOverlap:
      return v1::MODE_OVERLAP;
    case Mode::kForwardOverlap:
      return v1::MODE_FORWARD_OVERLAP;
    case Mode::kSpeculative:
      return v1::MODE_SPECULATIVE;
    case Mode::kDelayed:
      return v1::MODE_DELAYED;
  }
  return v1::MODE_UNSPECIFIED;
}

// The policy that the choice amounts to; mixtures are what `optimal` makes.
v1::Recompute PolicyOf(const PlanChoice& choice, const ModelLayout& layout) {
  using Saved = PlanChoice::Saved;
  int of[3] = {0, 0, 0}, segments = 0;
  const int blocks = static_cast<int>(layout.blocks.size()) - 2;
  for (int b = 1; b <= blocks; ++b) {
    const PlanChoice::BlockChoice& block = choice.blocks[b];
    ++of[static_cast<int>(block.saved)];
    segments += !block.checkpoint;
  }
  if (of[static_cast<int>(Saved::kKeep)] == blocks) return v1::RECOMPUTE_NONE;
  if (of[static_cast<int>(Saved::kSelective)] == blocks) return v1::RECOMPUTE_SELECTIVE;
  if (of[static_cast<int>(Saved::kRecompute)] == blocks)
    return segments > 0 ? v1::RECOMPUTE_SQRT : v1::RECOMPUTE_FULL;
  return v1::RECOMPUTE_OPTIMAL;
}

std::string SavedText(const PlanChoice::BlockChoice& block) {
  switch (block.saved) {
    case PlanChoice::Saved::kKeep:
      return Name(block.saved_home);
    case PlanChoice::Saved::kSelective:
      return absl::StrCat("selective, ", Name(block.saved_home));
    case PlanChoice::Saved::kRecompute:
      return "recompute";
  }
  return "";
}

// Transformer blocks, by number from 0; neighbours that are alike in one row.
void AddBlocks(const PlanChoice& choice, const ModelLayout& layout, v1::JobPlan* plan) {
  for (size_t b = 1; b + 1 < layout.blocks.size(); ++b) {
    v1::BlockRow row;
    // A block's units seldom differ; where they do, all are said.
    const auto homes = [&](Tier PlanChoice::UnitHome::*of) {
      std::string text;
      for (const int u : layout.blocks[b].units) {
        const char* const name = Name(choice.units[u].*of);
        if (text.find(name) == std::string::npos) absl::StrAppend(&text, text.empty() ? "" : ", ", name);
      }
      return text;
    };
    row.set_params(homes(&PlanChoice::UnitHome::params));
    row.set_gradients(homes(&PlanChoice::UnitHome::gradients));
    row.set_optimizer(homes(&PlanChoice::UnitHome::record));
    row.set_activation(choice.blocks[b].checkpoint ? Name(choice.blocks[b].activation) : "");
    row.set_saved(SavedText(choice.blocks[b]));
    const auto layer = static_cast<int32_t>(b - 1);
    if (plan->blocks_size() > 0) {
      v1::BlockRow& last = *plan->mutable_blocks(plan->blocks_size() - 1);
      row.set_first(last.first());
      row.set_last(last.last());
      if (row.SerializeAsString() == last.SerializeAsString()) {
        last.set_last(layer);
        continue;
      }
    }
    row.set_first(layer);
    row.set_last(layer);
    *plan->add_blocks() = std::move(row);
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfigOf(const v1::JobSpec& spec) {
  const v1::DropoutSpec& dropout = spec.model().dropout();
  const auto with_dropout = [&](ModelConfig config) {
    if (dropout.has_embedding()) config.dropout.embedding = dropout.embedding();
    if (dropout.has_residual()) config.dropout.residual = dropout.residual();
    if (dropout.has_attention()) config.dropout.attention = dropout.attention();
    return config;
  };
  if (spec.model().has_from()) {
    const std::string path = spec.model().from() + "/config.json";
    STRATA_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kConfigLimitBytes), "model.from");
    const auto config = ParseHuggingFaceConfig(json);
    if (!config.ok()) return Annotate(config.status(), absl::StrCat("model.from: ", path));
    return with_dropout(*config);
  }
  const v1::ModelConfig& from = spec.model().config();
  ModelConfig config;
  config.architecture =
      from.architecture() == v1::ARCHITECTURE_GPT2 ? Architecture::kGpt2 : Architecture::kLlama;
  config.layers = from.layers();
  config.hidden = from.hidden();
  config.heads = from.heads();
  config.kv_heads = from.kv_heads();
  config.head_dim = from.head_dim();
  config.ffn = from.ffn();
  config.vocab = from.vocab();
  config.max_seq = from.max_seq();
  if (config.architecture == Architecture::kLlama) {
    config.activation = Activation::kSwiglu;
  } else {
    config.activation =
        from.activation() == v1::ACTIVATION_GELU_ERF ? Activation::kGeluErf : Activation::kGeluTanh;
  }
  config.norm_eps = from.norm_eps();
  config.rope_theta = from.rope_theta();
  config.tied_head = from.tied_head();
  return with_dropout(config);
}

absl::StatusOr<ModelLayout> ModelLayoutOf(const v1::JobSpec& spec, const v1::ResourceRequest& limits) {
  STRATA_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigOf(spec));
  const bool on_cpu = FromProto(limits.machine()).device_is_cpu;
  STRATA_ASSIGN_OR_RETURN(
      ModelLayout layout,
      BuildModelLayout(config, DTypeOf(spec.training().precision()), spec.training().micro_batch(),
                       spec.data().seq_len(), on_cpu ? GemmLibrary::kCpu : GemmLibrary::kCublasLt,
                       spec.training().precision() == v1::PRECISION_FP8));
  const std::string& optimizer = spec.training().optimizer().name();
  const std::optional<Moments> moments = MomentsOfOptimizer(optimizer);
  if (!moments.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("training.optimizer.name: '", optimizer,
                                                   "' is not known: choose one of ", kOptimizerNames));
  }
  layout.moments = *moments;
  STRATA_RETURN_IF_ERROR(AssignGroups(spec.training(), layout));
  return layout;
}

bool Requires(const v1::MemorySpec& memory, v1::Feature feature) {
  return std::count(memory.require().begin(), memory.require().end(), feature) > 0;
}

v1::ResourceRequest BudgetOf(const v1::JobSpec& spec, const v1::ResourceRequest& limits) {
  const auto choose = [](int64_t wanted, int64_t limit) {
    return wanted > 0 ? wanted : (limit > 0 ? limit : kUnlimitedBytes);
  };
  v1::ResourceRequest budget;
  budget.set_device_bytes(choose(spec.memory().device(), limits.device_bytes()));
  budget.set_host_bytes(choose(spec.memory().host(), limits.host_bytes()));
  budget.set_nvme_bytes(choose(spec.memory().nvme(), limits.nvme_bytes()));
  if (limits.has_machine()) *budget.mutable_machine() = limits.machine();
  return budget;
}

PlanRequest PlanRequestOf(const v1::JobSpec& spec, const ModelLayout& layout,
                          const v1::ResourceRequest& budget) {
  const v1::MemorySpec& memory = spec.memory();
  PlanRequest request;
  request.layout = &layout;
  request.micro_batches = spec.training().global_batch() / spec.training().micro_batch();
  request.clip = spec.training().grad_clip() > 0;
  request.budget = {budget.device_bytes(), budget.host_bytes(), budget.nvme_bytes()};
  request.params = TierOf(memory.placement().params());
  request.gradients = TierOf(memory.placement().gradients());
  request.optimizer = TierOf(memory.placement().optimizer());
  request.activations = TierOf(memory.placement().activations());
  request.recompute = RecomputeOf(memory.recompute());
  request.mode = ModeOf(memory.mode());
  request.prefetch_depth = memory.prefetch_depth();
  request.chunk_elements = ChunkElements(memory.chunk());
  request.io_threads = memory.io_threads();
  request.direct = Requires(memory, v1::FEATURE_GPUDIRECT);
  request.profile = WithThreads(FromProto(budget.machine()), spec.training().compute_threads());
  return request;
}

v1::JobPlan ToProto(const PlannedJob& planned, const ModelLayout& layout, const v1::ResourceRequest& budget) {
  v1::JobPlan plan;
  plan.set_fits(true);
  const int64_t budgets[kTierCount] = {budget.device_bytes(), budget.host_bytes(), budget.nvme_bytes()};
  plan.mutable_resources()->set_device_bytes(planned.peak_bytes[0]);
  plan.mutable_resources()->set_host_bytes(planned.peak_bytes[1]);
  plan.mutable_resources()->set_nvme_bytes(planned.peak_bytes[2]);
  for (int tier = 0; tier < kTierCount; ++tier) {
    v1::TierRow* row = plan.add_tiers();
    row->set_tier(Name(static_cast<Tier>(tier)));
    row->set_budget_bytes(budgets[tier]);
    row->set_peak_bytes(planned.peak_bytes[tier]);
    row->set_minimum_bytes(planned.minimum_bytes[tier]);
    row->set_read_bytes_per_step(planned.read_bytes[tier]);
    row->set_written_bytes_per_step(planned.written_bytes[tier]);
  }
  static constexpr const char* kClasses[] = {"params", "gradients", "optimizer", "activations"};
  for (size_t i = 0; i < planned.placement.size(); ++i) {
    v1::PlacementRow* row = plan.add_placement();
    row->set_what(kClasses[i]);
    row->set_device_bytes(planned.placement[i][0]);
    row->set_host_bytes(planned.placement[i][1]);
    row->set_nvme_bytes(planned.placement[i][2]);
  }
  for (const LaneEstimate& lane : planned.simulation.lanes) {
    v1::LaneRow* row = plan.add_lanes();
    row->set_lane(LaneName(lane.lane));
    row->set_operations(lane.operations);
    row->set_bytes(lane.bytes);
    row->set_busy_ms(lane.busy_seconds * 1e3);
  }
  plan.set_recompute(PolicyOf(planned.choice, layout));
  plan.set_mode(ToProto(planned.choice.mode));
  plan.set_micro_batch(static_cast<int32_t>(layout.micro_batch));
  plan.set_prefetch_depth(planned.choice.prefetch_depth);
  plan.set_chunk_elements(planned.choice.chunk_elements);
  plan.set_parameters(layout.parameter_count());
  const auto nanos = static_cast<int64_t>(planned.simulation.step_seconds * 1e9);
  plan.mutable_step_time()->set_seconds(nanos / 1'000'000'000);
  plan.mutable_step_time()->set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  plan.set_binding_lane(planned.simulation.binding);
  plan.set_exposed_io_ms(planned.simulation.exposed_io_seconds * 1e3);
  plan.set_bound_ms(planned.simulation.bound_seconds * 1e3);
  plan.set_fill_drain_ms((planned.simulation.single_step_seconds - planned.simulation.bound_seconds) * 1e3);
  if (planned.simulation.step_seconds > 0) {
    plan.set_nvme_written_bytes_per_day(static_cast<double>(planned.written_bytes[2]) * 86400 /
                                        planned.simulation.step_seconds);
  }
  for (int tier = 0; tier < kTierCount; ++tier) {
    v1::Advice* advice = plan.add_advice();
    advice->set_tier(Name(static_cast<Tier>(tier)));
    advice->set_bytes(kAdviceBytes);
    advice->set_saved_ms(planned.advice_seconds[tier] * 1e3);
  }
  AddBlocks(planned.choice, layout, &plan);
  if (budget.has_machine()) *plan.mutable_machine() = budget.machine();
  for (const std::string& note : planned.notes) plan.add_notes(note);
  return plan;
}

absl::StatusOr<v1::JobPlan> PlanJob(const v1::JobSpec& spec, const v1::ResourceRequest& limits) {
  STRATA_ASSIGN_OR_RETURN(const ModelLayout layout, ModelLayoutOf(spec, limits));
  const auto lacks = [&](const char* resource, std::string remedy) {
    v1::JobPlan plan;
    plan.set_fits(false);
    plan.set_parameters(layout.parameter_count());
    v1::Shortfall* const row = plan.add_shortfalls();
    row->set_scope("rank");
    row->set_resource(resource);
    row->set_remedy(std::move(remedy));
    return plan;
  };
  if (spec.training().precision() == v1::PRECISION_FP8 && !limits.why_no_fp8().empty()) {
    return lacks("fp8", limits.why_no_fp8());
  }
  const v1::ResourceRequest budget = BudgetOf(spec, limits);
  PlanRequest request = PlanRequestOf(spec, layout, budget);
  request.predict_only = request.advise = true;
  STRATA_ASSIGN_OR_RETURN(const auto outcome, MakePlan(request));
  const auto* const planned = std::get_if<PlannedJob>(&outcome);
  // As where the job would run (offload/engine/ladder.h): without NVMe nobody misses it.
  const bool misses_gpudirect = request.direct && !limits.why_no_gpudirect().empty() && planned != nullptr &&
                                planned->peak_bytes[static_cast<int>(Tier::kNvme)] > 0;
  if (planned != nullptr && !misses_gpudirect) return ToProto(*planned, layout, budget);
  if (misses_gpudirect) {
    return lacks(
        "gpudirect",
        absl::StrCat(limits.why_no_gpudirect(),
                     "; mend that, or take gpudirect out of memory.require: the numbers stay the same"));
  }
  const auto& shortfall = std::get<PlanShortfall>(outcome);
  v1::JobPlan plan = lacks(Name(shortfall.tier), shortfall.remedy);
  v1::Shortfall* const row = plan.mutable_shortfalls(0);
  row->set_requested(shortfall.needed_bytes);
  row->set_free(shortfall.budget_bytes);
  row->set_total(shortfall.budget_bytes);
  return plan;
}

}  // namespace strata
