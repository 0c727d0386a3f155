// Executor: runs a StepPlan. One thread per lane, waiting only on the plan's explicit dependencies; the same
// code drives the CPU device and, through Device's streams and events, an accelerator.
//
// States live in the homes that the plan gives them: the device arena, the host arena, the NVMe store. They
// are loaded before the first step and read between runs through StateAccess (state_access.h).
//
// Failure: the first operation that fails stops every lane before its next operation; Run returns that error,
// with what the operation was (and its cause, see cause.h), once the device has nothing of the run in flight.
// The states are then undefined and the executor refuses further runs: the job resumes from its last
// checkpoint.
#ifndef OFFLOAD_EXEC_EXECUTOR_H_
#define OFFLOAD_EXEC_EXECUTOR_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "offload/arena/pinned_arena.h"
#include "offload/device/device.h"
#include "offload/exec/block_compute.h"
#include "offload/exec/cause.h"
#include "offload/exec/device_checksum.h"
#include "offload/exec/loss_scale.h"
#include "offload/exec/stall.h"
#include "offload/exec/step_source.h"
#include "offload/exec/trace.h"
#include "offload/io/io_engine.h"
#include "offload/io/metered_io_engine.h"
#include "offload/model/model_layout.h"
#include "offload/plan/step_plan.h"
#include "offload/store/nvme_store.h"

namespace strata {

// Everything a run uses; all outlive the executor. `store` is null when no slot of the plan is on NVMe.
struct ExecutorResources {
  const ModelLayout* layout = nullptr;
  Device* device = nullptr;
  PinnedArena* host = nullptr;
  NvmeStore* store = nullptr;
  BlockCompute* compute = nullptr;
  StateOps* host_state_ops = nullptr;
  // One engine per NVMe lane, each used by that lane's thread only, for what that lane does.
  std::function<absl::StatusOr<std::unique_ptr<IoEngine>>(IoOp)> make_engine;
  // The same for lanes that are direct: to and from the device's arena.
  std::function<absl::StatusOr<std::unique_ptr<IoEngine>>()> make_direct_engine;
  Clock* clock = &Clock::Real();
};

struct TrainerCounters {
  int64_t iterations = 0;     // steps done, skipped ones included: the data cursor and the NVMe generation
  int64_t applied_steps = 0;  // updates applied
  // Mode delayed: the factor (clipping, loss scale) of the gradient that the next step applies; absent when
  // there is none.
  std::optional<float> pending_scale;
  LossScale loss_scale;  // of the next step; stays as it is without a rule
};

struct ExecutorOptions {
  double clip_norm = 0;          // plan.clip: the norm to clip to
  size_t trace_capacity = 4096;  // spans kept per lane
  // Needed for training in fp16: the loss gradient is scaled.
  std::optional<LossScaleRule> loss_scale;
};

class Executor {
 public:
  // Checks that the plan fits the resources: arenas at least as large as the plan's, a store when it needs
  // one.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const StepPlan& plan,
                                                          const ExecutorResources& resources,
                                                          const ExecutorOptions& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // A training plan: runs up to `steps` further steps from `counters` and brings `counters` up to date. An
  // eval plan: runs steps 0 .. steps-1 on the states that `counters` stands for and changes nothing. Returns
  // when every lane is idle and every started step is committed. Blocking; one caller at a time. `source` is
  // called by lane threads.
  absl::Status Run(StepSource& source, int64_t steps, TrainerCounters& counters);

  // Ends the run in progress, or the next one, as a failed operation does: what is in flight ends, nothing
  // new begins, Run returns kCancelled and the states are lost. For a caller that will not need them. Any
  // thread.
  void Cancel() { Fail(absl::CancelledError("the run was cancelled")); }

  const StepPlan& plan() const { return plan_; }
  const std::vector<LaneTrace>& traces() const { return traces_; }
  // What the engines of lanes that move host memory are and what degraded.
  const std::vector<IoEngineReport>& io_reports() const { return io_reports_; }

 private:
  struct LaneState {
    std::vector<int32_t> ops;              // program order
    Stream* stream = nullptr;              // device lanes
    std::unique_ptr<DeviceEvent> drained;  // device lanes: all that was enqueued
    int64_t free_nanos = 0;  // lanes with a stream: the device was through with the lane's last operation
    std::unique_ptr<MeteredIoEngine> engine;
    std::unique_ptr<DeviceChecksum> checksum;  // lanes that are direct
    CondVar wake;
    int32_t waiting_op = -1;
    int64_t waiting_step = -1;
  };
  struct StepState {
    // The device's results memory, and what is in it: the device may still write until the operation's event.
    std::span<std::byte> results;
    std::span<std::array<double, 2>> loss;  // per micro-batch: {sum, tokens}
    std::span<double> sum_squares;          // [norm range]
    std::span<int64_t> first_bad;
    std::vector<LaneStats> lanes;
    double grad_norm = 0;
    double loss_scale = 1;
    float assumed_scale = 1;  // of gradients in an UPDATE before CLIP: no clipping
    float grad_scale = 1;     // and in one after it
    bool skip = false;
    bool redo = false;  // what operations before CLIP assumed was wrong
    std::string bad_tensor;
  };

