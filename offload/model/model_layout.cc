#include "offload/model/model_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/checked.h"
#include "common/status.h"
#include "kernels/validate.h"
#include "offload/model/saved_layout.h"

namespace strata {
namespace {

// With these limits no product below leaves int64_t: the largest, all states of a model, stays under
// kMaxElements * 24 bytes < 2^55.
constexpr int64_t kMaxWidth = int64_t{1} << 20;  // hidden, ffn, heads * head_dim
constexpr int64_t kMaxVocab = int64_t{1} << 24;
constexpr int64_t kMaxLayers = int64_t{1} << 14;
constexpr int64_t kMaxRows = int64_t{1} << 24;  // tokens of a micro-batch
constexpr int64_t kMaxElements = int64_t{1} << 50;

absl::Status Bad(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return Bad(field, absl::StrCat(value, " is outside 1..", max));
}

absl::Status CheckDropout(const ModelConfig& c) {
  for (const auto& [field, value] : {std::pair("dropout.embedding", c.dropout.embedding),
                                     std::pair("dropout.residual", c.dropout.residual),
                                     std::pair("dropout.attention", c.dropout.attention)}) {
    if (!(value >= 0 && value < 1)) {
      return Bad(field, absl::StrCat(value, " is no probability from 0 to below 1"));
    }
    if (value > 0 && c.architecture != Architecture::kGpt2) {
      return Bad(field, absl::StrCat(value, ": a Llama model has no dropout; set model.", field, " to 0"));
    }
  }
  if (c.dropout.attention > 0) {
    return Bad("dropout.attention",
               absl::StrCat(c.dropout.attention,
                            ": attention's probabilities are never in memory, so none are dropped; set "
                            "model.dropout.attention to 0 to train without"));
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(const ModelConfig& c) {
  STRATA_RETURN_IF_ERROR(CheckRange("layers", c.layers, kMaxLayers));
  STRATA_RETURN_IF_ERROR(CheckRange("hidden", c.hidden, kMaxWidth));
  STRATA_RETURN_IF_ERROR(CheckRange("heads", c.heads, kMaxWidth));
  STRATA_RETURN_IF_ERROR(CheckRange("kv_heads", c.kv_heads, c.heads));
  STRATA_RETURN_IF_ERROR(CheckRange("head_dim", c.head_dim, std::min(kHeadDimMax, kMaxWidth / c.heads)));
  STRATA_RETURN_IF_ERROR(CheckRange("ffn", c.ffn, kMaxWidth));
  STRATA_RETURN_IF_ERROR(CheckRange("vocab", c.vocab, kMaxVocab));
  STRATA_RETURN_IF_ERROR(CheckRange("max_seq", c.max_seq, kMaxRows));
  if (c.heads % c.kv_heads != 0) {
    return Bad("kv_heads", absl::StrCat(c.kv_heads, " does not divide heads ", c.heads));
  }
  if (!(c.norm_eps > 0) || !std::isfinite(c.norm_eps)) {
    return Bad("norm_eps", absl::StrCat(c.norm_eps, " is not a positive number"));
  }
  STRATA_RETURN_IF_ERROR(CheckDropout(c));
  switch (c.architecture) {
    case Architecture::kGpt2:
      if (c.heads * c.head_dim != c.hidden) {
        return Bad("heads",
                   absl::StrCat("a GPT-2 model needs heads * head_dim = hidden, not ", c.heads, " * ",
                                c.head_dim, " and ", c.hidden, "; choose heads that divide hidden"));
      }
      if (c.kv_heads != c.heads) {
        return Bad("kv_heads",
                   absl::StrCat("a GPT-2 model has no grouped queries: set it to heads, ", c.heads));
      }
      if (c.activation == Activation::kSwiglu)
        return Bad("activation", "a GPT-2 model needs a GELU, not SwiGLU");
      return absl::OkStatus();
    case Architecture::kLlama:
      if (c.head_dim % 2 != 0) {
        return Bad("head_dim", absl::StrCat(c.head_dim, " is odd; rotary embeddings turn pairs of channels"));
      }
      if (!(c.rope_theta > 0) || !std::isfinite(c.rope_theta)) {
        return Bad("rope_theta", absl::StrCat(c.rope_theta, " is not a positive number"));
      }
      if (c.activation != Activation::kSwiglu) return Bad("activation", "a Llama model needs SwiGLU");
      return absl::OkStatus();
  }
  return Bad("architecture", absl::StrCat(static_cast<int>(c.architecture), " is unknown"));
}

// Every size of every product, forward and backward.
absl::Status CheckFp8(const ModelConfig& c, DType compute_dtype, int64_t rows) {
  if (compute_dtype != DType::kBF16 && compute_dtype != DType::kF64) {
    return Bad("precision", absl::StrCat("fp8 is for a model in bf16, not in ", Name(compute_dtype)));
  }
  const struct {
    const char* field;
    int64_t size;
  } sizes[] = {{"hidden", c.hidden},
               {"heads times head_dim", c.heads * c.head_dim},
               {"kv_heads times head_dim", c.kv_heads * c.head_dim},
               {"ffn", c.ffn},
               {"micro_batch times seq_len", rows}};
  for (const auto& size : sizes) {
    if (size.size % kFp8Unit == 0) continue;
    return Bad(size.field, absl::StrCat(size.size, " is no multiple of ", kFp8Unit,
                                        ", which products in fp8 need; change it or use precision bf16"));
  }
  return absl::OkStatus();
}

// Collects the tensors of one unit.
class UnitBuilder {
 public:
  UnitBuilder(std::string name, std::string prefix) : prefix_(std::move(prefix)) {
    unit_.name = std::move(name);
  }

  UnitBuilder& Matrix(absl::string_view name, int64_t rows, int64_t columns, double init_std) {
    return Append({.name = absl::StrCat(prefix_, name),
                   .shape = {rows, columns},
                   .elements = rows * columns,
                   .group = kDecayGroup,
                   .init = InitKind::kNormal,
                   .init_std = init_std});
  }
  UnitBuilder& Vector(absl::string_view name, int64_t size, InitKind init) {
    return Append({.name = absl::StrCat(prefix_, name),
                   .shape = {size},
                   .elements = size,
                   .group = kPlainGroup,
                   .init = init,
                   .init_std = 0});
  }
  ParamUnit Build() { return std::move(unit_); }

 private:
  UnitBuilder& Append(TensorInfo tensor) {
    tensor.offset = unit_.elements;
    unit_.elements = RoundUp(tensor.offset + tensor.elements, kTensorAlignment);
    unit_.tensors.push_back(std::move(tensor));
    return *this;
  }

  ParamUnit unit_;
  std::string prefix_;
};

constexpr double kStd = 0.02;

// GPT-2: residual projections start smaller by the square root of their number.
double ResidualStd(const ModelConfig& c) { return kStd / std::sqrt(2.0 * static_cast<double>(c.layers)); }

// Tensor order: enum Gpt2Tensor.
ParamUnit Gpt2Layer(const ModelConfig& c, int64_t layer) {
  return UnitBuilder(absl::StrCat("layers.", layer), absl::StrCat("transformer.h.", layer, "."))
      .Vector("ln_1.weight", c.hidden, InitKind::kOne)
      .Vector("ln_1.bias", c.hidden, InitKind::kZero)
      .Matrix("attn.c_attn.weight", c.hidden, 3 * c.hidden, kStd)
      .Vector("attn.c_attn.bias", 3 * c.hidden, InitKind::kZero)
      .Matrix("attn.c_proj.weight", c.hidden, c.hidden, ResidualStd(c))
      .Vector("attn.c_proj.bias", c.hidden, InitKind::kZero)
      .Vector("ln_2.weight", c.hidden, InitKind::kOne)
      .Vector("ln_2.bias", c.hidden, InitKind::kZero)
      .Matrix("mlp.c_fc.weight", c.hidden, c.ffn, kStd)
      .Vector("mlp.c_fc.bias", c.ffn, InitKind::kZero)
      .Matrix("mlp.c_proj.weight", c.ffn, c.hidden, ResidualStd(c))
      .Vector("mlp.c_proj.bias", c.hidden, InitKind::kZero)
      .Build();
}

// Tensor order: enum LlamaTensor.
ParamUnit LlamaLayer(const ModelConfig& c, int64_t layer) {
  const int64_t q = c.heads * c.head_dim;
  const int64_t kv = c.kv_heads * c.head_dim;
  return UnitBuilder(absl::StrCat("layers.", layer), absl::StrCat("model.layers.", layer, "."))
      .Vector("input_layernorm.weight", c.hidden, InitKind::kOne)
      .Matrix("self_attn.q_proj.weight", q, c.hidden, kStd)
      .Matrix("self_attn.k_proj.weight", kv, c.hidden, kStd)
      .Matrix("self_attn.v_proj.weight", kv, c.hidden, kStd)
      .Matrix("self_attn.o_proj.weight", c.hidden, q, ResidualStd(c))
      .Vector("post_attention_layernorm.weight", c.hidden, InitKind::kOne)
      .Matrix("mlp.gate_proj.weight", c.ffn, c.hidden, kStd)
      .Matrix("mlp.up_proj.weight", c.ffn, c.hidden, kStd)
      .Matrix("mlp.down_proj.weight", c.hidden, c.ffn, ResidualStd(c))
      .Build();
}

std::vector<ParamUnit> MakeUnits(const ModelConfig& c) {
  const bool gpt2 = c.architecture == Architecture::kGpt2;
  std::vector<ParamUnit> units;
  units.push_back(UnitBuilder("wte", gpt2 ? "transformer." : "model.")
                      .Matrix(gpt2 ? "wte.weight" : "embed_tokens.weight", c.vocab, c.hidden, kStd)
                      .Build());
  if (gpt2) {
    units.push_back(
        UnitBuilder("wpe", "transformer.").Matrix("wpe.weight", c.max_seq, c.hidden, kStd).Build());
  }
  for (int64_t i = 0; i < c.layers; ++i) units.push_back(gpt2 ? Gpt2Layer(c, i) : LlamaLayer(c, i));
  if (gpt2) {
    units.push_back(UnitBuilder("final_norm", "transformer.")
                        .Vector("ln_f.weight", c.hidden, InitKind::kOne)
                        .Vector("ln_f.bias", c.hidden, InitKind::kZero)
                        .Build());
  } else {
    units.push_back(
        UnitBuilder("final_norm", "model.").Vector("norm.weight", c.hidden, InitKind::kOne).Build());
  }
  if (!c.tied_head) {
    units.push_back(UnitBuilder("lm_head", "").Matrix("lm_head.weight", c.vocab, c.hidden, kStd).Build());
  }
  return units;
}

// Multiply-adds count two. Causal attention does half of the s^2 work of two matrix products forward and
// of five backward (the scores are built again).
void CountTransformerFlops(const ModelConfig& c, double rows, double seq, Block* block) {
  const double q = static_cast<double>(c.heads * c.head_dim);
  const double kv = static_cast<double>(c.kv_heads * c.head_dim);
  const double hidden = static_cast<double>(c.hidden);
  const double ffn_matrices = c.activation == Activation::kSwiglu ? 3 : 2;
  const double projections =
      2 * rows * hidden * ((q + 2 * kv) + q + ffn_matrices * static_cast<double>(c.ffn));
  const double scores = rows * seq * q;  // one product of causal attention: 2 * rows * (seq / 2) * q
  block->forward_attention_flops = 2 * scores;
  block->backward_attention_flops = 5 * scores;
  block->forward_flops = projections + block->forward_attention_flops;
  block->rest_flops = 2 * rows * hidden * (ffn_matrices - 1) * static_cast<double>(c.ffn);
  block->backward_flops = 2 * projections + block->backward_attention_flops;
}

// Reads and writes of elements. Forward: a norm (2), a residual sum with the norm of it (4), another sum (3),
// the rotation of queries and keys (2), the activation. Backward: the norms and the activation again, their
// gradients, the rotation back.
void CountTransformerBytes(const ModelConfig& c, double rows, double element, Block* block) {
  const double hidden = static_cast<double>(c.hidden);
  const double ffn = static_cast<double>(c.ffn);
  const bool gated = c.activation == Activation::kSwiglu;
  const double rotated =
      c.architecture == Architecture::kLlama ? static_cast<double>((c.heads + c.kv_heads) * c.head_dim) : 0;
  block->forward_touched_bytes = rows * element * (9 * hidden + 2 * rotated + (gated ? 3 : 2) * ffn);
  block->backward_touched_bytes = rows * element * (12 * hidden + 2 * rotated + (gated ? 8 : 5) * ffn);
  // Of what attention adds, and of what the MLP adds.
  if (c.dropout.residual > 0) block->dropout_elements = 2 * rows * hidden;
}

std::vector<Block> MakeBlocks(const ModelLayout& layout) {
  const ModelConfig& c = layout.config;
  const DType type = layout.compute_dtype;
  const double rows = static_cast<double>(layout.micro_batch * layout.seq);
  const int first_layer = c.architecture == Architecture::kGpt2 ? 2 : 1;
  const int final_norm = first_layer + static_cast<int>(c.layers);

  std::vector<Block> blocks;
  Block embedding;
  embedding.kind = BlockKind::kEmbedding;
  for (int unit = 0; unit < first_layer; ++unit) embedding.units.push_back(unit);
  const double hidden = static_cast<double>(c.hidden);
  const double vocab = static_cast<double>(c.vocab);
  const double element = static_cast<double>(SizeOf(type));
  // Dropout's gradient has a place of its own: what came from above is only read.
  if (c.dropout.embedding > 0) embedding.backward_workspace_bytes = layout.activation_bytes;
  if (c.dropout.embedding > 0) embedding.dropout_elements = rows * hidden;
  embedding.forward_touched_bytes = 2 * rows * hidden * element;
  // The whole gradient is written; rows that occur are added to it.
  embedding.backward_touched_bytes =
      hidden * static_cast<double>(SizeOf(layout.acc_dtype())) * (vocab + 2 * rows);
  blocks.push_back(std::move(embedding));

  Block layer;
  layer.kind = BlockKind::kTransformer;
  const TransformerSaved saved = MakeTransformerSaved(c, type, layout.micro_batch, layout.seq);
  layer.saved_bytes = saved.bytes;
  layer.saved_rest_bytes = saved.rest_bytes;
  layer.forward_workspace_bytes = MakeTransformerForwardWorkspace(c, type, layout.micro_batch, layout.seq,
                                                                  layout.gemm_library, layout.fp8)
                                      .bytes;
  layer.backward_workspace_bytes = MakeTransformerBackwardWorkspace(c, type, layout.micro_batch, layout.seq,
                                                                    layout.gemm_library, layout.fp8)
                                       .bytes;
  CountTransformerFlops(c, rows, static_cast<double>(layout.seq), &layer);
  CountTransformerBytes(c, rows, element, &layer);
  layer.fp8 = layout.fp8;
  for (int i = 0; i < c.layers; ++i) {
    layer.layer = i;
    layer.units = {first_layer + i};
    blocks.push_back(layer);
  }

  Block head;
  head.kind = BlockKind::kHead;
  head.units = {final_norm, c.tied_head ? 0 : final_norm + 1};
  head.forward_workspace_bytes =
      MakeHeadWorkspace(c, type, layout.micro_batch, layout.seq, layout.gemm_library).bytes;
  head.backward_workspace_bytes = head.forward_workspace_bytes;
  head.forward_flops = 2 * rows * hidden * vocab;
  head.backward_flops = 3 * head.forward_flops;  // LOSS is forward and backward
  head.forward_touched_bytes = rows * element * (2 * hidden + 2 * vocab);
  head.backward_touched_bytes = rows * element * (8 * hidden + 3 * vocab);
  blocks.push_back(std::move(head));
  return blocks;
}

}  // namespace

int64_t ModelLayout::total_elements() const {
  int64_t sum = 0;
  for (const ParamUnit& unit : units) sum += unit.elements;
  return sum;
}

int64_t ModelLayout::parameter_count() const {
  int64_t sum = 0;
  for (const ParamUnit& unit : units) {
    for (const TensorInfo& tensor : unit.tensors) sum += tensor.elements;
  }
  return sum;
}

absl::StatusOr<ModelLayout> BuildModelLayout(const ModelConfig& config, DType compute_dtype,
                                             int64_t micro_batch, int64_t seq, GemmLibrary gemm_library,
                                             bool fp8) {
  STRATA_RETURN_IF_ERROR(CheckConfig(config));
  if (compute_dtype == DType::kI32) return Bad("compute_dtype", "i32 is not a type to compute in");
  STRATA_RETURN_IF_ERROR(CheckRange("seq", seq, kMaxRows));
  if (seq > config.max_seq) {
    return Bad("seq", absl::StrCat(seq, " is more than the model's max_seq ", config.max_seq,
                                   "; shorten the sequences or raise max_seq"));
  }
  STRATA_RETURN_IF_ERROR(CheckRange("micro_batch", micro_batch, kMaxRows / seq));

  if (fp8) STRATA_RETURN_IF_ERROR(CheckFp8(config, compute_dtype, micro_batch * seq));

  // Before anything is built layer by layer: is the model of a size that exists?
  const double q = static_cast<double>(config.heads * config.head_dim);
  const double elements = static_cast<double>(config.layers) * static_cast<double>(config.hidden) *
                              (4 * q + 3 * static_cast<double>(config.ffn)) +
                          (2 * static_cast<double>(config.vocab) + static_cast<double>(config.max_seq)) *
                              static_cast<double>(config.hidden);
  if (elements > static_cast<double>(kMaxElements)) {
    return Bad("layers", absl::StrCat("a model of about ", elements, " parameters is more than ",
                                      kMaxElements, "; lower layers, hidden, ffn or vocab"));
  }

  ModelLayout layout;
  layout.config = config;
  layout.compute_dtype = compute_dtype;
  layout.gemm_library = gemm_library;
  layout.fp8 = fp8;
  layout.micro_batch = micro_batch;
  layout.seq = seq;
  layout.units = MakeUnits(config);
  layout.activation_bytes = micro_batch * seq * config.hidden * SizeOf(compute_dtype);
  layout.token_bytes = 2 * micro_batch * seq * SizeOf(DType::kI32);
  layout.blocks = MakeBlocks(layout);
  return layout;
}

}  // namespace strata
