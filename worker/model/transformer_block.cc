#include "worker/model/transformer_block.h"

#include <cmath>

#include "common/status.h"

namespace strata {
namespace {

Linear Gpt2Linear(const ParamUnit& unit, int weight) {
  const TensorInfo& w = unit.tensors[weight];
  return {.in = w.shape[0],
          .out = w.shape[1],
          .out_in = false,
          .weight = w.offset,
          .bias = unit.tensors[weight + 1].offset};
}

Linear LlamaLinear(const ParamUnit& unit, int weight) {
  const TensorInfo& w = unit.tensors[weight];
  return {.in = w.shape[1], .out = w.shape[0], .out_in = true, .weight = w.offset};
}

// Matrices that follow each other without padding, as one.
Linear Merged(Linear first, std::initializer_list<Linear> others) {
  for (const Linear& other : others) first.out += other.out;
  return first;
}

}  // namespace

void TransformerBlock::LinearGroup::Add(const Linear& layer) {
  columns.push_back(out);
  layers.push_back(layer);
  out += layer.out;
}

TransformerBlock::TransformerBlock(const ModelLayout& layout, const ParamUnit& unit, Ops& ops, uint64_t seed)
    : config_(layout.config),
      unit_(unit),
      ops_(ops),
      fp8_(layout.fp8),
      batch_(layout.micro_batch),
      seq_(layout.seq),
      rows_(layout.micro_batch * layout.seq),
      q_width_(config_.heads * config_.head_dim),
      kv_width_(config_.kv_heads * config_.head_dim),
      dropout_(ops, seed, config_.dropout.residual, rows_, config_.hidden),
      saved_(MakeTransformerSaved(config_, layout.compute_dtype, batch_, seq_)),
      forward_(MakeTransformerForwardWorkspace(config_, layout.compute_dtype, batch_, seq_,
                                               layout.gemm_library, layout.fp8)),
      backward_(MakeTransformerBackwardWorkspace(config_, layout.compute_dtype, batch_, seq_,
                                                 layout.gemm_library, layout.fp8)) {
  if (config_.architecture == Architecture::kGpt2) {
    norm1_ = MakeNorm(config_, unit, kGpt2Ln1Weight);
    norm2_ = MakeNorm(config_, unit, kGpt2Ln2Weight);
    qkv_.Add(Gpt2Linear(unit, kGpt2AttnWeight));
    attention_out_ = Gpt2Linear(unit, kGpt2AttnProjWeight);
    ffn_in_.Add(Gpt2Linear(unit, kGpt2FcWeight));
    ffn_out_ = Gpt2Linear(unit, kGpt2MlpProjWeight);
    return;
  }
  norm1_ = MakeNorm(config_, unit, kLlamaInputNorm);
  norm2_ = MakeNorm(config_, unit, kLlamaPostNorm);
  const Linear q = LlamaLinear(unit, kLlamaQ), k = LlamaLinear(unit, kLlamaK), v = LlamaLinear(unit, kLlamaV);
  if (QkvIsOneMatrix(config_)) {
    qkv_.Add(Merged(q, {k, v}));
  } else {
    for (const Linear& layer : {q, k, v}) qkv_.Add(layer);
  }
  attention_out_ = LlamaLinear(unit, kLlamaO);
  const Linear gate = LlamaLinear(unit, kLlamaGate), up = LlamaLinear(unit, kLlamaUp);
  if (GateUpIsOneMatrix(config_)) {
    ffn_in_.Add(Merged(gate, {up}));
  } else {
    for (const Linear& layer : {gate, up}) ffn_in_.Add(layer);
  }
  ffn_out_ = LlamaLinear(unit, kLlamaDown);
}

absl::Status TransformerBlock::GroupForward(BlockMath& math, const LinearGroup& group, const void* x,
                                            const void* params, void* y) const {
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const Linear& layer = group.layers[i];
    STRATA_RETURN_IF_ERROR(math.LinearForward(layer, rows_, {x, layer.in}, params,
                                              math.Columns(MatrixView{y, group.out}, group.columns[i])));
  }
  return absl::OkStatus();
}