  Executor(const StepPlan& plan, const ExecutorResources& resources, const ExecutorOptions& options);
  absl::Status Prepare();
  absl::Status PrepareIo(int lane);
  absl::Status PrepareResults();
  void LaneBody(int lane, StepSource& source, int64_t first_step);
  absl::Status RunLaneSteps(int lane, StepSource& source, int64_t first_step);
  absl::Status Drain(LaneState& lane);
  absl::Status RunLaneStep(int lane, StepSource& source, int64_t step, bool& stopped);
  absl::Status RunNvmeLaneStep(int lane, int64_t step, bool& stopped);
  // Whether an NVMe lane's operation may begin beside those in flight; always when there are none: then it
  // waits.
  bool MayBegin(int32_t op, int64_t step, const std::deque<Span>& in_flight) ABSL_LOCKS_EXCLUDED(mu_);
  // False: the run is over for this lane.
  bool BeginStep(int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  // False: another lane failed.
  absl::StatusOr<bool> WaitFor(int lane, int32_t index, int64_t step, LaneStats& stats)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Account(int lane, const Span& span, LaneStats& stats);
  // Busy and waiting of the lanes whose work a device does in its own time, from its events; at COMMIT, when
  // the device is done with the step. Spans of these lanes exist from then on.
  absl::Status AccountDeviceLanes(int64_t step);
  absl::Status AccountDeviceLane(int lane, int64_t step);
  // When `op` ended in `step`, for this step and the one before it and after it. Of operations on streams
  // known once AccountDeviceLane has found it out.
  int64_t& EndNanos(int32_t op, int64_t step) { return end_nanos_[3 * op + step % 3]; }
  void Finish(int32_t op, int64_t step) ABSL_LOCKS_EXCLUDED(mu_);
  void Fail(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Status RunOp(int lane, const Op& op, int64_t step, StepSource& source);
  absl::Status RunTransfer(LaneState& lane, const Op& op);
  absl::Status StartIo(NvmeLane& transfers, const Op& op, int64_t step);
  absl::Status RunCompute(LaneState& lane, const Op& op, int64_t step, StepSource& source);
  absl::Status RunLoss(LaneState& lane, const Op& op, int64_t step, StepSource& source, BlockArgs& args);
  absl::Status RunNorm(LaneState& lane, const Op& op, int64_t step);
  absl::Status RunClip(const Op& op, int64_t step, StepSource& source);
  absl::Status RunUpdate(LaneState& lane, const Op& op, int64_t step, StepSource& source);
  absl::Status RunCommit(int64_t step, StepSource& source) ABSL_LOCKS_EXCLUDED(mu_);
  StateOps& StateOpsOf(const LaneState& lane);
  std::byte* Pointer(const Operand& operand);
  // Told to the device before the host reads them.
  template <typename T>
  void UseResults(std::span<T> part) {
    resources_.device->HostUsesResults(std::as_bytes(part), /*write=*/false);
  }
  StepState& state(int64_t step) { return states_[step & 1]; }
  bool IsDeviceLane(const Lane& lane) const;

  // Elements [begin, end) of a unit that UPDATE treats alike.
  struct UpdateRange {
    int64_t begin = 0, end = 0;
    int group = 0;
    bool frozen = false;
  };
  // Elements [begin, end) of a unit without frozen ones between them: one tree of the norm.
  struct NormRange {
    int unit = 0;
    int64_t begin = 0, end = 0;
  };
  void MakeRanges();

  const StepPlan& plan_;
  const bool speculates_;  // the plan has operations that run before CLIP on an assumption
  const ExecutorResources resources_;
  const ExecutorOptions options_;
  std::vector<LaneState> lanes_;
  std::vector<std::vector<UpdateRange>> update_ranges_;  // [unit]
  std::vector<NormRange> norm_ranges_;                   // in the order of the units
  std::vector<size_t> first_norm_range_;                 // [unit], and one more: the end of the last
  std::vector<std::vector<StallCause>> stall_causes_;    // [op][dependency]
  std::vector<std::unique_ptr<DeviceEvent>> events_;     // [2 * op + (step & 1)], device lanes: it has ended
  std::vector<std::unique_ptr<DeviceEvent>> begin_events_;  // the same, lanes with a stream: it has begun
  std::vector<int64_t> end_nanos_;                          // EndNanos
  std::vector<LaneTrace> traces_;
  std::vector<IoEngineReport> io_reports_;
  // At most two steps are in flight (BeginStep sees to it), so parity tells them apart.
  StepState states_[2];
  std::vector<std::atomic<bool>> slot_touched_;
  int64_t last_commit_nanos_ = 0;
  // The NVMe store's generation at the start of `step`.
  int64_t GenerationAt(int64_t step) const {
    return plan_.kind == PlanKind::kTrain ? step : eval_generation_;
  }

  // Of the current run.
  int64_t eval_generation_ = 0;
  int64_t first_step_ = 0;
  // Updates applied by committed steps. COMMIT writes it, and every UPDATE of the next step waits for that.
  int64_t applied_ = 0;
  std::optional<float> pending_scale_;  // mode delayed; as applied_
  // Of the next step. CLIP writes it and LOSS of the next step waits for that.
  LossScale loss_scale_;

  Mutex mu_;
  CondVar window_;  // a lane finished a step, or the run is over
  std::vector<int64_t> done_
      ABSL_GUARDED_BY(mu_);  // last step an operation finished (launched, on device lanes)
  std::vector<int64_t> finished_ ABSL_GUARDED_BY(mu_);  // last step a lane has finished
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t stop_at_ ABSL_GUARDED_BY(mu_) = 0;  // no lane begins this step
  int64_t max_begun_ ABSL_GUARDED_BY(mu_) = -1;
  int64_t committed_ ABSL_GUARDED_BY(mu_) = 0;  // steps committed
};

}  // namespace strata

#endif  // OFFLOAD_EXEC_EXECUTOR_H_
