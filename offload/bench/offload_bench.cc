#include "offload/bench/offload_bench.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/bench/pseudo_values.h"
#include "offload/bench/synthetic_compute.h"

namespace strata {
namespace {

constexpr double kInitialLossScale = 65536;

absl::StatusOr<std::optional<Injection>> Resolve(const OffloadBenchOptions& options,
                                                 const ModelLayout& layout) {
  if (!options.injection.has_value()) return std::optional<Injection>();
  const BenchInjection& wanted = *options.injection;
  if (wanted.step < 1 || wanted.step > options.steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("inject: step ", wanted.step, " is not between 1 and ", options.steps));
  }
  Injection found{.value = wanted.value, .step = wanted.step - 1};
  if (wanted.tensor == "first") return found;
  if (wanted.tensor == "last") {
    found.unit = static_cast<int>(layout.units.size()) - 1;
    found.tensor = static_cast<int>(layout.units.back().tensors.size()) - 1;
    return found;
  }
  for (size_t u = 0; u < layout.units.size(); ++u) {
    for (size_t t = 0; t < layout.units[u].tensors.size(); ++t) {
      if (layout.units[u].tensors[t].name != wanted.tensor) continue;
      if (layout.units[u].tensors[t].frozen) {
        return absl::InvalidArgumentError(
            absl::StrCat("inject: ", wanted.tensor, " is frozen: nobody looks at its gradient"));
      }
      found.unit = static_cast<int>(u);
      found.tensor = static_cast<int>(t);
      return found;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("inject: there is no tensor ", wanted.tensor,
                                                 "; write first, last or a name such as ",
                                                 layout.units[1].tensors[1].name));
}

class BenchSource : public StepSource {
 public:
  using OnStepFn = std::function<void(const StepPlan&, const OffloadBenchStep&)>;
  BenchSource(const RankEngine& engine, const OnStepFn& on_step, bool hold)
      : engine_(engine),
        layout_(engine.layout()),
        plan_(engine.planned().train),
        on_step_(on_step),
        hold_(hold),
        usage_(ReadProcessUsage()) {}

  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), 0);
    SyntheticCompute::MarkBatch(step, micro_batch, tokens.data());
    return absl::OkStatus();
  }
  double GradientScale(int64_t) override {
    return 1.0 / static_cast<double>(layout_.seq * plan_.micro_batches);
  }
  AdamWHyper Hyper(int64_t applied, int group) const override {
    const double lr = 1e-3 / static_cast<double>(1 + applied % 10);
    return group == kDecayGroup ? AdamWHyper{.lr = lr} : AdamWHyper{.lr = lr / 2, .weight_decay = 0};
  }
  bool OnStep(const StepResult& result) override {
    const ProcessUsage now = ReadProcessUsage();
    OffloadBenchStep step{.result = result,
                          .high_water_bytes = engine_.HighWaterBytes(result),
                          .rss_bytes = now.rss_bytes,
                          .rss_peak_bytes = now.rss_peak_bytes};
    if (now.storage_read_bytes >= 0) {
      step.kernel_read_bytes = now.storage_read_bytes - usage_.storage_read_bytes;
      step.kernel_written_bytes = now.storage_written_bytes - usage_.storage_written_bytes;
    }
    usage_ = now;
    steps_.push_back(std::move(step));
    if (!hold_) on_step_(plan_, steps_.back());
    return true;
  }

  // With `hold`: the newest step's hash is known now. What the hash read does not count for the next step.
  void Release(std::string hash) {
    steps_.back().state_hash = std::move(hash);
    on_step_(plan_, steps_.back());
    usage_ = ReadProcessUsage();
  }
  std::vector<OffloadBenchStep> Take() { return std::move(steps_); }

 private:
  const RankEngine& engine_;
  const ModelLayout& layout_;
  const StepPlan& plan_;
  const OnStepFn& on_step_;
  const bool hold_;
  ProcessUsage usage_;
  std::vector<OffloadBenchStep> steps_;
};