absl::Status TransformerBlock::GroupBackward(BlockMath& math, const LinearGroup& group, const void* x,
                                             const void* dy, const void* params, void* dx,
                                             void* grads) const {
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const Linear& layer = group.layers[i];
    const ConstMatrixView dy_part = math.Columns(ConstMatrixView{dy, group.out}, group.columns[i]);
    STRATA_RETURN_IF_ERROR(
        math.LinearParameterGradients(layer, rows_, {x, layer.in}, dy_part, grads, /*accumulate=*/false));
    STRATA_RETURN_IF_ERROR(math.LinearInputGradient(layer, rows_, dy_part, params, MatrixView{dx, layer.in},
                                                    /*accumulate=*/i > 0));
  }
  return absl::OkStatus();
}

// q and k are neighbours in the columns of qkv, so one call turns the heads of both.
absl::Status TransformerBlock::Rotate(BlockMath& math, void* qkv, bool inverse) const {
  if (config_.architecture != Architecture::kLlama) return absl::OkStatus();
  RopeArgs rope;
  rope.rows = rows_;
  rope.seq = seq_;
  rope.heads = config_.heads + config_.kv_heads;
  rope.head_dim = config_.head_dim;
  rope.ld = qkv_.out;
  rope.theta = config_.rope_theta;
  rope.x = qkv;
  rope.inverse = inverse;
  return ops_.Rope(math.stream(), rope);
}

AttentionArgs TransformerBlock::MakeAttention(BlockMath& math, const void* saved) const {
  AttentionArgs a;
  a.batch = batch_;
  a.seq = seq_;
  a.heads = config_.heads;
  a.kv_heads = config_.kv_heads;
  a.head_dim = config_.head_dim;
  a.scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  a.q = At(saved, saved_.qkv);
  a.k = math.Value(a.q, q_width_);
  a.v = math.Value(a.q, q_width_ + kv_width_);
  a.ldq = a.ldk = a.ldv = qkv_.out;
  // Forward writes these two, Backward only reads them: Ops has one struct for both.
  a.out = const_cast<void*>(At(saved, saved_.attention));
  a.ldo = q_width_;
  a.lse = const_cast<void*>(At(saved, saved_.lse));
  a.workspace = math.workspace();
  return a;
}

absl::Status TransformerBlock::ActivationForward(BlockMath& math, const void* in, void* out) const {
  if (config_.activation == Activation::kSwiglu) {
    return ops_.SwigluForward(math.stream(), rows_, config_.ffn, in, out);
  }
  const GeluKind kind = config_.activation == Activation::kGeluTanh ? GeluKind::kTanh : GeluKind::kErf;
  return ops_.GeluForward(math.stream(), kind, rows_ * config_.ffn, in, out);
}

absl::Status TransformerBlock::ActivationBackward(BlockMath& math, const void* in, const void* dout,
                                                  void* din) const {
  if (config_.activation == Activation::kSwiglu) {
    return ops_.SwigluBackward(math.stream(), rows_, config_.ffn, in, dout, din);
  }
  const GeluKind kind = config_.activation == Activation::kGeluTanh ? GeluKind::kTanh : GeluKind::kErf;
  return ops_.GeluBackward(math.stream(), kind, rows_ * config_.ffn, in, dout, din);
}

