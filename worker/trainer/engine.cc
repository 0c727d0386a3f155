#include "worker/trainer/engine.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/checked.h"
#include "common/status.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "kernels/optimizer/reduce.h"
#include "offload/checkpoint/export.h"
#include "offload/device/cpu_device.h"
#include "offload/io/io_factory.h"
#include "offload/plan/store_layout_of.h"
#include "proto/job_spec/plan_job.h"
#include "worker/model/init.h"
#include "worker/model/model.h"
#include "worker/trainer/failure.h"

namespace strata {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(const void* data, size_t size) { EVP_DigestUpdate(context_, data, size); }
  std::array<unsigned char, 32> Finish() {
    std::array<unsigned char, 32> digest;
    EVP_DigestFinal_ex(context_, digest.data(), nullptr);
    return digest;
  }

 private:
  EVP_MD_CTX* const context_;
};

// The tensor of `unit` that element `at` belongs to (its padding included), and where it ends.
const TensorInfo& TensorAt(const ParamUnit& unit, int64_t at) {
  auto next =
      std::upper_bound(unit.tensors.begin(), unit.tensors.end(), at,
                       [](int64_t element, const TensorInfo& tensor) { return element < tensor.offset; });
  return *std::prev(next);
}

// Calls `piece(tensor, first element in the tensor, values)` for the parts of a unit's range that belong to
// tensors; `padding(values)` for the rest.
template <typename T, typename Piece, typename Padding>
absl::Status ForEachTensor(const ParamUnit& unit, int64_t begin, std::span<T> values, Piece piece,
                           Padding padding) {
  while (!values.empty()) {
    const TensorInfo& tensor = TensorAt(unit, begin);
    const int64_t inside = begin - tensor.offset;
    int64_t n;
    if (inside < tensor.elements) {
      n = std::min<int64_t>(tensor.elements - inside, values.size());
      STRATA_RETURN_IF_ERROR(piece(tensor, inside, values.first(n)));
    } else {
      const int64_t padded = RoundUp(tensor.elements, kTensorAlignment);
      n = std::min<int64_t>(padded - inside, values.size());
      padding(values.first(n));
    }
    begin += n;
    values = values.subspan(n);
  }
  return absl::OkStatus();
}

constexpr auto kZeroPadding = [](std::span<float> values) { std::fill(values.begin(), values.end(), 0.0f); };
constexpr auto kSkipPadding = [](auto) {};

}  // namespace

Engine::~Engine() = default;

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  auto engine = std::unique_ptr<Engine>(new Engine);
  auto layout = ModelLayoutOf(options.spec);
  if (!layout.ok()) return WithCause(layout.status(), v1::USER_ERROR);
  engine->layout_ = *std::move(layout);

  auto outcome = MakePlan(PlanRequestOf(options.spec, engine->layout_, options.budget));
  if (!outcome.ok()) return WithCause(outcome.status(), v1::USER_ERROR);
  if (const auto* shortfall = std::get_if<PlanShortfall>(&*outcome)) {
    return WithCause(absl::ResourceExhaustedError(absl::StrCat(
                         "the job does not fit: ", Name(shortfall->tier), " needs ", shortfall->needed_bytes,
                         " bytes, the budget is ", shortfall->budget_bytes, ". ", shortfall->remedy)),
                     shortfall->tier == Tier::kDevice ? v1::DEVICE_OOM
                     : shortfall->tier == Tier::kHost ? v1::HOST_OOM
                                                      : v1::NVME_FULL);
  }
  engine->planned_ = std::get<PlannedJob>(std::move(*outcome));
  engine->plan_ = ToProto(engine->planned_, engine->layout_, options.budget);

  const int threads = options.spec.training().compute_threads();
  engine->state_ops_ = MakeCpuStateOps(threads);
  engine->ops_ = MakeCpuOps(engine->layout_.compute_dtype, threads);
  engine->model_ = MakeModel(engine->layout_, *engine->ops_);

  auto device =
      CreateCpuDevice(engine->planned_.peak_bytes[static_cast<int>(Tier::kDevice)], *engine->state_ops_);
  if (!device.ok()) return WithCause(device.status(), v1::DEVICE_OOM);
  engine->device_ = *std::move(device);
  auto host = PinnedArena::Create(
      {.bytes = static_cast<uint64_t>(engine->planned_.peak_bytes[static_cast<int>(Tier::kHost)])});
  if (!host.ok()) return WithCause(Annotate(host.status(), "host arena"), v1::HOST_OOM);
  engine->host_ = *std::move(host);
  STRATA_RETURN_IF_ERROR(engine->CreateStore(options));
  STRATA_RETURN_IF_ERROR(engine->CreateExecutors(options.spec));
  return engine;
}

