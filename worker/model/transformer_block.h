// One transformer block, pre-norm with two residual branches:
//     h = x + W_o attention(q, k, v),  q | k | v = W_qkv norm1(x)  (Llama: q and k rotated)
//     y = h + W_down act(W_in norm2(h))
// In training, dropout takes elements of what either branch adds (residual dropout, GPT-2).
// GPT-2: LayerNorm, GELU, biases, weights [in, out]. Llama: RMSNorm, SwiGLU, no biases, weights [out, in].
// Of a Llama block, q, k, v (and gate, up) are one GEMM where they are one matrix in memory, else two or
// three into columns of the same buffer.
#ifndef WORKER_MODEL_TRANSFORMER_BLOCK_H_
#define WORKER_MODEL_TRANSFORMER_BLOCK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "offload/exec/block_compute.h"
#include "offload/model/model_layout.h"
#include "offload/model/saved_layout.h"
#include "worker/model/activation_dropout.h"
#include "worker/model/block_math.h"

namespace strata {

// All transformer blocks of a model have the same shapes and places, so one object serves them all.
class TransformerBlock {
 public:
  // `unit`: the unit of any layer. The layout and `ops` outlive the block.
  // `seed`: of dropout.
  TransformerBlock(const ModelLayout& layout, const ParamUnit& unit, Ops& ops, uint64_t seed);

  // BlockCompute's calls; arguments have been checked.
  absl::Status Forward(Stream* stream, const BlockArgs& args) const;
  absl::Status RecomputeRest(Stream* stream, const BlockArgs& args) const;
  absl::Status Backward(Stream* stream, const BlockArgs& args) const;

 private:
  // Linear layers side by side: layer i writes columns from columns[i] on.
  struct LinearGroup {
    std::vector<Linear> layers;
    std::vector<int64_t> columns;
    int64_t out = 0;

    void Add(const Linear& layer);
  };

  absl::Status GroupForward(BlockMath& math, const LinearGroup& group, const void* x, const void* params,
                            void* y) const;
  // dx = sum over the layers; parameter gradients overwritten.
  absl::Status GroupBackward(BlockMath& math, const LinearGroup& group, const void* x, const void* dy,
                             const void* params, void* dx, void* grads) const;
  // The MLP's input projection: from norm2's output in the workspace to `saved_rest`.
  absl::Status FfnInForward(BlockMath& math, const BlockArgs& args) const;
  absl::Status Rotate(BlockMath& math, void* qkv, bool inverse) const;
  AttentionArgs MakeAttention(BlockMath& math, const void* saved) const;
  absl::Status ActivationForward(BlockMath& math, const void* in, void* out) const;
  absl::Status ActivationBackward(BlockMath& math, const void* in, const void* dout, void* din) const;

  // The two halves of Backward: args.grad goes from dy to dh, then from dh to dx.
  absl::Status MlpBackward(BlockMath& math, const BlockArgs& args) const;
  absl::Status AttentionBackward(BlockMath& math, const BlockArgs& args) const;
  // The gradient of what a branch adds to the stream: args.grad, or what dropout leaves of it, in `range`.
  absl::StatusOr<ConstMatrixView> BranchGradient(BlockMath& math, const BlockArgs& args, int64_t place,
                                                 const BufferRange& range) const;

  const ModelConfig& config_;
  const ParamUnit& unit_;
  Ops& ops_;
  bool fp8_;
  int64_t batch_, seq_, rows_;
  int64_t q_width_, kv_width_;
  ActivationDropout dropout_;
  Norm norm1_, norm2_;
  LinearGroup qkv_, ffn_in_;
  Linear attention_out_, ffn_out_;
  TransformerSaved saved_;
  TransformerForwardWorkspace forward_;
  TransformerBackwardWorkspace backward_;
};

}  // namespace strata

#endif  // WORKER_MODEL_TRANSFORMER_BLOCK_H_