absl::Status TransformerBlock::Forward(Stream* stream, const BlockArgs& args) const {
  void* const work = args.workspace.data;
  BlockMath math(ops_, stream, {At(work, forward_.op), forward_.op.bytes}, fp8_);
  const void* const params = args.params[0];
  void* const normed = At(work, forward_.normed);
  void* const mean = At(work, forward_.mean);
  void* const rstd = At(work, forward_.rstd);
  void* const qkv = At(args.saved, saved_.qkv);
  void* const attention = At(args.saved, saved_.attention);
  void* const residual = At(args.saved, saved_.residual);
  void* const ffn_in = At(args.saved_rest, saved_.ffn_in);
  void* const activated = At(work, forward_.activated);
  const int64_t hidden = config_.hidden;

  STRATA_RETURN_IF_ERROR(math.NormForward(norm1_, rows_, args.input, params, normed, mean, rstd),
                         "first norm");
  STRATA_RETURN_IF_ERROR(GroupForward(math, qkv_, normed, params, qkv), "query, key, value projection");
  STRATA_RETURN_IF_ERROR(Rotate(math, qkv, /*inverse=*/false), "rotary embedding");
  STRATA_RETURN_IF_ERROR(ops_.AttentionForward(stream, MakeAttention(math, args.saved)), "attention");
  STRATA_RETURN_IF_ERROR(
      math.LinearForward(attention_out_, rows_, {attention, q_width_}, params, MatrixView{residual, hidden}),
      "attention output projection");
  if (dropout_.Drops(args)) {
    STRATA_RETURN_IF_ERROR(
        dropout_.Run(stream, args, ActivationDropout::OfAttention(args.block), residual, residual),
        "attention dropout");
  }
  STRATA_RETURN_IF_ERROR(math.AddNormForward(norm2_, rows_, args.input, residual, params, normed, mean, rstd),
                         "first residual and second norm");

  STRATA_RETURN_IF_ERROR(FfnInForward(math, args));
  STRATA_RETURN_IF_ERROR(ActivationForward(math, ffn_in, activated), "activation");
  STRATA_RETURN_IF_ERROR(
      math.LinearForward(ffn_out_, rows_, {activated, config_.ffn}, params, MatrixView{args.output, hidden}),
      "MLP output projection");
  if (dropout_.Drops(args)) {
    STRATA_RETURN_IF_ERROR(
        dropout_.Run(stream, args, ActivationDropout::OfOutput(args.block), args.output, args.output),
        "MLP dropout");
  }
  STRATA_RETURN_IF_ERROR(ops_.Add(stream, rows_ * hidden, residual, args.output, args.output),
                         "second residual");
  return absl::OkStatus();
}

absl::Status TransformerBlock::FfnInForward(BlockMath& math, const BlockArgs& args) const {
  STRATA_RETURN_IF_ERROR(GroupForward(math, ffn_in_, At(args.workspace.data, forward_.normed), args.params[0],
                                      At(args.saved_rest, saved_.ffn_in)),
                         "MLP input projection");
  return absl::OkStatus();
}

// The norm has the bits that it had in Forward together with the sum (NormArgs).
absl::Status TransformerBlock::RecomputeRest(Stream* stream, const BlockArgs& args) const {
  void* const work = args.workspace.data;
  BlockMath math(ops_, stream, {At(work, forward_.op), forward_.op.bytes}, fp8_);
  STRATA_RETURN_IF_ERROR(
      math.NormForward(norm2_, rows_, At(args.saved, saved_.residual), args.params[0],
                       At(work, forward_.normed), At(work, forward_.mean), At(work, forward_.rstd)),
      "second norm");
  return FfnInForward(math, args);
}

absl::Status TransformerBlock::Backward(Stream* stream, const BlockArgs& args) const {
  BlockMath math(ops_, stream, {At(args.workspace.data, backward_.op), backward_.op.bytes}, fp8_);
  STRATA_RETURN_IF_ERROR(MlpBackward(math, args));
  STRATA_RETURN_IF_ERROR(AttentionBackward(math, args));
  return ZeroPadding(ops_, stream, unit_, args.grads[0]);
}

absl::StatusOr<ConstMatrixView> TransformerBlock::BranchGradient(BlockMath& math, const BlockArgs& args,
                                                                 int64_t place,
                                                                 const BufferRange& range) const {
  if (!dropout_.Drops(args)) return ConstMatrixView(args.grad, config_.hidden);
  void* const left = At(args.workspace.data, range);
  STRATA_RETURN_IF_ERROR(dropout_.Run(math.stream(), args, place, args.grad, left), "dropout backward");
  return ConstMatrixView(left, config_.hidden);
}

