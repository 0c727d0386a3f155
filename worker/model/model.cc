#include "worker/model/model.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "worker/model/activation_dropout.h"
#include "worker/model/head_block.h"
#include "worker/model/transformer_block.h"

namespace strata {
namespace {

class Model final : public BlockCompute {
 public:
  Model(const ModelLayout& layout, Ops& ops, uint64_t seed)
      : layout_(layout),
        ops_(ops),
        dropout_(ops, seed, layout_.config.dropout.embedding, rows(), layout_.config.hidden),
        transformer_(layout_, layout_.units[layout_.blocks[1].units[0]], ops, seed),
        head_(layout_, ops) {}

  absl::Status Forward(Stream* stream, const BlockArgs& args) override {
    STRATA_RETURN_IF_ERROR(CheckBlock(args));
    const Block& block = layout_.blocks[args.block];
    const std::string where = absl::StrCat("forward of block ", args.block);
    STRATA_RETURN_IF_ERROR(CheckParams(where, block, args));
    STRATA_RETURN_IF_ERROR(CheckWorkspace(where, args, block.forward_workspace_bytes));
    STRATA_RETURN_IF_ERROR(CheckPointer(where, "output", args.output));
    switch (block.kind) {
      case BlockKind::kEmbedding:
        STRATA_RETURN_IF_ERROR(CheckPointer(where, "tokens", args.tokens));
        STRATA_RETURN_IF_ERROR(ops_.EmbeddingForward(stream, rows(), layout_.seq, layout_.config.vocab,
                                                     layout_.config.hidden, args.tokens, args.params[0],
                                                     has_positions() ? args.params[1] : nullptr, args.output),
                               where);
        if (!dropout_.Drops(args)) return absl::OkStatus();
        STRATA_RETURN_IF_ERROR(
            dropout_.Run(stream, args, ActivationDropout::OfOutput(args.block), args.output, args.output),
            where, ", dropout");
        return absl::OkStatus();
      case BlockKind::kTransformer:
        STRATA_RETURN_IF_ERROR(CheckPointer(where, "input", args.input));
        STRATA_RETURN_IF_ERROR(CheckSaved(where, args));
        STRATA_RETURN_IF_ERROR(transformer_.Forward(stream, args), where);
        return absl::OkStatus();
      case BlockKind::kHead:
        break;
    }
    return absl::InvalidArgumentError(absl::StrCat(where, ": the head has no forward but Loss"));
  }

