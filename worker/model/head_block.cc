#include "worker/model/head_block.h"

#include <algorithm>

#include "common/status.h"

namespace strata {

HeadBlock::HeadBlock(const ModelLayout& layout, Ops& ops)
    : norm_unit_(layout.units[layout.blocks.back().units[0]]),
      projection_unit_(layout.units[layout.blocks.back().units[1]]),
      ops_(ops),
      rows_(layout.micro_batch * layout.seq),
      hidden_(layout.config.hidden),
      vocab_(layout.config.vocab),
      norm_(MakeNorm(layout.config, norm_unit_, kFinalNormWeight)),
      work_(MakeHeadWorkspace(layout.config, layout.compute_dtype, layout.micro_batch, layout.seq,
                              layout.gemm_library)) {
  // The embedding table and lm_head are both [vocab, hidden], in either architecture.
  projection_ = {.in = hidden_, .out = vocab_, .out_in = true, .weight = projection_unit_.tensors[0].offset};
}

absl::Status HeadBlock::Loss(Stream* stream, const BlockArgs& args) const {
  const bool gradients = args.grad != nullptr;
  void* const work = args.workspace.data;
  BlockMath math(ops_, stream, {At(work, work_.op), work_.op.bytes});
  void* const normed = At(work, work_.normed);
  void* const mean = At(work, work_.mean);
  void* const rstd = At(work, work_.rstd);

  STRATA_RETURN_IF_ERROR(math.NormForward(norm_, rows_, args.input, args.params[0], normed, mean, rstd),
                         "final norm");
  for (int64_t begin = 0; begin < rows_; begin += work_.chunk_rows) {
    const int64_t rows = std::min(work_.chunk_rows, rows_ - begin);
    STRATA_RETURN_IF_ERROR(LossOfChunk(math, args, begin, rows), "rows ", begin, "..", begin + rows - 1);
  }
  if (!gradients) return absl::OkStatus();

  STRATA_RETURN_IF_ERROR(ops_.Zero(stream, args.grad, rows_ * hidden_ * SizeOf(ops_.compute_dtype())));
  STRATA_RETURN_IF_ERROR(math.NormBackward(norm_, rows_, args.input, args.params[0], mean, rstd, normed,
                                           args.grad, args.grads[0]),
                         "final norm backward");
  STRATA_RETURN_IF_ERROR(ZeroPadding(ops_, stream, norm_unit_, args.grads[0]));
  return ZeroPadding(ops_, stream, projection_unit_, args.grads[1]);
}

absl::Status HeadBlock::LossOfChunk(BlockMath& math, const BlockArgs& args, int64_t begin,
                                    int64_t rows) const {
  const bool gradients = args.grad != nullptr;
  void* const work = args.workspace.data;
  const MatrixView normed{math.Value(At(work, work_.normed), begin * hidden_), hidden_};
  const MatrixView logits{At(work, work_.logits), vocab_};
  STRATA_RETURN_IF_ERROR(math.LinearForward(projection_, rows, normed, args.params[1], logits), "logits");

  CrossEntropyArgs entropy;
  entropy.rows = rows;
  entropy.vocab = vocab_;
  entropy.logits = logits.data;
  entropy.targets = args.targets + begin;
  entropy.loss = args.loss;
  entropy.gradient = gradients;
  entropy.gradient_scale = args.gradient_scale;
  entropy.workspace = math.workspace();
  STRATA_RETURN_IF_ERROR(ops_.CrossEntropy(math.stream(), entropy), "cross entropy");
  if (!gradients) return absl::OkStatus();

  // Chunks come in row order, so the sum over them has a fixed order.
  STRATA_RETURN_IF_ERROR(math.LinearParameterGradients(projection_, rows, normed, logits, args.grads[1],
                                                       /*accumulate=*/begin > 0),
                         "gradient of the vocabulary projection");
  // The norm's output of this chunk has been read for the last time: its gradient takes its place.
  return math.LinearInputGradient(projection_, rows, logits, args.params[1], normed, /*accumulate=*/false);
}

}  // namespace strata
