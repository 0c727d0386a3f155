// The engine on a synthetic workload: everything of a training step but the model's mathematics, so that it
// can be measured at sizes whose model this machine could never compute. Results (losses, norms, state
// hashes) are a function of the shape, the seed, steps, micro-batches, precision and clipping alone.
#ifndef OFFLOAD_BENCH_OFFLOAD_BENCH_H_
#define OFFLOAD_BENCH_OFFLOAD_BENCH_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/process_usage.h"
#include "kernels/optimizer/isa.h"
#include "offload/bench/synthetic_model.h"
#include "offload/engine/ladder.h"
#include "offload/engine/rank_engine.h"
#include "offload/exec/step_metrics.h"
#include "offload/plan/planner.h"

namespace strata {

// Which gradient is made infinite or NaN.
struct BenchInjection {
  float value = 0;
  int64_t step = 1;    // as steps are reported: from 1
  std::string tensor;  // a name, or "first" or "last"
};

struct OffloadBenchOptions {
  SyntheticShape shape;
  bool compute_busy = false;  // the delay takes a core
  // layout, clip and the profile's compute rate are filled in (and a loss scale for fp16); micro_batches,
  // budgets, homes, mode, depth, chunks, lanes are the caller's.
  PlanRequest request;
  double clip_norm = 0;
  int64_t steps = 4;
  int threads = 1;  // of AdamW, norms and accumulation
  Isa isa = BestIsa();
  uint64_t seed = 1;
  std::optional<BenchInjection> injection;
  bool state_hash = false;  // after every step, which then do not overlap
  // Ends the run in the middle of a step: kCancelled, nothing left behind.
  std::stop_token stop;
  RankEngineOptions engine;
};

struct OffloadBenchStep {
  StepResult result;
  // Storage traffic that the kernel counted for this process since the step before; -1 where it does not.
  int64_t kernel_read_bytes = -1;
  int64_t kernel_written_bytes = -1;
  std::array<int64_t, kTierCount> high_water_bytes{};  // so far, as RankEngine counts them
  int64_t rss_bytes = 0, rss_peak_bytes = 0;
  std::string state_hash;  // with options.state_hash
};

// Of all steps but the first, which fills the pipeline (of the only one, when there is just one).
struct OffloadBenchSummary {
  int64_t steps = 0;
  double step_seconds = 0;  // mean
  double exposed_io_seconds = 0;
  double overlap_efficiency = 0;                                // busiest lane / wall, over all these steps
  std::vector<double> busy_seconds;                             // mean, by lane of the plan
  std::vector<std::array<double, kStallCauses>> stall_seconds;  // mean, by lane
  std::array<TrafficBytes, kTierCount> read{}, written{};       // of one step: all are equal
  double kernel_read_bytes = -1, kernel_written_bytes = -1;     // mean of all steps, the first included
  IoSummary io_read, io_write;
  double nvme_bytes_per_second = 0;  // read and written, over wall time: what fio's mixed figure is
  int64_t skipped_steps = 0;         // of all steps
};

struct OffloadBenchReport {
  int64_t parameters = 0;
  PlannedJob planned;
  Ladder ladder;
  std::vector<OffloadBenchStep> steps;
  OffloadBenchSummary summary;
  std::array<int64_t, kTierCount> high_water_bytes{};
  int64_t rss_before_bytes = 0;  // before the engine was made
  int64_t rss_peak_bytes = 0;
  StoreCounts store;
  std::string state_hash;  // after the last step
};

// `on_plan` sees the plan before anything is allocated, `on_step` every step as it ends (from a thread of the
// engine). kInvalidArgument names the option; kResourceExhausted: it does not fit, with the remedy;
// kCancelled: `stop` came first.
absl::StatusOr<OffloadBenchReport> RunOffloadBench(
    const OffloadBenchOptions& options, const std::function<void(const PlannedJob&)>& on_plan,
    const std::function<void(const StepPlan&, const OffloadBenchStep&)>& on_step);

}  // namespace strata

#endif  // OFFLOAD_BENCH_OFFLOAD_BENCH_H_