  absl::Status RecomputeRest(Stream* stream, const BlockArgs& args) override {
    STRATA_RETURN_IF_ERROR(CheckBlock(args));
    const Block& block = layout_.blocks[args.block];
    const std::string where = absl::StrCat("recompute of block ", args.block);
    if (block.kind != BlockKind::kTransformer) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": only a transformer block saves anything"));
    }
    STRATA_RETURN_IF_ERROR(CheckParams(where, block, args));
    STRATA_RETURN_IF_ERROR(CheckWorkspace(where, args, block.forward_workspace_bytes));
    STRATA_RETURN_IF_ERROR(CheckSaved(where, args));
    STRATA_RETURN_IF_ERROR(transformer_.RecomputeRest(stream, args), where);
    return absl::OkStatus();
  }

  absl::Status Backward(Stream* stream, const BlockArgs& args) override {
    STRATA_RETURN_IF_ERROR(CheckBlock(args));
    const Block& block = layout_.blocks[args.block];
    const std::string where = absl::StrCat("backward of block ", args.block);
    STRATA_RETURN_IF_ERROR(CheckGrads(where, block, args));
    STRATA_RETURN_IF_ERROR(CheckWorkspace(where, args, block.backward_workspace_bytes));
    STRATA_RETURN_IF_ERROR(CheckPointer(where, "grad", args.grad));
    switch (block.kind) {
      case BlockKind::kEmbedding:
        STRATA_RETURN_IF_ERROR(CheckPointer(where, "tokens", args.tokens));
        STRATA_RETURN_IF_ERROR(EmbeddingBackward(stream, block, args), where);
        return absl::OkStatus();
      case BlockKind::kTransformer:
        STRATA_RETURN_IF_ERROR(CheckParams(where, block, args));
        STRATA_RETURN_IF_ERROR(CheckPointer(where, "input", args.input));
        STRATA_RETURN_IF_ERROR(CheckSaved(where, args));
        STRATA_RETURN_IF_ERROR(transformer_.Backward(stream, args), where);
        return absl::OkStatus();
      case BlockKind::kHead:
        break;
    }
    return absl::InvalidArgumentError(absl::StrCat(where, ": the head has no backward but Loss"));
  }

  absl::Status Loss(Stream* stream, const BlockArgs& args) override {
    STRATA_RETURN_IF_ERROR(CheckBlock(args));
    const Block& block = layout_.blocks[args.block];
    const std::string where = absl::StrCat("loss of block ", args.block);
    if (block.kind != BlockKind::kHead) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": only the head has a loss"));
    }
    STRATA_RETURN_IF_ERROR(CheckParams(where, block, args));
    STRATA_RETURN_IF_ERROR(CheckWorkspace(
        where, args, args.grad != nullptr ? block.backward_workspace_bytes : block.forward_workspace_bytes));
    STRATA_RETURN_IF_ERROR(CheckPointer(where, "input", args.input));
    STRATA_RETURN_IF_ERROR(CheckPointer(where, "targets", args.targets));
    STRATA_RETURN_IF_ERROR(CheckPointer(where, "loss", args.loss));
    if (args.grad != nullptr) {
      STRATA_RETURN_IF_ERROR(CheckGrads(where, block, args));
    } else if (!args.grads.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": grads are given but no buffer for d(input)"));
    }
    STRATA_RETURN_IF_ERROR(head_.Loss(stream, args), where);
    return absl::OkStatus();
  }

 private:
  int64_t rows() const { return layout_.micro_batch * layout_.seq; }
  bool has_positions() const { return layout_.config.architecture == Architecture::kGpt2; }

  absl::Status EmbeddingBackward(Stream* stream, const Block& block, const BlockArgs& args) {
    const void* gradient = args.grad;
    if (dropout_.Drops(args)) {
      gradient = args.workspace.data;
      STRATA_RETURN_IF_ERROR(
          dropout_.Run(stream, args, ActivationDropout::OfOutput(args.block), args.grad, args.workspace.data),
          "dropout");
    }
    STRATA_RETURN_IF_ERROR(ops_.EmbeddingBackward(
        stream, rows(), layout_.seq, layout_.config.vocab, layout_.config.hidden, args.tokens, gradient,
        args.grads[0], has_positions() ? args.grads[1] : nullptr, layout_.config.max_seq));
    for (size_t i = 0; i < block.units.size(); ++i) {
      STRATA_RETURN_IF_ERROR(ZeroPadding(ops_, stream, layout_.units[block.units[i]], args.grads[i]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckBlock(const BlockArgs& args) const {
    if (args.block >= 0 && args.block < static_cast<int>(layout_.blocks.size())) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("block ", args.block, " is outside 0..", layout_.blocks.size() - 1));
  }
  absl::Status CheckPointer(const std::string& where, const char* what, const void* pointer) const {
    if (pointer != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", what, " is null"));
  }
  absl::Status CheckSaved(const std::string& where, const BlockArgs& args) const {
    STRATA_RETURN_IF_ERROR(CheckPointer(where, "saved", args.saved));
    return CheckPointer(where, "saved_rest", args.saved_rest);
  }
  absl::Status CheckParams(const std::string& where, const Block& block, const BlockArgs& args) const {
    if (args.params.size() != block.units.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": parameters of ", args.params.size(), " units, needs ", block.units.size()));
    }
    for (const void* unit : args.params)
      STRATA_RETURN_IF_ERROR(CheckPointer(where, "a unit's parameters", unit));
    return absl::OkStatus();
  }
  absl::Status CheckGrads(const std::string& where, const Block& block, const BlockArgs& args) const {
    if (args.grads.size() != block.units.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": gradients of ", args.grads.size(), " units, needs ", block.units.size()));
    }
    for (const void* unit : args.grads)
      STRATA_RETURN_IF_ERROR(CheckPointer(where, "a unit's gradient", unit));
    return absl::OkStatus();
  }
  absl::Status CheckWorkspace(const std::string& where, const BlockArgs& args, int64_t bytes) const {
    if (args.workspace.bytes >= bytes && (bytes == 0 || args.workspace.data != nullptr))
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": workspace of ", args.workspace.bytes, " bytes, needs ", bytes));
  }

  const ModelLayout layout_;  // before what refers to it
  Ops& ops_;
  ActivationDropout dropout_;  // of the embedding
  TransformerBlock transformer_;
  HeadBlock head_;
};

}  // namespace

std::unique_ptr<BlockCompute> MakeModel(const ModelLayout& layout, Ops& ops, uint64_t seed) {
  STRATA_CHECK(ops.compute_dtype() == layout.compute_dtype && ops.acc_dtype() == layout.acc_dtype());
  return std::make_unique<Model>(layout, ops, seed);
}

}  // namespace strata