absl::Status TransformerBlock::MlpBackward(BlockMath& math, const BlockArgs& args) const {
  void* const work = args.workspace.data;
  const void* const params = args.params[0];
  void* const grads = args.grads[0];
  const void* const residual = At(args.saved, saved_.residual);
  const void* const ffn_in = At(args.saved_rest, saved_.ffn_in);
  void* const activated = At(work, backward_.activated);
  void* const ffn_grad = At(work, backward_.ffn_grad);
  void* const normed = At(work, backward_.mlp_normed);
  void* const normed_grad = At(work, backward_.mlp_normed_grad);
  void* const mean = At(work, backward_.mean);
  void* const rstd = At(work, backward_.rstd);

  STRATA_ASSIGN_OR_RETURN(
      const ConstMatrixView dy,
      BranchGradient(math, args, ActivationDropout::OfOutput(args.block), backward_.mlp_branch_grad));
  STRATA_RETURN_IF_ERROR(ActivationForward(math, ffn_in, activated), "activation");
  STRATA_RETURN_IF_ERROR(math.LinearParameterGradients(ffn_out_, rows_, {activated, config_.ffn}, dy, grads,
                                                       /*accumulate=*/false),
                         "gradient of the MLP output projection");
  // From here `activated` holds its own gradient.
  STRATA_RETURN_IF_ERROR(
      math.LinearInputGradient(ffn_out_, rows_, dy, params, MatrixView{activated, config_.ffn},
                               /*accumulate=*/false),
      "gradient of the activation");
  STRATA_RETURN_IF_ERROR(ActivationBackward(math, ffn_in, activated, ffn_grad), "activation backward");
  STRATA_RETURN_IF_ERROR(math.NormForward(norm2_, rows_, residual, params, normed, mean, rstd),
                         "second norm");
  STRATA_RETURN_IF_ERROR(GroupBackward(math, ffn_in_, normed, ffn_grad, params, normed_grad, grads),
                         "gradient of the MLP input projection");
  STRATA_RETURN_IF_ERROR(
      math.NormBackward(norm2_, rows_, residual, params, mean, rstd, normed_grad, args.grad, grads),
      "second norm backward");
  return absl::OkStatus();
}

absl::Status TransformerBlock::AttentionBackward(BlockMath& math, const BlockArgs& args) const {
  void* const work = args.workspace.data;
  const void* const params = args.params[0];
  void* const grads = args.grads[0];
  const void* const saved = args.saved;
  const void* const attention = At(saved, saved_.attention);
  void* const attention_grad = At(work, backward_.attention_grad);
  void* const qkv_grad = At(work, backward_.qkv_grad);
  void* const normed = At(work, backward_.attn_normed);
  void* const normed_grad = At(work, backward_.attn_normed_grad);
  void* const mean = At(work, backward_.mean);
  void* const rstd = At(work, backward_.rstd);

  STRATA_ASSIGN_OR_RETURN(
      const ConstMatrixView dh,
      BranchGradient(math, args, ActivationDropout::OfAttention(args.block), backward_.attn_branch_grad));
  STRATA_RETURN_IF_ERROR(
      math.LinearParameterGradients(attention_out_, rows_, {attention, q_width_}, dh, grads,
                                    /*accumulate=*/false),
      "gradient of the attention output projection");
  STRATA_RETURN_IF_ERROR(math.LinearInputGradient(attention_out_, rows_, dh, params,
                                                  MatrixView{attention_grad, q_width_}, /*accumulate=*/false),
                         "gradient of the attention output");
  AttentionBackwardArgs backward;
  backward.forward = MakeAttention(math, saved);
  backward.dout = attention_grad;
  backward.lddo = q_width_;
  backward.dq = qkv_grad;
  backward.dk = math.Value(qkv_grad, q_width_);
  backward.dv = math.Value(qkv_grad, q_width_ + kv_width_);
  backward.lddq = backward.lddk = backward.lddv = qkv_.out;
  STRATA_RETURN_IF_ERROR(ops_.AttentionBackward(math.stream(), backward), "attention backward");
  STRATA_RETURN_IF_ERROR(Rotate(math, qkv_grad, /*inverse=*/true), "rotary embedding backward");
  STRATA_RETURN_IF_ERROR(math.NormForward(norm1_, rows_, args.input, params, normed, mean, rstd),
                         "first norm");
  STRATA_RETURN_IF_ERROR(GroupBackward(math, qkv_, normed, qkv_grad, params, normed_grad, grads),
                         "gradient of the query, key, value projection");
  STRATA_RETURN_IF_ERROR(
      math.NormBackward(norm1_, rows_, args.input, params, mean, rstd, normed_grad, args.grad, grads),
      "first norm backward");
  return absl::OkStatus();
}

}  // namespace strata
