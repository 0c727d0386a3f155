// Attention as graphs of cuDNN's backend. An engine that recognises the pattern runs it as one kernel or a
// few and never writes the square of scores to memory.
#ifndef KERNELS_CUDNN_ATTENTION_GRAPH_H_
#define KERNELS_CUDNN_ATTENTION_GRAPH_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kernels/cudnn/cudnn_graph.h"
#include "kernels/dtype.h"

namespace strata {

// What a plan depends on. Strides as in AttentionArgs and AttentionBackwardArgs.
struct CudnnAttentionShape {
  DType dtype = DType::kBF16;
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t ldq = 0, ldk = 0, ldv = 0, ldo = 0;
  int64_t window = 0;  // a query sees this many keys, its own the last; 0: all up to its own
  bool backward = false;
  // Of the backward pass. `deterministic`: repeated runs give the same bits, for a workspace with the square
  // of the scores; else dQ is summed in the order in which blocks come.
  bool deterministic = true;
  int64_t lddo = 0, lddq = 0, lddk = 0, lddv = 0;

  auto operator<=>(const CudnnAttentionShape&) const = default;
};
std::string ToText(const CudnnAttentionShape& shape);

// Names of the tensors that a caller binds.
enum CudnnTensorId : int64_t {
  kCudnnQ = 1,
  kCudnnK,
  kCudnnV,
  kCudnnO,
  kCudnnStats,   // float [batch, heads, seq]: AttentionArgs::lse
  kCudnnScale,   // float, by value, as all scalars
  kCudnnHidden,  // float: what the score of a hidden key becomes (HiddenScore)
  kCudnnWindow,  // int32, where the shape has one
  kCudnnOne,     // float; this and the rest: of the backward pass
  kCudnnDO,
  kCudnnDQ,
  kCudnnDK,
  kCudnnDV,
  kCudnnRowSums,  // float [batch, heads, seq], scratch: of dO * O
  kCudnnDQSums,   // float [batch, heads, seq, head_dim], scratch, unless deterministic
};

// forward:   S = scale * Q K^T, masked; stats = log of the sum of exp(S); O = softmax(S) V
// backward:  P = exp(scale * Q K^T - stats), masked; dV = P^T dO; dP = dO V^T;
//            dS = scale * P * (dP - rowsum(dO * O)); dQ = dS K; dK = dS^T Q
// With fewer kv heads, dK and dV are sums over the heads of a group.
// By the library's front end: versions before 9.10 want the lowest number, later ones minus infinity.
float HiddenScore(size_t version);

absl::Status BuildCudnnAttention(const CudnnAttentionShape& shape, CudnnGraph& graph);

}  // namespace strata

#endif  // KERNELS_CUDNN_ATTENTION_GRAPH_H_
