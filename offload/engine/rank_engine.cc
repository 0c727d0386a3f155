#include "offload/engine/rank_engine.h"

#include <openssl/evp.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "absl/strings/escaping.h"
#include "common/bytes.h"
#include "common/checked.h"
#include "common/status.h"
#include "kernels/optimizer/reduce.h"
#include "offload/device/cpu_device.h"
#include "offload/exec/cause.h"
#include "offload/plan/store_layout_of.h"

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

// Calls `piece(tensor, first item in the tensor, items)` for the parts of a unit's range, which begins at
// element `begin`, that belong to tensors; `padding(items)` for the rest.
template <typename Byte, typename Piece, typename Padding>
absl::Status ForEachTensor(const ParamUnit& unit, StateItem item, int64_t begin, std::span<Byte> items,
                           Piece piece, Padding padding) {
  while (!items.empty()) {
    const TensorInfo& tensor = TensorAt(unit, begin);
    const int64_t inside = (begin - tensor.offset) / item.elements, count = item.Count(tensor.elements);
    const int64_t padded = RoundUp(tensor.elements, kTensorAlignment) / item.elements;
    const int64_t there = static_cast<int64_t>(items.size()) / item.bytes();
    const int64_t n = std::min((inside < count ? count : padded) - inside, there);
    const auto part = items.first(static_cast<size_t>(n * item.bytes()));
    if (inside < count) {
      STRATA_RETURN_IF_ERROR(piece(tensor, inside, part));
    } else {
      padding(part);
    }
    begin += n * item.elements;
    items = items.subspan(part.size());
  }
  return absl::OkStatus();
}

constexpr auto kZeroPadding = [](std::span<std::byte> items) {
  std::fill(items.begin(), items.end(), std::byte{0});
};
constexpr auto kSkipPadding = [](auto) {};

}  // namespace

absl::StatusOr<PlannedJob> PlanOrShortfall(const PlanRequest& request) {
  auto outcome = MakePlan(request);
  if (!outcome.ok()) return WithCause(outcome.status(), kCauseUser);
  if (const auto* shortfall = std::get_if<PlanShortfall>(&*outcome)) {
    return WithCause(absl::ResourceExhaustedError(absl::StrCat(
                         "the job does not fit: ", Name(shortfall->tier), " needs ", shortfall->needed_bytes,
                         " bytes, the budget is ", shortfall->budget_bytes, ". ", shortfall->remedy)),
                     shortfall->tier == Tier::kDevice ? kCauseDeviceOom
                     : shortfall->tier == Tier::kHost ? kCauseHostOom
                                                      : kCauseNvmeFull);
  }
  return std::get<PlannedJob>(std::move(*outcome));
}

