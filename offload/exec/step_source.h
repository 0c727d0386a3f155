// What a trainer gives the executor: batches, hyper-parameters, and an ear for finished steps.
#ifndef OFFLOAD_EXEC_STEP_SOURCE_H_
#define OFFLOAD_EXEC_STEP_SOURCE_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "offload/exec/stall.h"
#include "offload/io/metered_io_engine.h"
#include "offload/plan/step_plan.h"

namespace strata {

struct AdamWHyper {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
};

// What moves, by class: how `strata plan` counts placements, too.
enum class TrafficClass : uint8_t { kParams, kRecords, kGradients, kActivations, kOther };
inline constexpr int kTrafficClasses = 5;
const char* Name(TrafficClass traffic);
TrafficClass TrafficClassOf(const Op& op);
using TrafficBytes = std::array<int64_t, kTrafficClasses>;

// Busy, waiting and moved by one lane in one step.
struct LaneStats {
  int64_t busy_nanos = 0;
  int64_t operations = 0;
  int64_t bytes = 0;             // as the plan counts them: moved, or touched by CPU work
  TrafficBytes traffic_bytes{};  // `bytes` by class; lanes that move bytes only
  // Waiting for an operation of another lane, by that lane's kind (index: LaneKind) and by cause.
  std::array<int64_t, 7> wait_nanos{};
  std::array<int64_t, kStallCauses> stall_nanos{};
  IoMeter io;                       // NVMe lanes
  std::vector<int64_t> path_bytes;  // NVMe lanes: moved, by path
};

// Of the NVMe store since the job's start.
struct StoreCounts {
  int64_t written_bytes = 0;
  int64_t retries = 0;
  int64_t checksum_errors = 0;
};

struct PathBytes {
  int64_t read = 0, written = 0;
};

struct StepResult {
  int64_t step = 0;  // 0-based: this step took the states from `step` to `step + 1` iterations
  int64_t applied_steps =
      0;                 // optimizer updates applied so far, this step included; bias correction counts these
  double loss_sum = 0;   // of unmasked tokens
  double tokens = 0;     // unmasked
  float loss = 0;        // loss_sum / tokens
  double grad_norm = 0;  // before clipping; of the mean loss
  double lr = 0;         // of group 0
  double loss_scale = 1;  // of this step
  bool skipped = false;   // a gradient was not finite: nothing changed but the loss scale
  // Updates that ran before the norm was known were thrown away and done again.
  bool redone = false;
  std::string bad_tensor;                              // skipped: the first tensor with a non-finite gradient
  int64_t wall_nanos = 0;                              // since the previous step's end
  std::vector<LaneStats> lanes;                        // by index into StepPlan::lanes
  std::array<int64_t, kTierCount> high_water_bytes{};  // end of the highest slot that was handed out so far
  std::array<int64_t, kTierCount> read_bytes{}, written_bytes{};
  StoreCounts store;
  // Moved on each NVMe path by this step's operations.
  std::vector<PathBytes> path_bytes;
};

// Calls come from lane threads, one at a time per function; Hyper may be called by several at once.
class StepSource {
 public:
  virtual ~StepSource() = default;
  // Tokens and targets [micro_batch * seq] each of micro-batch `micro_batch` of step `step`.
  virtual absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                                 std::span<int32_t> targets) = 0;
  // 1 / unmasked tokens of the whole step (without any loss scale): what makes the loss a mean over tokens,
  // not over micro-batches.
  virtual double GradientScale(int64_t step) = 0;
  // Pure: hyper-parameters, for the tensors of `group` (TensorInfo::group), of the update that makes
  // `applied` updates `applied + 1`.
  virtual AdamWHyper Hyper(int64_t applied, int group) const = 0;
  // After COMMIT. False: start no further step (those already started still finish).
  virtual bool OnStep(const StepResult& result) = 0;
};

}  // namespace strata

#endif  // OFFLOAD_EXEC_STEP_SOURCE_H_
