// RankEngine: the training machinery of one rank, from a plan: arenas, NVMe store, executors, access to the
// states. It knows nothing of jobs, data or model formats: those come in as a layout, a BlockCompute and
// functions that make values.
#ifndef OFFLOAD_ENGINE_RANK_ENGINE_H_
#define OFFLOAD_ENGINE_RANK_ENGINE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/state_ops.h"
#include "offload/arena/pinned_arena.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/checkpoint_writer.h"
#include "offload/device/accelerator.h"
#include "offload/device/device.h"
#include "offload/engine/ladder.h"
#include "offload/exec/executor.h"
#include "offload/exec/state_access.h"
#include "offload/io/io_engine.h"
#include "offload/io/io_factory.h"
#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"
#include "offload/store/nvme_store.h"

namespace strata {

// MakePlan, with a shortfall as kResourceExhausted: the message names the tier, what it needs and the remedy.
// Errors carry a cause (offload/exec/cause.h).
absl::StatusOr<PlannedJob> PlanOrShortfall(const PlanRequest& request);

inline constexpr unsigned kReadDepth = 32;
inline constexpr unsigned kWriteDepth = 16;

struct RankEngineOptions {
  NvmeStoreOptions store;  // unused when the plan puts nothing on NVMe
  IoBackend io_backend = IoBackend::kAuto;
  // Requests in flight per NVMe lane. Writes are content with fewer, and then do not make reads wait.
  unsigned read_depth = kReadDepth;
  unsigned write_depth = kWriteDepth;
  PinnedArenaOptions host;        // `bytes` is the plan's
  std::vector<Feature> required;  // kFailedPrecondition where one cannot be had
  ExecutorOptions train;
  AcceleratorChoice accelerator;  // outlives the engine
  // For tests: puts an engine around each one that the lanes get, such as a disk that fails.
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap_io_engine;
};

class RankEngine {
 public:
  // Errors carry a cause. Everything the steps need is allocated here; nothing grows later. `layout`,
  // `compute` and `state_ops` (of the host, and of the CPU as a device) outlive the engine.
  static absl::StatusOr<std::unique_ptr<RankEngine>> Create(const ModelLayout& layout, PlannedJob planned,
                                                            BlockCompute& compute, StateOps& state_ops,
                                                            const RankEngineOptions& options);

  const ModelLayout& layout() const { return layout_; }
  const PlannedJob& planned() const { return planned_; }
  Executor& train() { return *train_; }
  Executor& eval() { return *eval_; }
  const NvmeStore* store() const { return store_.get(); }  // null without NVMe homes
  // What was chosen where there is a choice, and why.
  Ladder ladder() const;

  // Fresh states: `fill` makes the master weights from the tensor's element on; moments are zero.
  using FillMaster =
      std::function<absl::Status(const TensorInfo& tensor, int64_t element, std::span<float> out)>;
  absl::Status Initialize(const FillMaster& fill);
  // kFailedPrecondition for a checkpoint of another mode or optimizer, with the remedy.
  absl::Status LoadCheckpoint(CheckpointReader& reader, int64_t iterations);

  // Streams every state into `writer` (created with Tensors() and the layout's moments). States that are not
  // finite are an error with the cause NUMERIC.
  std::vector<CheckpointTensor> Tensors() const;
  absl::Status SaveTo(CheckpointWriter& writer, int64_t iterations);

  // SHA-256, hex, over the SHA-256 of master, m, v (their codes, then their scales) and low-precision
  // parameters of each tensor, in the order of the tensors' names. Independent of where and in which chunks
  // states live.
  absl::StatusOr<std::string> StateHash(int64_t iterations);

  // Highest byte handed out so far in each tier: by the steps of `result`, and for loading and saving states.
  std::array<int64_t, kTierCount> HighWaterBytes(const StepResult& result) const;

  // Ends the use of the NVMe path; errors of closing it surface here.
  absl::Status Close();

 private:
  RankEngine(const ModelLayout& layout, PlannedJob planned) : layout_(layout), planned_(std::move(planned)) {}

  const ModelLayout& layout_;
  const PlannedJob planned_;
  std::unique_ptr<PinnedArena> host_;  // the device has it registered: it goes after it
  std::unique_ptr<Device> device_;
  DeviceReport device_report_;
  std::unique_ptr<NvmeStore> store_;
  std::unique_ptr<Executor> train_;
  std::unique_ptr<Executor> eval_;
  std::unique_ptr<StateAccess> states_;
};

}  // namespace strata

#endif  // OFFLOAD_ENGINE_RANK_ENGINE_H_