absl::StatusOr<std::unique_ptr<RankEngine>> RankEngine::Create(const ModelLayout& layout, PlannedJob planned,
                                                               BlockCompute& compute, StateOps& state_ops,
                                                               const RankEngineOptions& options) {
  auto engine = std::unique_ptr<RankEngine>(new RankEngine(layout, std::move(planned)));
  const PlannedJob& plan = engine->planned_;
  Accelerator* const accelerator = options.accelerator.accelerator;
  const int64_t device_bytes = plan.peak_bytes[static_cast<int>(Tier::kDevice)];
  auto device = accelerator == nullptr ? CreateCpuDevice(device_bytes, state_ops)
                                       : accelerator->CreateDevice(device_bytes);
  if (!device.ok()) return WithCause(device.status(), kCauseDeviceOom);
  engine->device_ = *std::move(device);
  PinnedArenaOptions host_options = options.host;
  host_options.bytes = static_cast<uint64_t>(plan.peak_bytes[static_cast<int>(Tier::kHost)]);
  auto host = PinnedArena::Create(host_options);
  if (!host.ok()) return WithCause(Annotate(host.status(), "host arena"), kCauseHostOom);
  engine->host_ = *std::move(host);
  engine->device_report_ = {.why_not_gpu = options.accelerator.why_not};
  if (accelerator != nullptr) {
    engine->device_report_.gpu = engine->device_->description();
    const absl::Status registered = engine->device_->RegisterHost(engine->host_->span());
    if (absl::IsInternal(registered)) return registered;  // The GPU is broken.
    engine->device_report_.why_not_registered = std::string(registered.message());
    if (plan.peak_bytes[static_cast<int>(Tier::kNvme)] > 0)
      AskForGpuDirect(*accelerator, engine->device_report_);
  }
  engine->device_report_.gpudirect_asked = plan.choice.direct;
  if (plan.peak_bytes[static_cast<int>(Tier::kNvme)] > 0) {
    auto store = NvmeStore::Open(options.store, StoreLayoutOf(plan.train));
    if (!store.ok()) {
      return WithCause(store.status(),
                       absl::IsResourceExhausted(store.status()) ? kCauseNvmeFull : kCauseNvmeIo);
    }
    engine->store_ = *std::move(store);
    // Before its lanes are made, whose failure would say less.
    if (plan.choice.direct) {
      const Rung rung = GpuDirectRung(engine->device_report_, engine->store_->report().paths);
      STRATA_RETURN_IF_ERROR(WithCause(CheckRequired({rung}, {Feature::kGpuDirect}), kCauseUser));
    }
  }

  ExecutorResources resources;
  resources.layout = &layout;
  resources.device = engine->device_.get();
  resources.host = engine->host_.get();
  resources.store = engine->store_.get();
  resources.compute = &compute;
  resources.host_state_ops = &state_ops;
  resources.make_engine =
      [backend = options.io_backend, read_depth = options.read_depth, write_depth = options.write_depth,
       wrap = options.wrap_io_engine](IoOp op) -> absl::StatusOr<std::unique_ptr<IoEngine>> {
    auto io = CreateIoEngine({.backend = backend, .depth = op == IoOp::kRead ? read_depth : write_depth});
    if (io.ok() && wrap) return wrap(*std::move(io));
    return io;
  };
  resources.make_direct_engine = [device = engine->device_.get(),
                                  wrap =
                                      options.wrap_io_engine]() -> absl::StatusOr<std::unique_ptr<IoEngine>> {
    auto io = device->CreateDirectEngine();
    if (io.ok() && wrap) return wrap(*std::move(io));
    return io;
  };
  STRATA_ASSIGN_OR_RETURN(engine->train_, Executor::Create(plan.train, resources, options.train));
  STRATA_RETURN_IF_ERROR(WithCause(CheckRequired(engine->ladder(), options.required), kCauseUser));
  STRATA_ASSIGN_OR_RETURN(engine->eval_, Executor::Create(plan.eval, resources, {.trace_capacity = 0}));
  STRATA_ASSIGN_OR_RETURN(engine->states_, StateAccess::Create(plan.train, resources));
  return engine;
}

Ladder RankEngine::ladder() const {
  return LadderOf(host_->report(), train_->io_reports(),
                  store_ == nullptr ? std::vector<NvmePathReport>() : store_->report().paths, device_report_);
}

absl::Status RankEngine::Initialize(const FillMaster& fill) {
  return states_->Load(0, [&](int unit, StateClass state, int64_t begin, std::span<std::byte> out) {
    if (state != StateClass::kMaster) {
      kZeroPadding(out);
      return absl::OkStatus();
    }
    return ForEachTensor(
        layout_.units[unit], StateItemOf(state, layout_.moments), begin, out,
        [&](const TensorInfo& tensor, int64_t element, std::span<std::byte> values) {
          return fill(tensor, element,
                      {reinterpret_cast<float*>(values.data()), values.size() / sizeof(float)});
        },
        kZeroPadding);
  });
}

absl::Status RankEngine::LoadCheckpoint(CheckpointReader& reader, int64_t iterations) {
  const bool pending = reader.manifest().state.pending_scale.has_value();
  if (pending && planned_.train.pending.empty()) {
    return WithCause(absl::FailedPreconditionError(absl::StrCat(
                         reader.path(),
                         " holds a gradient that is still to be applied, as mode delayed leaves it: "
                         "resume it with memory.mode: delayed")),
                     kCauseCheckpoint);
  }
  if (const Moments stored = reader.manifest().state.moments; stored != layout_.moments) {
    return WithCause(
        absl::FailedPreconditionError(absl::StrCat(
            reader.path(), " holds the optimizer states of ", OptimizerName(stored),
            ", training.optimizer.name is ", OptimizerName(layout_.moments),
            ": neither can go on with the other's. Resume it with training.optimizer.name: ",
            OptimizerName(stored), ", or export its weights and start a new job with them (model.from)")),
        kCauseCheckpoint);
  }
  return states_->Load(iterations, [&](int unit, StateClass state, int64_t begin, std::span<std::byte> out) {
    if (state == StateClass::kPendingGradient && !pending) {
      kZeroPadding(out);
      return absl::OkStatus();
    }
    return ForEachTensor(
        layout_.units[unit], StateItemOf(state, layout_.moments), begin, out,
        [&](const TensorInfo& tensor, int64_t item, std::span<std::byte> items) {
          return WithCause(reader.ReadItems(state, tensor.name, item, items), kCauseCheckpoint);
        },
        kZeroPadding);
  });
}