OffloadBenchSummary Summarize(const StepPlan& plan, const std::vector<OffloadBenchStep>& steps) {
  OffloadBenchSummary summary;
  summary.busy_seconds.resize(plan.lanes.size());
  summary.stall_seconds.resize(plan.lanes.size());
  const size_t first = steps.size() > 1 ? 1 : 0;
  const double n = static_cast<double>(steps.size() - first);
  summary.steps = static_cast<int64_t>(steps.size() - first);
  for (const OffloadBenchStep& step : steps) summary.skipped_steps += step.result.skipped ? 1 : 0;
  std::vector<const StepResult*> results;
  for (size_t i = first; i < steps.size(); ++i) {
    const StepResult& result = steps[i].result;
    results.push_back(&result);
    const StepMetrics metrics = SummarizeStep(plan, result);
    summary.step_seconds += static_cast<double>(result.wall_nanos) / 1e9 / n;
    summary.exposed_io_seconds += static_cast<double>(metrics.exposed_io_nanos) / 1e9 / n;
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      summary.busy_seconds[lane] += static_cast<double>(result.lanes[lane].busy_nanos) / 1e9 / n;
      for (int cause = 0; cause < kStallCauses; ++cause) {
        summary.stall_seconds[lane][cause] +=
            static_cast<double>(result.lanes[lane].stall_nanos[cause]) / 1e9 / n;
      }
    }
    summary.read = metrics.read;
    summary.written = metrics.written;
  }
  // What the kernel counts is told apart by time: a step's share holds what the next one fetched ahead. Only
  // the whole is exact.
  if (steps.front().kernel_read_bytes >= 0) {
    double read = 0, written = 0;
    for (const OffloadBenchStep& step : steps) {
      read += static_cast<double>(step.kernel_read_bytes);
      written += static_cast<double>(step.kernel_written_bytes);
    }
    summary.kernel_read_bytes = read / static_cast<double>(steps.size());
    summary.kernel_written_bytes = written / static_cast<double>(steps.size());
  }
  summary.io_read = SummarizeIo(plan, LaneKind::kNvmeRead, results);
  summary.io_write = SummarizeIo(plan, LaneKind::kNvmeWrite, results);
  if (summary.step_seconds > 0) {
    summary.overlap_efficiency =
        *std::max_element(summary.busy_seconds.begin(), summary.busy_seconds.end()) / summary.step_seconds;
    const StepResult& last = steps.back().result;
    constexpr int kNvme = static_cast<int>(Tier::kNvme);
    summary.nvme_bytes_per_second =
        static_cast<double>(last.read_bytes[kNvme] + last.written_bytes[kNvme]) / summary.step_seconds;
  }
  return summary;
}

absl::Status RunSteps(const OffloadBenchOptions& options, RankEngine& engine, BenchSource& source) {
  TrainerCounters counters;
  if (engine.layout().compute_dtype == DType::kF16) counters.loss_scale.scale = kInitialLossScale;
  if (!options.state_hash) return engine.train().Run(source, options.steps, counters);
  while (counters.iterations < options.steps) {
    STRATA_RETURN_IF_ERROR(engine.train().Run(source, 1, counters));
    STRATA_ASSIGN_OR_RETURN(std::string hash, engine.StateHash(counters.iterations));
    source.Release(std::move(hash));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OffloadBenchReport> RunOffloadBench(
    const OffloadBenchOptions& options, const std::function<void(const PlannedJob&)>& on_plan,
    const std::function<void(const StepPlan&, const OffloadBenchStep&)>& on_step) {
  if (options.steps < 1) return absl::InvalidArgumentError("steps: at least one");
  if (!Supported(options.isa)) {
    return absl::InvalidArgumentError(absl::StrCat("isa: this processor has no ", Name(options.isa)));
  }
  STRATA_ASSIGN_OR_RETURN(const ModelLayout layout, MakeSyntheticLayout(options.shape));
  STRATA_ASSIGN_OR_RETURN(const std::optional<Injection> injection, Resolve(options, layout));
  PlanRequest request = options.request;
  request.layout = &layout;
  request.clip = options.clip_norm > 0;
  request.profile.f32 = request.profile.bf16 = SyntheticRates();
  OffloadBenchReport report;
  report.parameters = layout.parameter_count();
  STRATA_ASSIGN_OR_RETURN(report.planned, PlanOrShortfall(request));
  on_plan(report.planned);

  report.rss_before_bytes = ReadProcessUsage().rss_bytes;
  const std::unique_ptr<StateOps> math = MakeCpuStateOps(options.threads, options.isa);
  SyntheticCompute compute(layout, {.seed = options.seed,
                                    .delay = options.shape.compute_delay,
                                    .busy = options.compute_busy,
                                    .injection = injection,
                                    .stop = options.stop});
  RankEngineOptions engine_options = options.engine;
  engine_options.train.clip_norm = options.clip_norm;
  if (layout.compute_dtype == DType::kF16) engine_options.train.loss_scale = LossScaleRule();
  STRATA_ASSIGN_OR_RETURN(auto engine,
                          RankEngine::Create(layout, report.planned, compute, *math, engine_options));
  report.ladder = engine->ladder();
  const std::stop_callback stop(options.stop, [&engine = *engine] { engine.train().Cancel(); });
  uint64_t tensor_key = options.seed;
  const TensorInfo* filling = nullptr;
  STRATA_RETURN_IF_ERROR(engine->Initialize([&](const TensorInfo& tensor, int64_t element,
                                                std::span<float> out) {
    // Tensors come in the layout's order, piece by piece.
    if (filling != &tensor) {
      filling = &tensor;
      tensor_key = options.seed;
      for (const char c : tensor.name) tensor_key = MixKeys(tensor_key, static_cast<uint8_t>(c));
    }
    PseudoValues(tensor_key, element, 0.05f, out);
    return options.stop.stop_requested() ? absl::CancelledError("the run was cancelled") : absl::OkStatus();
  }));

  BenchSource source(*engine, on_step, options.state_hash);
  STRATA_RETURN_IF_ERROR(RunSteps(options, *engine, source));
  report.steps = source.Take();
  if (options.state_hash) report.state_hash = report.steps.back().state_hash;
  report.high_water_bytes = report.steps.back().high_water_bytes;
  report.store = report.steps.back().result.store;
  report.rss_peak_bytes = ReadProcessUsage().rss_peak_bytes;
  report.summary = Summarize(report.planned.train, report.steps);
  STRATA_RETURN_IF_ERROR(engine->Close());
  return report;
}

}  // namespace strata
