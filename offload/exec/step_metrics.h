// StepMetrics: what a step's raw counts say, and the names under which rows carry it (`strata metrics`,
// `-o jsonl`, `strata bench offload`; deploy/docs/metrics.md).
#ifndef OFFLOAD_EXEC_STEP_METRICS_H_
#define OFFLOAD_EXEC_STEP_METRICS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "offload/exec/step_source.h"
#include "offload/plan/step_plan.h"

namespace strata {

struct IoSummary {
  int64_t requests = 0;
  int64_t p50_nanos = 0, p99_nanos = 0;
  double queue_depth = 0;  // mean, while any request was out; of all lanes of the kind together
  int64_t bytes = 0;
  int64_t busy_nanos = 0;  // of the lane that had requests out for longest

  // While any request was out; 0 when none was.
  double BytesPerSecond() const { return busy_nanos > 0 ? static_cast<double>(bytes) * 1e9 / busy_nanos : 0; }
};

// What calibration found, in bytes per second; 0: not known.
struct NvmeSpeeds {
  double read = 0, write = 0;
};

struct StepMetrics {
  // What the compute lanes waited for lanes that move bytes.
  int64_t exposed_io_nanos = 0;
  // Busy time of the busiest lane / wall time: 1 when the step is as fast as that lane allows.
  double overlap_efficiency = 0;
  // Waiting of all lanes by cause: lane-nanoseconds.
  std::array<int64_t, kStallCauses> stall_nanos{};
  // Bytes into and out of the tier; the host's are those of the two others.
  std::array<TrafficBytes, kTierCount> read{}, written{};
  IoSummary io_read, io_write;
};

StepMetrics SummarizeStep(const StepPlan& plan, const StepResult& result);

// Of the NVMe lanes of one kind over several steps.
IoSummary SummarizeIo(const StepPlan& plan, LaneKind kind, const std::vector<const StepResult*>& results);

// Every figure with its name; what is zero in a sparse family (stalls, bytes by class) is left out. Yes and
// no are 1 and 0 here; JSON rows say true and false.
void VisitStepMetrics(const StepPlan& plan, const StepResult& result, const NvmeSpeeds& calibrated,
                      const std::function<void(const std::string& name, double value)>& visit);

}  // namespace strata

#endif  // OFFLOAD_EXEC_STEP_METRICS_H_
