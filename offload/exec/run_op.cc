// What each kind of operation does. Operand order is that of step_plan.h.
#include <algorithm>
#include <cmath>

#include "absl/container/inlined_vector.h"
#include "common/check.h"
#include "common/status.h"
#include "kernels/optimizer/code8.h"
#include "offload/exec/executor.h"

namespace strata {
namespace {

// Combines sums in index order: neighbours first, so the shape only depends on their number.
double PairwiseSum(std::span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  const size_t half = (values.size() + 1) / 2;
  return PairwiseSum(values.first(half)) + PairwiseSum(values.subspan(half));
}

std::string TensorAt(const ParamUnit& unit, int64_t element) {
  for (const TensorInfo& tensor : unit.tensors) {
    if (element >= tensor.offset && element < tensor.offset + tensor.elements) return tensor.name;
  }
  return unit.name;
}

// AdamW on elements from `begin` on of a record of n elements. Both are where blocks of codes begin: groups
// are of whole tensors.
absl::Status UpdateMoments(StateOps& math, Stream* stream, AdamWStep& update, Moments moments, float* record,
                           int64_t n, int64_t begin) {
  if (moments == Moments::kF32) {
    update.m = record + n + begin;
    update.v = record + 2 * n + begin;
    return math.AdamW(stream, update);
  }
  auto* const codes = reinterpret_cast<uint8_t*>(record + n);
  auto* const scales = reinterpret_cast<float*>(codes + 2 * n) + begin / kCode8Block;
  return math.AdamW8(
      stream, update,
      {.m = codes + begin, .v = codes + n + begin, .m_scale = scales, .v_scale = scales + n / kCode8Block});
}

// Micro-batches and contributions of a step are fewer than this (CheckSizes).
constexpr int64_t kScratchGenerations = int64_t{1} << 20;

Generation ScratchGeneration(const Content& content, int64_t step) {
  const int64_t n = content.kind == ContentKind::kAccumulated ? content.contributions : content.micro_batch;
  return static_cast<Generation>(step * kScratchGenerations + n);
}

}  // namespace

std::byte* Executor::Pointer(const Operand& operand) {
  const Slot& slot = plan_.slots[operand.slot];
  slot_touched_[operand.slot].store(true, std::memory_order_relaxed);
  STRATA_CHECK(operand.offset + operand.bytes <= slot.bytes);
  std::byte* base = slot.tier == Tier::kDevice ? resources_.device->arena() : resources_.host->data();
  return base + slot.offset + operand.offset;
}

StateOps& Executor::StateOpsOf(const LaneState& lane) {
  return IsDeviceLane(plan_.lanes[&lane - lanes_.data()]) ? resources_.device->state_ops()
                                                          : *resources_.host_state_ops;
}

absl::Status Executor::RunOp(int index, const Op& op, int64_t step, StepSource& source) {
  LaneState& lane = lanes_[index];
  switch (op.kind) {
    case OpKind::kBatch: {
      const int64_t rows = resources_.layout->micro_batch * resources_.layout->seq;
      auto* tokens = reinterpret_cast<int32_t*>(Pointer(op.operands[0]));
      return source.FillBatch(step, op.micro_batch, {tokens, static_cast<size_t>(rows)},
                              {tokens + rows, static_cast<size_t>(rows)});
    }
    case OpKind::kRead:
    case OpKind::kWrite:
    case OpKind::kReadDirect:
    case OpKind::kWriteDirect:
      break;  // RunNvmeLaneStep
    case OpKind::kH2D:
    case OpKind::kD2H:
    case OpKind::kActOut:
    case OpKind::kActIn:
      return RunTransfer(lane, op);
    case OpKind::kForward:
    case OpKind::kRecompute:
    case OpKind::kLoss:
    case OpKind::kBackward:
      return RunCompute(lane, op, step, source);
    case OpKind::kAccumulate:
      return StateOpsOf(lane).Accumulate(lane.stream, reinterpret_cast<float*>(Pointer(op.operands[0])),
                                         reinterpret_cast<const float*>(Pointer(op.operands[1])),
                                         op.operands[1].bytes / static_cast<int64_t>(sizeof(float)));
    case OpKind::kNorm:
      return RunNorm(lane, op, step);
    case OpKind::kClip:
      return RunClip(op, step, source);
    case OpKind::kHandOver: {
      const Operand& sum = op.operands[0];
      return StateOpsOf(lane).CastParams(lane.stream, reinterpret_cast<const float*>(Pointer(sum)),
                                         Pointer(op.operands[1]), DType::kF32, sum.bytes / 4);
    }
    case OpKind::kUpdate:
      return RunUpdate(lane, op, step, source);
    case OpKind::kCommit:
      return RunCommit(step, source);
  }
  return absl::InternalError("unknown operation kind");
}

absl::Status Executor::RunTransfer(LaneState& lane, const Op& op) {
  std::byte* source = Pointer(op.operands[0]);
  std::byte* destination = Pointer(op.operands[1]);
  const int64_t bytes = op.operands[0].bytes;
  if (plan_.slots[op.operands[1].slot].tier == Tier::kDevice) {
    return resources_.device->CopyToDevice(lane.stream, destination, source, bytes);
  }
  return resources_.device->CopyToHost(lane.stream, destination, source, bytes);
}

// An item is its NVMe slot's index. Of a state, the store's newest version at the start of step t is
// generation t, except for what this step has updated already; of a frozen one there is only what was loaded.
// What is overwritten in place has a generation for each thing that is ever written there, so the store
// refuses what another step, micro-batch or sum has left.
absl::Status Executor::StartIo(NvmeLane& transfers, const Op& op, int64_t step) {
  const bool read = ReadsStore(op.kind);
  const Operand& item = op.operands[read ? 0 : 1];
  const Operand& memory = op.operands[read ? 1 : 0];
  const auto id = static_cast<ItemId>(item.slot);
  Generation generation = ScratchGeneration(item.content, step);
  if (plan_.slots[item.slot].persistent) {
    const std::optional<Generation> loaded =
        plan_.frozen[item.content.unit] ? resources_.store->newest(id) : std::nullopt;
    generation = loaded.value_or(static_cast<Generation>(GenerationAt(step) + item.content.updates));
  }
  slot_touched_[item.slot].store(true, std::memory_order_relaxed);
  const std::span<std::byte> bytes(Pointer(memory), static_cast<size_t>(memory.bytes));
  return read ? transfers.StartRead(id, generation, bytes) : transfers.StartWrite(id, generation, bytes);
}

absl::Status Executor::RunCompute(LaneState& lane, const Op& op, int64_t step, StepSource& source) {
  BlockArgs args;
  args.block = op.block;
  absl::InlinedVector<const void*, 8> params;
  absl::InlinedVector<void*, 8> grads;
  const int64_t rows = resources_.layout->micro_batch * resources_.layout->seq;
  const bool rest_only = op.kind == OpKind::kRecompute && op.operands[0].access == Access::kRead;
  for (const Operand& operand : op.operands) {
    std::byte* pointer = Pointer(operand);
    switch (operand.content.kind) {
      case ContentKind::kBatch:
        args.tokens = reinterpret_cast<const int32_t*>(pointer);
        args.targets = args.tokens + rows;
        break;
      case ContentKind::kParams:
        params.push_back(pointer);
        break;
      case ContentKind::kGradient:
      case ContentKind::kAccumulated:
        grads.push_back(pointer);
        break;
      case ContentKind::kActivation:
        // FORWARD writes the input of the next block; every other use is the input of this one.
        if (operand.access == Access::kRead) {
          args.input = pointer;
        } else {
          args.output = pointer;
        }
        break;
      case ContentKind::kSaved:
        args.saved = pointer;
        break;
      case ContentKind::kSavedRest:
        args.saved_rest = pointer;
        break;
      case ContentKind::kActGradient:
        args.grad = pointer;
        break;
      case ContentKind::kWorkspace:
        // An output that nobody needs comes before the workspace.
        if (op.kind == OpKind::kRecompute && !rest_only && args.output == nullptr) {
          args.output = pointer;
        } else {
          args.workspace = {pointer, operand.bytes};
        }
        break;
      case ContentKind::kPending:
      case ContentKind::kRecord:
        return absl::InternalError("a compute operation with an optimizer's state");
    }
  }
  args.params = params;
  args.grads = grads;
  if (plan_.kind == PlanKind::kTrain) args.draw = {.step = step, .first_row = op.micro_batch * rows};
  switch (op.kind) {
    case OpKind::kForward:
    case OpKind::kRecompute:
      return rest_only ? resources_.compute->RecomputeRest(lane.stream, args)
                       : resources_.compute->Forward(lane.stream, args);
    case OpKind::kBackward:
      return resources_.compute->Backward(lane.stream, args);
    default:
      return RunLoss(lane, op, step, source, args);
  }
}

absl::Status Executor::RunLoss(LaneState& lane, const Op& op, int64_t step, StepSource& source,
                               BlockArgs& args) {
  StepState& now = state(step);
  args.loss = now.loss[op.micro_batch].data();
  args.gradient_scale = source.GradientScale(step);
  if (options_.loss_scale) {
    now.loss_scale = loss_scale_.scale;
    now.assumed_scale = static_cast<float>(1 / now.loss_scale);
    args.gradient_scale *= now.loss_scale;
  }
  return resources_.compute->Loss(lane.stream, args);
}

absl::Status Executor::RunNorm(LaneState& lane, const Op& op, int64_t step) {
  const auto* gradient = reinterpret_cast<const float*>(Pointer(op.operands[0]));
  StepState& now = state(step);
  for (size_t i = first_norm_range_[op.unit]; i < first_norm_range_[op.unit + 1]; ++i) {
    const NormRange& range = norm_ranges_[i];
    STRATA_RETURN_IF_ERROR(StateOpsOf(lane).SumSquares(lane.stream, gradient + range.begin,
                                                       range.end - range.begin, &now.sum_squares[i],
                                                       &now.first_bad[i]));
  }
  return absl::OkStatus();
}

// The coefficient is torch.nn.utils.clip_grad_norm_'s: min(1, clip / (norm + 1e-6)).
absl::Status Executor::RunClip(const Op& op, int64_t step, StepSource& source) {
  StepState& now = state(step);
  UseResults(now.sum_squares);
  UseResults(now.first_bad);
  // By unit first: the ranges of a unit are more than one only where frozen tensors lie between them.
  std::vector<double> units;
  const std::span<const double> sums = now.sum_squares;
  for (size_t u = 0; u + 1 < first_norm_range_.size(); ++u) {
    units.push_back(
        PairwiseSum(sums.subspan(first_norm_range_[u], first_norm_range_[u + 1] - first_norm_range_[u])));
  }
  now.grad_norm = std::sqrt(PairwiseSum(units)) / now.loss_scale;
  for (size_t i = 0; i < norm_ranges_.size() && !now.skip; ++i) {
    if (now.first_bad[i] < 0) continue;
    const NormRange& range = norm_ranges_[i];
    now.skip = true;
    now.bad_tensor = TensorAt(resources_.layout->units[range.unit], range.begin + now.first_bad[i]);
  }
  if (options_.loss_scale) loss_scale_ = AfterStep(loss_scale_, *options_.loss_scale, !now.skip);
  now.grad_scale = now.assumed_scale;
  if (plan_.clip && !now.skip) {
    const double coefficient = options_.clip_norm / (now.grad_norm + 1e-6);
    now.grad_scale = static_cast<float>(std::min(coefficient, 1.0) / now.loss_scale);
  }
  now.redo = speculates_ && (now.skip || now.grad_scale != now.assumed_scale);
  return absl::OkStatus();
}

// A skipped step still writes every home, with the bytes it found: the plan stays the same whatever the
// numbers are. An UPDATE before CLIP knows neither a skip nor a scale: it assumes that there is none.
absl::Status Executor::RunUpdate(LaneState& lane, const Op& op, int64_t step, StepSource& source) {
  const StepState& now = state(step);
  const ChunkInfo& chunk = plan_.chunks[op.unit][op.chunk];
  const int64_t n = chunk.end - chunk.begin;
  float* master = reinterpret_cast<float*>(Pointer(op.operands[0]));
  const float* gradient = reinterpret_cast<const float*>(Pointer(op.operands[1]));
  std::byte* params = Pointer(op.operands[2]);
  StateOps& math = StateOpsOf(lane);
  std::optional<float> scale = now.assumed_scale;
  if (op.operands[1].content.kind == ContentKind::kPending) {
    scale = pending_scale_;
  } else if (op.speculation != Speculation::kAssumed) {
    scale = now.skip ? std::nullopt : std::optional(now.grad_scale);
  }
  if (!scale.has_value()) return math.CastParams(lane.stream, master, params, plan_.compute_dtype, n);
  for (const UpdateRange& range : update_ranges_[op.unit]) {
    const int64_t begin = std::max(range.begin, chunk.begin) - chunk.begin;
    const int64_t end = std::min(range.end, chunk.end) - chunk.begin;
    if (begin >= end) continue;
    std::byte* const copy = params + begin * SizeOf(plan_.compute_dtype);
    if (range.frozen) {
      STRATA_RETURN_IF_ERROR(
          math.CastParams(lane.stream, master + begin, copy, plan_.compute_dtype, end - begin));
      continue;
    }
    const AdamWHyper hyper = source.Hyper(applied_, range.group);
    AdamWStep update;
    update.n = end - begin;
    update.grad = gradient + begin;
    update.master = master + begin;
    update.params = copy;
    update.params_dtype = plan_.compute_dtype;
    update.lr = hyper.lr;
    update.beta1 = hyper.beta1;
    update.beta2 = hyper.beta2;
    update.eps = hyper.eps;
    update.weight_decay = hyper.weight_decay;
    update.step = applied_ + 1;
    update.grad_scale = *scale;
    STRATA_RETURN_IF_ERROR(UpdateMoments(math, lane.stream, update, plan_.moments, master, n, begin));
  }
  return absl::OkStatus();
}

}  // namespace strata
