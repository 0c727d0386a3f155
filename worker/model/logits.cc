#include "worker/model/logits.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checked.h"
#include "common/status.h"
#include "kernels/workspace.h"
#include "offload/model/saved_layout.h"
#include "worker/model/block_math.h"
#include "worker/model/model.h"

namespace strata {
namespace {

// The workspace of LastLogits: the norm's output and statistics, then the op's.
struct LogitsWorkspace {
  LogitsWorkspace(const ModelLayout& layout, int64_t rows) {
    const auto take = [this](int64_t size) {
      const BufferRange range{bytes, size};
      bytes += RoundUp(size, kBufferAlignment);
      return range;
    };
    normed = take(rows * layout.config.hidden * SizeOf(layout.compute_dtype));
    mean = take(rows * SizeOf(layout.acc_dtype()));
    rstd = take(rows * SizeOf(layout.acc_dtype()));
    op = take(GemmWorkspaceBytes(layout.compute_dtype, rows, layout.config.vocab, layout.config.hidden));
  }

  BufferRange normed, mean, rstd, op;
  int64_t bytes = 0;
};

}  // namespace

int64_t LastLogitsWorkspaceBytes(const ModelLayout& layout, int64_t rows) {
  return LogitsWorkspace(layout, rows).bytes;
}

absl::Status LastLogits(Ops& ops, Stream* stream, const ModelLayout& layout, int64_t rows,
                        const void* activation, std::span<const void* const> head_params, void* logits,
                        Workspace workspace) {
  const LogitsWorkspace work(layout, rows);
  if (rows < 1 || head_params.size() != 2 || workspace.bytes < work.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("logits of ", rows, " rows, ", head_params.size(),
                                                   " parameter units (needs 2), workspace of ",
                                                   workspace.bytes, " bytes (needs ", work.bytes, ")"));
  }
  const ModelConfig& config = layout.config;
  const Workspace op{At(workspace.data, work.op), work.op.bytes};
  BlockMath math(ops, stream, op);
  void* const normed = At(workspace.data, work.normed);
  const Norm norm = MakeNorm(config, layout.units[layout.blocks.back().units[0]], kFinalNormWeight);
  STRATA_RETURN_IF_ERROR(math.NormForward(norm, rows, activation, head_params[0], normed,
                                          At(workspace.data, work.mean), At(workspace.data, work.rstd)),
                         "final norm");
  GemmArgs gemm;
  gemm.m = rows;
  gemm.n = config.vocab;
  gemm.k = config.hidden;
  gemm.a = normed;
  gemm.lda = config.hidden;
  gemm.b = head_params[1];
  gemm.ldb = config.hidden;
  gemm.transpose_b = true;
  gemm.c = logits;
  gemm.ldc = config.vocab;
  gemm.c_is_acc = true;
  gemm.workspace = op;
  STRATA_RETURN_IF_ERROR(ops.Gemm(stream, gemm), "logits");
  return absl::OkStatus();
}

void HostForward::FreeBuffer::operator()(void* buffer) const { std::free(buffer); }

HostForward::HostForward(const ModelLayout& layout, Ops& ops)
    : layout_(layout), ops_(ops), model_(MakeModel(layout_, ops)) {}

