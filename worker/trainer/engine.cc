#include "worker/trainer/engine.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "common/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/checkpoint/export.h"
#include "proto/job_spec/plan_job.h"
#include "worker/model/init.h"
#include "worker/model/model.h"
#include "worker/trainer/failure.h"

namespace strata {

TrainerCounters StartOf(const v1::JobSpec& spec) {
  TrainerCounters counters;
  if (spec.training().precision() == v1::PRECISION_FP16) {
    counters.loss_scale.scale = spec.training().loss_scale().initial();
  }
  return counters;
}

namespace {

void SetIo(const v1::MemorySpec& memory, RankEngineOptions& rank) {
  const v1::IoSpec& io = memory.io();
  rank.store.direct = io.direct() == v1::DIRECT_IO_OFF ? DirectIo::kBuffered : DirectIo::kAuto;
  if (io.backend() == v1::IO_BACKEND_IO_URING) rank.io_backend = IoBackend::kIoUring;
  if (io.backend() == v1::IO_BACKEND_THREADS) rank.io_backend = IoBackend::kThreads;
  if (io.read_depth() > 0) rank.read_depth = static_cast<unsigned>(io.read_depth());
  if (io.write_depth() > 0) rank.write_depth = static_cast<unsigned>(io.write_depth());
  for (const int feature : memory.require()) {
    switch (feature) {
      case v1::FEATURE_IO_URING:
        rank.required.push_back(Feature::kIoUring);
        break;
      case v1::FEATURE_O_DIRECT:
        rank.required.push_back(Feature::kODirect);
        break;
      case v1::FEATURE_REGISTERED_BUFFERS:
        rank.required.push_back(Feature::kRegisteredBuffers);
        break;
      case v1::FEATURE_LOCKED_MEMORY:
        rank.required.push_back(Feature::kLockedMemory);
        break;
      case v1::FEATURE_HUGE_PAGES:
        rank.required.push_back(Feature::kHugePages);
        break;
      case v1::FEATURE_GPU:
        rank.required.push_back(Feature::kGpu);
        break;
      case v1::FEATURE_CUDA_HOST_REGISTER:
        rank.required.push_back(Feature::kCudaHostRegister);
        break;
      case v1::FEATURE_GPUDIRECT:
        rank.required.push_back(Feature::kGpuDirect);
        break;
      default:
        break;
    }
  }
}

}  // namespace

Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  auto engine = std::unique_ptr<Engine>(new Engine);
  auto layout = ModelLayoutOf(options.spec, options.budget);
  if (!layout.ok()) return WithCause(layout.status(), v1::USER_ERROR);
  engine->layout_ = *std::move(layout);
  STRATA_ASSIGN_OR_RETURN(PlannedJob planned,
                          PlanOrShortfall(PlanRequestOf(options.spec, engine->layout_, options.budget)));
  engine->plan_ = ToProto(planned, engine->layout_, options.budget);

  const int threads = options.spec.training().compute_threads();
  engine->state_ops_ = MakeCpuStateOps(threads);
  if (options.wrap_state_ops) engine->state_ops_ = options.wrap_state_ops(std::move(engine->state_ops_));
  if (Accelerator* const accelerator = options.accelerator.accelerator; accelerator != nullptr) {
    if (engine->layout_.fp8) {
      STRATA_RETURN_IF_ERROR(WithCause(accelerator->CheckFp8(), v1::USER_ERROR), "training.precision: fp8");
    }
    STRATA_ASSIGN_OR_RETURN(engine->ops_, accelerator->CreateOps(engine->layout_.compute_dtype));
  } else {
    engine->ops_ = MakeCpuOps(engine->layout_.compute_dtype, threads);
  }
  engine->model_ = MakeModel(engine->layout_, *engine->ops_, options.spec.training().seed());
  if (options.wrap_model) engine->model_ = options.wrap_model(std::move(engine->model_));

  RankEngineOptions rank;
  rank.store.paths = options.nvme;
  rank.store.owner = options.owner;
  rank.accelerator = options.accelerator;
  rank.wrap_io_engine = options.wrap_io_engine;
  SetIo(options.spec.memory(), rank);
  rank.train.clip_norm = options.spec.training().grad_clip();
  if (engine->layout_.compute_dtype == DType::kF16) {
    const v1::LossScaleSpec& scale = options.spec.training().loss_scale();
    rank.train.loss_scale = {
        .growth_interval = scale.growth_interval(), .min = scale.min(), .max = scale.max()};
  }
  STRATA_ASSIGN_OR_RETURN(engine->rank_, RankEngine::Create(engine->layout_, std::move(planned),
                                                            *engine->model_, *engine->state_ops_, rank));
  return engine;
}

std::vector<int64_t> Engine::NvmeWrittenBytes() const {
  std::vector<int64_t> bytes;
  if (rank_->store() == nullptr) return bytes;
  for (const NvmePathCounters& path : rank_->store()->counters().paths)
    bytes.push_back(static_cast<int64_t>(path.written_bytes));
  return bytes;
}

absl::Status Engine::Initialize(uint64_t seed) {
  return rank_->Initialize([&](const TensorInfo& tensor, int64_t element, std::span<float> out) {
    InitializeTensor(tensor, seed, element, out);
    return absl::OkStatus();
  });
}

absl::Status Engine::LoadHuggingFace(const std::string& folder) {
  // Damage in the folder is the job's affair: without a cause it would be taken for a broken NVMe drive.
  const absl::StatusOr<HuggingFaceModel> opened = HuggingFaceModel::Open(folder);
  if (!opened.ok()) return WithCause(Annotate(opened.status(), "model.from"), v1::INVALID_DATA);
  const HuggingFaceModel& source = *opened;
  std::vector<std::string> names;
  for (const ParamUnit& unit : layout_.units) {
    for (const TensorInfo& tensor : unit.tensors) names.push_back(tensor.name);
  }
  if (const auto unused = source.Unused(names); !unused.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.from: ", folder,
                     " has tensors that config.json does not account for: ", absl::StrJoin(unused, ", ")));
  }
  return rank_->Initialize([&](const TensorInfo& tensor, int64_t element, std::span<float> out) {
    return WithCause(source.Read(tensor.name, tensor.shape, element, out), v1::INVALID_DATA);
  });
}

}  // namespace strata
