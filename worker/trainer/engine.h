// Engine: one rank's training machinery, put together from a job spec: plan, arenas, NVMe store, model,
// executors. It knows nothing of coordinators, channels or steps of a run (see trainer.h).
#ifndef WORKER_TRAINER_ENGINE_H_
#define WORKER_TRAINER_ENGINE_H_

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
#include "offload/device/device.h"
#include "offload/exec/executor.h"
#include "offload/exec/state_access.h"
#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"
#include "offload/store/nvme_store.h"
#include "proto/strata/v1/plan.pb.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

struct EngineOptions {
  v1::JobSpec spec;            // as ApplyDefaults leaves it
  v1::ResourceRequest budget;  // hard, per tier
  std::string nvme_path;       // an existing folder; unused when the plan puts nothing there
  std::string owner;           // of the scratch folder: the job's uid
};

class Engine {
 public:
  // Errors carry a cause (failure.h). Everything the steps need is allocated here; nothing grows later.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  ~Engine();

  const ModelLayout& layout() const { return layout_; }
  const PlannedJob& planned() const { return planned_; }
  const v1::JobPlan& plan() const { return plan_; }
  Executor& train() { return *train_; }
  Executor& eval() { return *eval_; }
  // "io_uring, O_DIRECT ..., pinned arena on transparent huge pages, ...": what was chosen and why.
  std::string Backends() const;

  // States: from random numbers keyed by (seed, tensor, element); from a Hugging Face folder; from a
  // checkpoint.
  absl::Status Initialize(uint64_t seed);
  absl::Status LoadHuggingFace(const std::string& folder);
  absl::Status LoadCheckpoint(CheckpointReader& reader, int64_t iterations);

  // Streams every state into `writer` (created with Tensors()). States that are not finite are an error with
  // the cause NUMERIC.
  std::vector<CheckpointTensor> Tensors() const;
  absl::Status SaveTo(CheckpointWriter& writer, int64_t iterations);

  // SHA-256, hex, over the SHA-256 of master, m, v and low-precision parameters of each tensor, in the order
  // of the tensors' names. Independent of where and in which chunks states live.
  absl::StatusOr<std::string> StateHash(int64_t iterations);

  // Highest byte handed out so far in each tier: by the steps of `result`, and for loading and saving states.
  std::array<int64_t, kTierCount> HighWaterBytes(const StepResult& result) const;

  // Ends the use of the NVMe path; errors of closing it surface here.
  absl::Status Close();

 private:
  Engine() = default;
  absl::Status CreateStore(const EngineOptions& options);
  absl::Status CreateExecutors(const v1::JobSpec& spec);
  absl::Status LoadMaster(
      const std::function<absl::Status(const TensorInfo&, int64_t, std::span<float>)>& read);

  ModelLayout layout_;
  PlannedJob planned_;
  v1::JobPlan plan_;
  std::unique_ptr<StateOps> state_ops_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<BlockCompute> model_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<PinnedArena> host_;
  std::unique_ptr<NvmeStore> store_;  // null without NVMe homes
  ExecutorResources resources_;
  std::unique_ptr<Executor> train_;
  std::unique_ptr<Executor> eval_;
  std::unique_ptr<StateAccess> states_;
};

}  // namespace strata

#endif  // WORKER_TRAINER_ENGINE_H_