std::vector<CheckpointTensor> RankEngine::Tensors() const {
  std::vector<CheckpointTensor> tensors;
  for (const ParamUnit& unit : layout_.units) {
    for (const TensorInfo& tensor : unit.tensors) tensors.push_back({tensor.name, tensor.shape});
  }
  return tensors;
}

absl::Status RankEngine::SaveTo(CheckpointWriter& writer, int64_t iterations) {
  if (writer.moments() != layout_.moments) {
    return absl::InternalError(absl::StrCat("a checkpoint of ", OptimizerName(writer.moments()),
                                            " for the states of ", OptimizerName(layout_.moments)));
  }
  size_t first = 0;  // index of the unit's first tensor
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    const ParamUnit& unit = layout_.units[u];
    const std::vector<StateClass> classes = writer.classes();
    const auto append = [&](int, StateClass state, int64_t begin, std::span<const std::byte> items) {
      if (std::find(classes.begin(), classes.end(), state) == classes.end()) return absl::OkStatus();
      const StateItem item = StateItemOf(state, layout_.moments);
      return ForEachTensor(
          unit, item, begin, items,
          [&](const TensorInfo& tensor, int64_t first_item, std::span<const std::byte> part) -> absl::Status {
            // A checkpoint is what later attempts fall back on: a poisoned one must not displace good ones.
            const auto* const floats = reinterpret_cast<const float*>(part.data());
            const int64_t bad = item.type == StoredType::kF32
                                    ? FirstNonFinite(floats, static_cast<int64_t>(part.size()) / item.bytes())
                                    : -1;
            if (bad >= 0) {
              return WithCause(
                  absl::FailedPreconditionError(absl::StrCat(
                      StateClassName(state), " of ", tensor.name, " is not finite at element ",
                      (first_item + bad) * item.elements,
                      ": no checkpoint is written. Lower training.optimizer.lr or set training.grad_clip")),
                  kCauseNumeric);
            }
            return writer.Append(state, first + (&tensor - unit.tensors.data()), first_item, part);
          },
          kSkipPadding);
    };
    STRATA_RETURN_IF_ERROR(states_->Read(static_cast<int>(u), 0, unit.elements, iterations, append, nullptr));
    first += unit.tensors.size();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RankEngine::StateHash(int64_t iterations) {
  std::map<std::string, std::pair<int, const TensorInfo*>> by_name;
  for (size_t u = 0; u < layout_.units.size(); ++u) {
    for (const TensorInfo& tensor : layout_.units[u].tensors)
      by_name[tensor.name] = {static_cast<int>(u), &tensor};
  }
  Sha256 total;
  for (const auto& [name, place] : by_name) {
    const auto& [unit, tensor] = place;
    // Of the state and last the parameters; a pending gradient is not yet part of it.
    const std::span<const StateClass> classes = RecordClasses(layout_.moments);
    std::vector<Sha256> parts(classes.size() + 1);
    STRATA_RETURN_IF_ERROR(states_->Read(
        unit, tensor->offset, tensor->offset + tensor->elements, iterations,
        [&](int, StateClass state, int64_t, std::span<const std::byte> items) {
          const auto found = std::find(classes.begin(), classes.end(), state);
          if (found != classes.end()) parts[found - classes.begin()].Update(items.data(), items.size());
          return absl::OkStatus();
        },
        [&](int, int64_t, std::span<const std::byte> bytes) {
          parts.back().Update(bytes.data(), bytes.size());
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

std::array<int64_t, kTierCount> RankEngine::HighWaterBytes(const StepResult& result) const {
  std::array<int64_t, kTierCount> high = result.high_water_bytes;
  int64_t& host = high[static_cast<int>(Tier::kHost)];
  host = std::max(host, states_->host_high_water_bytes());
  return high;
}

absl::Status RankEngine::Close() {
  // Executors hold engines that have the store's file registered: they go first.
  states_.reset();
  eval_.reset();
  train_.reset();
  if (store_ == nullptr) return absl::OkStatus();
  const std::unique_ptr<NvmeStore> store = std::move(store_);
  return std::move(*store).Close();
}

}  // namespace strata
