// Engine: a RankEngine put together from a job spec: its plan, its model, its initial weights. It knows
// nothing of coordinators, channels or steps of a run (see trainer.h).
#ifndef WORKER_TRAINER_ENGINE_H_
#define WORKER_TRAINER_ENGINE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/state_ops.h"
#include "offload/device/accelerator.h"
#include "offload/engine/rank_engine.h"
#include "offload/exec/block_compute.h"
#include "proto/strata/v1/plan.pb.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

struct EngineOptions {
  v1::JobSpec spec;            // as ApplyDefaults leaves it
  v1::ResourceRequest budget;  // hard, per tier
  std::vector<NvmePath> nvme;  // existing folders; unused when the plan puts nothing there
  std::string owner;           // of the scratch folders: the job's uid
  AcceleratorChoice accelerator = {.why_not = "not asked for"};  // outlives the engine
  // Tests: puts something between the executor and the model, such as what spoils or records gradients.
  std::function<std::unique_ptr<BlockCompute>(std::unique_ptr<BlockCompute>)> wrap_model;
  // Tests: around the math of the host.
  std::function<std::unique_ptr<StateOps>(std::unique_ptr<StateOps>)> wrap_state_ops;
  std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> wrap_io_engine;
};

// Where the training of a new model starts.
TrainerCounters StartOf(const v1::JobSpec& spec);

class Engine {
 public:
  // Errors carry a cause (failure.h). Everything the steps need is allocated here; nothing grows later.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  ~Engine();

  const ModelLayout& layout() const { return layout_; }
  const PlannedJob& planned() const { return rank_->planned(); }
  const v1::JobPlan& plan() const { return plan_; }
  Executor& train() { return rank_->train(); }
  Executor& eval() { return rank_->eval(); }
  Ladder ladder() const { return rank_->ladder(); }
  // Of each NVMe path so far; empty when the plan puts nothing there. Any thread.
  std::vector<int64_t> NvmeWrittenBytes() const;

  // States: from random numbers keyed by (seed, tensor, element); from a Hugging Face folder; from a
  // checkpoint.
  absl::Status Initialize(uint64_t seed);
  absl::Status LoadHuggingFace(const std::string& folder);
  absl::Status LoadCheckpoint(CheckpointReader& reader, int64_t iterations) {
    return rank_->LoadCheckpoint(reader, iterations);
  }

  // See RankEngine.
  std::vector<CheckpointTensor> Tensors() const { return rank_->Tensors(); }
  absl::Status SaveTo(CheckpointWriter& writer, int64_t iterations) {
    return rank_->SaveTo(writer, iterations);
  }
  absl::StatusOr<std::string> StateHash(int64_t iterations) { return rank_->StateHash(iterations); }
  std::array<int64_t, kTierCount> HighWaterBytes(const StepResult& result) const {
    return rank_->HighWaterBytes(result);
  }
  absl::Status Close() { return rank_->Close(); }

 private:
  Engine() = default;

  ModelLayout layout_;
  v1::JobPlan plan_;
  std::unique_ptr<StateOps> state_ops_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<BlockCompute> model_;
  std::unique_ptr<RankEngine> rank_;
};

}  // namespace strata

#endif  // WORKER_TRAINER_ENGINE_H_