absl::Status Engine::CreateStore(const EngineOptions& options) {
  if (planned_.peak_bytes[static_cast<int>(Tier::kNvme)] == 0) return absl::OkStatus();
  NvmeStoreOptions store_options;
  store_options.path = options.nvme_path;
  store_options.owner = options.owner;
  store_options.direct =
      options.spec.memory().direct_io() == v1::DIRECT_IO_OFF ? DirectIo::kBuffered : DirectIo::kRequire;
  auto store = NvmeStore::Open(store_options, StoreLayoutOf(planned_.train));
  if (!store.ok()) {
    return WithCause(store.status(),
                     absl::IsResourceExhausted(store.status()) ? v1::NVME_FULL : v1::NVME_IO_ERROR);
  }
  store_ = *std::move(store);
  return absl::OkStatus();
}

absl::Status Engine::CreateExecutors(const v1::JobSpec& spec) {
  resources_.layout = &layout_;
  resources_.device = device_.get();
  resources_.host = host_.get();
  resources_.store = store_.get();
  resources_.compute = model_.get();
  resources_.host_state_ops = state_ops_.get();
  resources_.make_engine = [] { return CreateIoEngine({}); };
  STRATA_ASSIGN_OR_RETURN(
      train_, Executor::Create(planned_.train, resources_, {.clip_norm = spec.training().grad_clip()}));
  STRATA_ASSIGN_OR_RETURN(eval_, Executor::Create(planned_.eval, resources_, {.trace_capacity = 0}));
  STRATA_ASSIGN_OR_RETURN(states_, StateAccess::Create(planned_.train, resources_));
  return absl::OkStatus();
}

std::string Engine::Backends() const {
  std::vector<std::string> parts = {
      device_->description(), absl::StrCat("host arena of ", FormatBytes(static_cast<int64_t>(host_->size())),
                                           " on ", PageKindName(host_->report().pages),
                                           host_->report().locked ? ", locked" : ", not locked")};
  parts.insert(parts.end(), host_->report().why.begin(), host_->report().why.end());
  if (store_ != nullptr) {
    const NvmeStoreReport& report = store_->report();
    parts.push_back(absl::StrCat("NVMe store of ", FormatBytes(static_cast<int64_t>(report.capacity_bytes)),
                                 " on ", report.fs_type,
                                 report.direct ? ", O_DIRECT" : ", buffered: ", report.why_buffered));
  }
  if (!train_->io_reports().empty()) {
    const IoEngineReport& report = train_->io_reports().front();
    parts.push_back(absl::StrCat(report.backend, " at depth ", report.depth));
    parts.insert(parts.end(), report.notes.begin(), report.notes.end());
  }
  return absl::StrJoin(parts, "; ");
}

absl::Status Engine::LoadMaster(
    const std::function<absl::Status(const TensorInfo&, int64_t, std::span<float>)>& read) {
  return states_->Load(0, [&](int unit, StateClass state, int64_t begin, std::span<float> out) {
    if (state != StateClass::kMaster) {
      std::fill(out.begin(), out.end(), 0.0f);
      return absl::OkStatus();
    }
    return ForEachTensor(layout_.units[unit], begin, out, read, kZeroPadding);
  });
}

