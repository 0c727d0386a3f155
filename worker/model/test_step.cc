#include "worker/model/test_step.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/crc32c.h"
#include "common/float16.h"
#include "common/random.h"
#include "common/status.h"
#include "worker/model/model.h"

namespace strata {
namespace {

constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kPoisonByte{0xFF};

}  // namespace

void GuardedBuffer::Free::operator()(std::byte* p) const { std::free(p); }

GuardedBuffer::GuardedBuffer(int64_t bytes) : bytes_(bytes) {
  const int64_t size = (bytes + 2 * kGuard + kGuard - 1) / kGuard * kGuard;
  storage_.reset(static_cast<std::byte*>(std::aligned_alloc(kGuard, size)));
  STRATA_CHECK(storage_ != nullptr);
  std::fill_n(storage_.get(), bytes + 2 * kGuard, kGuardByte);
  Poison();
}

void GuardedBuffer::Poison() { std::fill_n(storage_.get() + kGuard, bytes_, kPoisonByte); }

bool GuardedBuffer::Intact() const {
  const auto whole = [](const std::byte* p) {
    return std::all_of(p, p + kGuard, [](std::byte b) { return b == kGuardByte; });
  };
  return whole(storage_.get()) && whole(storage_.get() + kGuard + bytes_);
}

uint32_t GuardedBuffer::Crc() const { return Crc32c(data(), static_cast<size_t>(bytes_)); }

double GetValue(const void* base, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<const double*>(base)[index];
    case DType::kF32:
      return static_cast<const float*>(base)[index];
    case DType::kBF16:
      return ToFloat(static_cast<const BFloat16*>(base)[index]);
    case DType::kF16:
      return ToFloat(static_cast<const Float16*>(base)[index]);
    case DType::kI32:
      break;
  }
  STRATA_CHECK(false);
  return 0;
}

void SetValue(void* base, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(base)[index] = value;
      return;
    case DType::kF32:
      static_cast<float*>(base)[index] = static_cast<float>(value);
      return;
    case DType::kBF16:
      static_cast<BFloat16*>(base)[index] = ToBFloat16(static_cast<float>(value));
      return;
    case DType::kF16:
      static_cast<Float16*>(base)[index] = ToFloat16(static_cast<float>(value));
      return;
    case DType::kI32:
      break;
  }
  STRATA_CHECK(false);
}

TestStep::TestStep(const ModelLayout& layout, Ops& ops, uint64_t seed)
    : layout_(layout), model_(MakeModel(layout_, ops, seed)), act_grad_(layout.activation_bytes) {
  for (const ParamUnit& unit : layout_.units) {
    params_.push_back(std::make_unique<GuardedBuffer>(unit.elements * SizeOf(layout_.compute_dtype)));
    std::memset(params_.back()->data(), 0, params_.back()->bytes());
    grads_.emplace_back(unit.elements);
  }
  for (const Block& block : layout_.blocks) {
    if (block.kind == BlockKind::kHead) break;
    activations_.push_back(std::make_unique<GuardedBuffer>(layout_.activation_bytes));
    saved_.push_back(std::make_unique<GuardedBuffer>(block.saved_bytes));
    saved_rest_.push_back(std::make_unique<GuardedBuffer>(block.saved_rest_bytes));
  }
}

void TestStep::SetParam(int unit, int64_t element, double value) {
  SetValue(params_[unit]->data(), layout_.compute_dtype, element, value);
}

double TestStep::GetParam(int unit, int64_t element) const {
  return GetValue(params_[unit]->data(), layout_.compute_dtype, element);
}

void TestStep::RandomParams(uint64_t seed, double deviation) {
  uint64_t stream = 0;
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    for (const TensorInfo& tensor : layout_.units[unit].tensors) {
      const CounterRandom random(seed, stream++);
      const double mean = tensor.init == InitKind::kOne ? 1 : 0;
      for (int64_t i = 0; i < tensor.elements; ++i) {
        SetParam(static_cast<int>(unit), tensor.offset + i, mean + deviation * random.Normal(i));
      }
    }
  }
}

std::vector<const void*> TestStep::params() const {
  std::vector<const void*> pointers;
  for (const auto& unit : params_) pointers.push_back(unit->data());
  return pointers;
}

GuardedBuffer& TestStep::Scratch(int64_t bytes, int use) {
  auto& buffer = scratch_[{bytes, use}];
  if (buffer == nullptr) buffer = std::make_unique<GuardedBuffer>(bytes);
  return *buffer;
}

