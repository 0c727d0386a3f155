// The named sub-buffers of what a block's operations use besides its input and parameters: the saved areas
// (FORWARD writes them, BACKWARD reads them) and the workspaces. One definition: ModelLayout takes its byte
// sizes from here and the model code (worker/model) its addresses, so the plan is the run.
//
// Every buffer starts at a multiple of kBufferAlignment bytes of its area. `rows` = micro_batch * seq;
// T is the compute type and acc the accumulation type of the layout. Pure functions of shapes.
//
// What is saved and what is computed again: BACKWARD never repeats a GEMM or the attention, but norm
// outputs and activation functions are recomputed, since one pass over memory costs less than keeping, and
// perhaps moving between tiers, (2 hidden + ffn) more elements per token.
// What is saved lies in two areas. The first has what attention is needed for; from it the second, `rest`,
// can be computed again with one norm and one GEMM (recompute policy `selective`): two thirds of the bytes of
// a Llama block for about half of its projections' work.
#ifndef OFFLOAD_MODEL_SAVED_LAYOUT_H_
#define OFFLOAD_MODEL_SAVED_LAYOUT_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/gemm_workspace.h"
#include "offload/model/model_config.h"

namespace strata {

inline constexpr int64_t kBufferAlignment = 256;  // bytes

// Positions in ParamUnit::tensors of a transformer block and of the final norm.
enum Gpt2Tensor : int {
  kGpt2Ln1Weight,
  kGpt2Ln1Bias,
  kGpt2AttnWeight,      // [hidden, 3 hidden]
  kGpt2AttnBias,        // [3 hidden]
  kGpt2AttnProjWeight,  // [hidden, hidden]
  kGpt2AttnProjBias,
  kGpt2Ln2Weight,
  kGpt2Ln2Bias,
  kGpt2FcWeight,       // [hidden, ffn]
  kGpt2FcBias,         // [ffn]
  kGpt2MlpProjWeight,  // [ffn, hidden]
  kGpt2MlpProjBias,
  kGpt2TensorCount,
};

enum LlamaTensor : int {
  kLlamaInputNorm,
  kLlamaQ,  // [heads * head_dim, hidden]
  kLlamaK,  // [kv_heads * head_dim, hidden]
  kLlamaV,
  kLlamaO,  // [hidden, heads * head_dim]
  kLlamaPostNorm,
  kLlamaGate,  // [ffn, hidden]
  kLlamaUp,
  kLlamaDown,  // [hidden, ffn]
  kLlamaTensorCount,
};

enum FinalNormTensor : int {
  kFinalNormWeight,
  kFinalNormBias,  // GPT-2 only
};

// Llama: whether q, k, v (gate, up) lie in the unit without padding between them and so are one matrix,
// [(heads + 2 kv_heads) * head_dim, hidden] ([2 ffn, hidden]), for one GEMM.
bool QkvIsOneMatrix(const ModelConfig& config);
bool GateUpIsOneMatrix(const ModelConfig& config);

struct BufferRange {
  int64_t offset = 0;  // bytes from the start of the area
  int64_t bytes = 0;
};

struct TransformerSaved {
  // The first area.
  BufferRange qkv;        // T [rows, (heads + 2 kv_heads) * head_dim]: q | k | v, after RoPE
  BufferRange attention;  // T [rows, heads * head_dim]
  BufferRange lse;        // acc [micro_batch, heads, seq]
  BufferRange residual;   // T [rows, hidden]: the stream between attention and MLP
  int64_t bytes = 0;
  // The rest.
  BufferRange ffn_in;  // T [rows, ffn] (GPT-2), [rows, 2 ffn] gate | up (Llama): before the activation
  int64_t rest_bytes = 0;
};

struct TransformerForwardWorkspace {
  BufferRange normed;      // T [rows, hidden]; shares its place with `activated`
  BufferRange activated;   // T [rows, ffn]
  BufferRange mean, rstd;  // acc [rows]
  BufferRange op;          // the workspace lent to each op
  int64_t bytes = 0;
};

// Two phases share one area: the MLP (activated, ffn_grad, mlp_*), then the attention (attention_grad,
// qkv_grad, attn_*).
struct TransformerBackwardWorkspace {
  BufferRange activated;  // T [rows, ffn]; then its gradient (GPT-2: and that of ffn_in)
  BufferRange ffn_grad;   // T [rows, 2 ffn] (Llama); the same place as `activated` for GPT-2
  BufferRange mlp_normed, mlp_normed_grad;    // T [rows, hidden]
  BufferRange attention_grad;                 // T [rows, heads * head_dim]
  BufferRange qkv_grad;                       // T as TransformerSaved::qkv
  BufferRange attn_normed, attn_normed_grad;  // T [rows, hidden]
  // Residual dropout (GELU models only): the gradient of what MLP and attention add, T [rows, hidden], in
  // places that nothing else needs yet.
  BufferRange mlp_branch_grad, attn_branch_grad;
  BufferRange mean, rstd;  // acc [rows]
  BufferRange op;
  int64_t bytes = 0;
};

struct HeadWorkspace {
  int64_t chunk_rows = 0;  // logits exist for this many rows at a time
  BufferRange normed;      // T [rows, hidden]; then, chunk by chunk, its gradient
  BufferRange mean, rstd;  // acc [rows]
  BufferRange logits;      // T [chunk_rows, vocab]
  BufferRange op;
  int64_t bytes = 0;
};

// Rows of logits that exist at one time: about kLogitsChunkBytes, but not under kMinLogitsChunkRows, since
// each chunk reads and writes the whole accumulated weight gradient (at 128 rows that costs about a seventh
// of the chunk's GEMMs on a CPU); then evened out over the chunks, in multiples of 16.
inline constexpr int64_t kLogitsChunkBytes = int64_t{4} << 20;
inline constexpr int64_t kMinLogitsChunkRows = 128;
int64_t LogitsChunkRows(DType compute, int64_t rows, int64_t vocab);

// The configuration must be one BuildModelLayout accepts: sizes are not checked here.
TransformerSaved MakeTransformerSaved(const ModelConfig& config, DType compute, int64_t micro_batch,
                                      int64_t seq);
TransformerForwardWorkspace MakeTransformerForwardWorkspace(const ModelConfig& config, DType compute,
                                                            int64_t micro_batch, int64_t seq,
                                                            GemmLibrary gemm_library = GemmLibrary::kCpu,
                                                            bool fp8 = false);
TransformerBackwardWorkspace MakeTransformerBackwardWorkspace(const ModelConfig& config, DType compute,
                                                              int64_t micro_batch, int64_t seq,
                                                              GemmLibrary gemm_library = GemmLibrary::kCpu,
                                                              bool fp8 = false);
HeadWorkspace MakeHeadWorkspace(const ModelConfig& config, DType compute, int64_t micro_batch, int64_t seq,
                                GemmLibrary gemm_library = GemmLibrary::kCpu);

}  // namespace strata

#endif  // OFFLOAD_MODEL_SAVED_LAYOUT_H_