absl::Status Engine::Initialize(uint64_t seed) {
  return LoadMaster([&](const TensorInfo& tensor, int64_t element, std::span<float> out) {
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
  return LoadMaster([&](const TensorInfo& tensor, int64_t element, std::span<float> out) {
    return WithCause(source.Read(tensor.name, tensor.shape, element, out), v1::INVALID_DATA);
  });
}

absl::Status Engine::LoadCheckpoint(CheckpointReader& reader, int64_t iterations) {
  return states_->Load(iterations, [&](int unit, StateClass state, int64_t begin, std::span<float> out) {
    return ForEachTensor(
        layout_.units[unit], begin, out,
        [&](const TensorInfo& tensor, int64_t element, std::span<float> values) {
          return WithCause(reader.ReadRange(state, tensor.name, element, values), v1::CHECKPOINT_CORRUPT);
        },
        kZeroPadding);
  });
}

std::vector<CheckpointTensor> Engine::Tensors() const {
  std::vector<CheckpointTensor> tensors;
  for (const ParamUnit& unit : layout_.units) {
    for (const TensorInfo& tensor : unit.tensors) tensors.push_back({tensor.name, tensor.shape});
  }
  return tensors;
}

absl::Status Engine::SaveTo(CheckpointWriter& writer, int64_t iterations) {
  size_t first = 0;  // index of the unit's first tensor
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    const ParamUnit& unit = layout_.units[u];
    const auto append = [&](int, StateClass state, int64_t begin, std::span<const float> values) {
      return ForEachTensor(
          unit, begin, values,
          [&](const TensorInfo& tensor, int64_t element, std::span<const float> part) -> absl::Status {
            // A checkpoint is what later attempts fall back on: a poisoned one must not displace good ones.
            if (const int64_t bad = FirstNonFinite(part.data(), static_cast<int64_t>(part.size()));
                bad >= 0) {
              return WithCause(
                  absl::FailedPreconditionError(absl::StrCat(
                      StateClassName(state), " of ", tensor.name, " is not finite at element ", element + bad,
                      ": no checkpoint is written. Lower training.optimizer.lr or set training.grad_clip")),
                  v1::NUMERIC);
            }
            return writer.Append(state, first + (&tensor - unit.tensors.data()), element, part);
          },
          kSkipPadding);
    };
    STRATA_RETURN_IF_ERROR(states_->Read(static_cast<int>(u), 0, unit.elements, iterations, append, nullptr));
    first += unit.tensors.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Engine::StateHash(int64_t iterations) {
  std::map<std::string, std::pair<int, const TensorInfo*>> by_name;
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    for (const TensorInfo& tensor : layout_.units[u].tensors)
      by_name[tensor.name] = {static_cast<int>(u), &tensor};
  }
  Sha256 total;
  for (const auto& [name, place] : by_name) {
    const auto& [unit, tensor] = place;
    Sha256 parts[4];
    STRATA_RETURN_IF_ERROR(states_->Read(
        unit, tensor->offset, tensor->offset + tensor->elements, iterations,
        [&](int, StateClass state, int64_t, std::span<const float> values) {
          parts[static_cast<int>(state)].Update(values.data(), values.size_bytes());
          return absl::OkStatus();
        },
        [&](int, int64_t, std::span<const std::byte> bytes) {
          parts[3].Update(bytes.data(), bytes.size());
          return absl::OkStatus();
        }));
    total.Update(name.data(), name.size());
    for (Sha256& part : parts) {
      const auto digest = part.Finish();
      total.Update(digest.data(), digest.size());
    }
  }
  const auto digest = total.Finish();
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

std::array<int64_t, kTierCount> Engine::HighWaterBytes(const StepResult& result) const {
  std::array<int64_t, kTierCount> high = result.high_water_bytes;
  int64_t& host = high[static_cast<int>(Tier::kHost)];
  host = std::max(host, states_->host_high_water_bytes());
  return high;
}

absl::Status Engine::Close() {
  // Executors hold engines that have the store's file registered: they go first.
  states_.reset();
  eval_.reset();
  train_.reset();
  if (store_ == nullptr) return absl::OkStatus();
  const std::unique_ptr<NvmeStore> store = std::move(store_);
  return std::move(*store).Close();
}

}  // namespace strata