absl::Status TestStep::CheckGuards(const std::string& where) const {
  const auto check = [&](const GuardedBuffer& buffer, const char* what, size_t index) {
    if (buffer.Intact()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(where, " wrote outside ", what, " ", index));
  };
  for (size_t i = 0; i < params_.size(); ++i) STRATA_RETURN_IF_ERROR(check(*params_[i], "parameters", i));
  for (size_t i = 0; i < saved_.size(); ++i) {
    STRATA_RETURN_IF_ERROR(check(*saved_[i], "saved", i));
    STRATA_RETURN_IF_ERROR(check(*saved_rest_[i], "saved rest", i));
    STRATA_RETURN_IF_ERROR(check(*activations_[i], "activation", i));
  }
  return check(act_grad_, "activation gradient", 0);
}

absl::Status TestStep::RunBlock(Call call, int index, BlockArgs args,
                                std::vector<const GuardedBuffer*> read_only) {
  const Block& block = layout_.blocks[index];
  const std::string where = absl::StrCat(call == Call::kForward         ? "FORWARD"
                                         : call == Call::kRecomputeRest ? "RECOMPUTE"
                                         : call == Call::kBackward      ? "BACKWARD"
                                                                        : "LOSS",
                                         " of block ", index);
  const bool with_gradients = args.grad != nullptr;
  GuardedBuffer& workspace =
      Scratch(call == Call::kForward || call == Call::kRecomputeRest ? block.forward_workspace_bytes
                                                                     : block.backward_workspace_bytes,
              0);
  if (checks_) workspace.Poison();
  std::vector<const void*> params;
  std::vector<GuardedBuffer*> grads;
  std::vector<void*> grad_pointers;
  for (const int unit : block.units) {
    params.push_back(params_[unit]->data());
    read_only.push_back(params_[unit].get());
    if (!with_gradients) continue;
    const int use = 1 + static_cast<int>(grads.size());
    grads.push_back(&Scratch(layout_.units[unit].elements * SizeOf(layout_.acc_dtype()), use));
    grads.back()->Poison();
    grad_pointers.push_back(grads.back()->data());
  }
  args.block = index;
  args.params = params;
  args.grads = grad_pointers;
  args.workspace = {workspace.data(), workspace.bytes()};
  args.draw = draw_;

  std::vector<uint32_t> before;
  if (!checks_) read_only.clear();
  for (const GuardedBuffer* buffer : read_only) before.push_back(buffer->Crc());
  switch (call) {
    case Call::kForward:
      STRATA_RETURN_IF_ERROR(model_->Forward(nullptr, args));
      break;
    case Call::kRecomputeRest:
      STRATA_RETURN_IF_ERROR(model_->RecomputeRest(nullptr, args));
      break;
    case Call::kBackward:
      STRATA_RETURN_IF_ERROR(model_->Backward(nullptr, args));
      break;
    case Call::kLoss:
      STRATA_RETURN_IF_ERROR(model_->Loss(nullptr, args));
      break;
  }
  for (size_t i = 0; i < read_only.size(); ++i) {
    if (read_only[i]->Crc() != before[i]) {
      return absl::InternalError(absl::StrCat(where, " changed read-only buffer ", i));
    }
  }
  if (!checks_) {
    STRATA_CHECK(grads.empty());
    return absl::OkStatus();
  }
  if (!workspace.Intact()) return absl::InternalError(absl::StrCat(where, " wrote outside its workspace"));
  STRATA_RETURN_IF_ERROR(CheckGuards(where));

  for (size_t i = 0; i < grads.size(); ++i) {
    const ParamUnit& unit = layout_.units[block.units[i]];
    if (!grads[i]->Intact()) return absl::InternalError(absl::StrCat(where, " wrote outside gradient ", i));
    size_t tensor = 0;
    for (int64_t e = 0; e < unit.elements; ++e) {
      while (tensor < unit.tensors.size() && e >= unit.tensors[tensor].offset + unit.tensors[tensor].elements)
        ++tensor;
      const bool padding = tensor == unit.tensors.size() || e < unit.tensors[tensor].offset;
      const double value = GetValue(grads[i]->data(), layout_.acc_dtype(), e);
      if (padding && value != 0) {
        return absl::InternalError(
            absl::StrCat(where, " left ", value, " in padding element ", e, " of ", unit.name));
      }
      grads_[block.units[i]][e] += value;
    }
  }
  return absl::OkStatus();
}