absl::Status HostForward::Allocate(int64_t bytes, Buffer* buffer) {
  const int64_t size = RoundUp(std::max<int64_t>(bytes, 1), kBufferAlignment);
  buffer->reset(std::aligned_alloc(kBufferAlignment, size));
  if (*buffer != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", size, " bytes of a forward pass"));
}

absl::StatusOr<std::unique_ptr<HostForward>> HostForward::Create(const ModelLayout& layout, Ops& ops) {
  std::unique_ptr<HostForward> forward(new HostForward(layout, ops));
  int64_t saved = 0, rest = 0, workspace = 0;
  for (const Block& block : layout.blocks) {
    if (block.kind == BlockKind::kHead) continue;
    saved = std::max(saved, block.saved_bytes);
    rest = std::max(rest, block.saved_rest_bytes);
    workspace = std::max(workspace, block.forward_workspace_bytes);
  }
  forward->workspace_bytes_ = workspace;
  STRATA_RETURN_IF_ERROR(forward->Allocate(layout.activation_bytes, &forward->activation_));
  STRATA_RETURN_IF_ERROR(forward->Allocate(layout.activation_bytes, &forward->next_));
  STRATA_RETURN_IF_ERROR(forward->Allocate(saved, &forward->saved_));
  STRATA_RETURN_IF_ERROR(forward->Allocate(rest, &forward->saved_rest_));
  STRATA_RETURN_IF_ERROR(forward->Allocate(workspace, &forward->workspace_));
  return forward;
}

absl::Status HostForward::Logits(std::span<const void* const> unit_params, std::span<const int32_t> tokens,
                                 int64_t first_row, int64_t rows, std::vector<float>* logits) {
  const ModelConfig& config = layout_.config;
  const int64_t all_rows = layout_.micro_batch * layout_.seq;
  if (unit_params.size() != layout_.units.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit_params: ", unit_params.size(), " units, the model has ", layout_.units.size()));
  }
  if (static_cast<int64_t>(tokens.size()) != all_rows) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", tokens.size(), ", a pass takes ", all_rows));
  }
  if (first_row < 0 || rows < 1 || first_row > all_rows - rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows: ", rows, " from ", first_row, " on, a pass has ", all_rows));
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens[", i, "]: ", tokens[i], " is outside the vocabulary 0..", config.vocab - 1));
    }
  }

  std::vector<const void*> params;
  const auto params_of = [&](const Block& block) {
    params.clear();
    for (const int unit : block.units) params.push_back(unit_params[unit]);
  };
  for (size_t i = 0; i + 1 < layout_.blocks.size(); ++i) {
    params_of(layout_.blocks[i]);
    BlockArgs args;
    args.block = static_cast<int>(i);
    args.params = params;
    args.tokens = tokens.data();
    args.input = i == 0 ? nullptr : activation_.get();
    args.output = next_.get();
    args.saved = saved_.get();
    args.saved_rest = saved_rest_.get();
    args.workspace = {workspace_.get(), workspace_bytes_};
    STRATA_RETURN_IF_ERROR(model_->Forward(nullptr, args));
    std::swap(activation_, next_);
  }

  // The head's own buffers grow to the largest number of rows asked for.
  const int64_t acc_bytes = SizeOf(layout_.acc_dtype());
  const int64_t logits_bytes = RoundUp(rows * config.vocab * acc_bytes, kBufferAlignment);
  const int64_t work_bytes = LastLogitsWorkspaceBytes(layout_, rows);
  if (logits_bytes + work_bytes > logits_capacity_) {
    STRATA_RETURN_IF_ERROR(Allocate(logits_bytes + work_bytes, &logits_));
    logits_capacity_ = logits_bytes + work_bytes;
  }
  params_of(layout_.blocks.back());
  const void* const input =
      static_cast<const char*>(activation_.get()) + first_row * config.hidden * SizeOf(layout_.compute_dtype);
  STRATA_RETURN_IF_ERROR(LastLogits(ops_, nullptr, layout_, rows, input, params, logits_.get(),
                                    {static_cast<char*>(logits_.get()) + logits_bytes, work_bytes}));
  logits->resize(rows * config.vocab);
  if (layout_.acc_dtype() == DType::kF64) {
    const double* from = static_cast<const double*>(logits_.get());
    std::transform(from, from + logits->size(), logits->begin(),
                   [](double x) { return static_cast<float>(x); });
  } else {
    const float* from = static_cast<const float*>(logits_.get());
    std::copy(from, from + logits->size(), logits->begin());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ForwardLogits(const ModelLayout& layout, Ops& ops,
                                                 std::span<const void* const> unit_params,
                                                 std::span<const int32_t> tokens, int64_t first_row,
                                                 int64_t rows) {
  STRATA_ASSIGN_OR_RETURN(const auto forward, HostForward::Create(layout, ops));
  std::vector<float> logits;
  STRATA_RETURN_IF_ERROR(forward->Logits(unit_params, tokens, first_row, rows, &logits));
  return logits;
}

}  // namespace strata