absl::Status TestStep::Forward(std::span<const int32_t> tokens) {
  for (size_t i = 0; i < activations_.size(); ++i) {
    if (checks_) {
      activations_[i]->Poison();
      saved_[i]->Poison();
      saved_rest_[i]->Poison();
    }
    BlockArgs args;
    args.tokens = tokens.data();
    args.output = activations_[i]->data();
    args.saved = saved_[i]->data();
    args.saved_rest = saved_rest_[i]->data();
    std::vector<const GuardedBuffer*> read_only;
    if (i > 0) {
      args.input = activations_[i - 1]->data();
      read_only.push_back(activations_[i - 1].get());
    }
    STRATA_RETURN_IF_ERROR(RunBlock(Call::kForward, static_cast<int>(i), args, read_only));
  }
  return absl::OkStatus();
}

absl::Status TestStep::Recompute(int index, BlockArgs args, std::vector<const GuardedBuffer*> inputs) {
  GuardedBuffer& output = *activations_[index];
  GuardedBuffer& saved = *saved_[index];
  GuardedBuffer& rest = *saved_rest_[index];
  const uint32_t output_crc = output.Crc(), saved_crc = saved.Crc(), rest_crc = rest.Crc();
  for (GuardedBuffer* buffer : {&output, &saved, &rest}) buffer->Poison();
  args.output = output.data();
  args.saved = saved.data();
  args.saved_rest = rest.data();
  STRATA_RETURN_IF_ERROR(RunBlock(Call::kForward, index, args, inputs));
  if (output.Crc() != output_crc || saved.Crc() != saved_crc || rest.Crc() != rest_crc)
    return absl::InternalError(absl::StrCat("recomputing block ", index, " gave other bits"));
  if (layout_.blocks[index].saved_rest_bytes == 0) return absl::OkStatus();
  rest.Poison();
  args.input = args.output = nullptr;
  STRATA_RETURN_IF_ERROR(RunBlock(Call::kRecomputeRest, index, args, {&saved}));
  if (rest.Crc() != rest_crc)
    return absl::InternalError(absl::StrCat("recomputing the rest of block ", index, " gave other bits"));
  return absl::OkStatus();
}

absl::Status TestStep::LossOnly(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                                double* loss) {
  STRATA_RETURN_IF_ERROR(Forward(tokens));
  loss[0] = loss[1] = 0;
  BlockArgs args;
  args.targets = targets.data();
  args.input = activations_.back()->data();
  args.loss = loss;
  return RunBlock(Call::kLoss, static_cast<int>(layout_.blocks.size()) - 1, args,
                  {activations_.back().get()});
}

absl::Status TestStep::Run(std::span<const int32_t> tokens, std::span<const int32_t> targets,
                           double gradient_scale, bool recompute, double* loss) {
  for (auto& unit : grads_) std::fill(unit.begin(), unit.end(), 0.0);
  STRATA_RETURN_IF_ERROR(Forward(tokens));
  loss[0] = loss[1] = 0;
  act_grad_.Poison();
  BlockArgs args;
  args.targets = targets.data();
  args.input = activations_.back()->data();
  args.loss = loss;
  args.grad = act_grad_.data();
  args.gradient_scale = gradient_scale;
  STRATA_RETURN_IF_ERROR(
      RunBlock(Call::kLoss, static_cast<int>(layout_.blocks.size()) - 1, args, {activations_.back().get()}));

  for (int i = static_cast<int>(activations_.size()) - 1; i >= 0; --i) {
    BlockArgs block_args;
    block_args.tokens = tokens.data();
    block_args.input = i > 0 ? activations_[i - 1]->data() : nullptr;
    std::vector<const GuardedBuffer*> inputs;
    if (i > 0) inputs.push_back(activations_[i - 1].get());
    if (recompute) STRATA_RETURN_IF_ERROR(Recompute(i, block_args, inputs));
    block_args.saved = saved_[i]->data();
    block_args.saved_rest = saved_rest_[i]->data();
    block_args.grad = act_grad_.data();
    inputs.push_back(saved_[i].get());
    inputs.push_back(saved_rest_[i].get());
    if (i == 0) inputs.push_back(&act_grad_);  // plans lend it to the embedding to read
    STRATA_RETURN_IF_ERROR(RunBlock(Call::kBackward, i, block_args, inputs));
  }
  return absl::OkStatus();
}

}  // namespace strata
