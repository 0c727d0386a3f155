// The arguments of the ops (ops.h) as plain structs: what kernels are launched with, on any target.
#ifndef KERNELS_OP_ARGS_H_
#define KERNELS_OP_ARGS_H_

#include <cmath>
#include <cstdint>

namespace strata {

struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

// 8-bit floats (kernels/fp8/fp8_format.h).
enum class Fp8 : uint8_t {
  kE4M3,  // activations, weights
  kE5M2,  // gradients
};

// C[m, n] = op(A)[m, k] * op(B)[k, n] (+ C if accumulate) (+ bias[n] if given).
// A is T, stored [m, k] (or [k, m] when transpose_a); B is T, stored [k, n] (or [n, k] when
// transpose_b). C is T, or acc when c_is_acc, which goes without bias: libraries add one of C's type only.
// bias is T. Sums are taken in acc.
// With fp8, of T = kBF16, A and B are first rounded to a_type and b_type (not both kE5M2), each with its
// matrix's scale; m, n, k, the leading dimensions of A, B and C are multiples of 16 and the matrices aligned
// to 16 bytes. An element that is not finite makes what it is a factor of a NaN.
struct GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t lda = 0;
  bool transpose_a = false;
  const void* b = nullptr;
  int64_t ldb = 0;
  bool transpose_b = false;
  void* c = nullptr;
  int64_t ldc = 0;
  bool c_is_acc = false;
  bool accumulate = false;
  const void* bias = nullptr;
  Workspace workspace;  // GemmWorkspaceBytes, with fp8 Fp8GemmWorkspaceBytes
  bool fp8 = false;
  Fp8 a_type = Fp8::kE4M3, b_type = Fp8::kE4M3;
};

enum class NormKind : uint8_t {
  kLayerNorm,  // y = (x - mean) * rstd * weight + bias
  kRmsNorm,    // y = x * rstd * weight
};

// x, y: T [rows, width]; weight, bias: T [width]; mean, rstd: acc [rows] (mean unused for RMSNorm).
// With `residual` (T [rows, width]), in one pass: sum = x + residual, and y is the norm of the sum as it was
// rounded to T. sum may be x or residual. The bits are those of Ops::Add and then of a norm of its result.
struct NormArgs {
  NormKind kind = NormKind::kRmsNorm;
  int64_t rows = 0, width = 0;
  double eps = 1e-5;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  void* mean = nullptr;
  void* rstd = nullptr;
  const void* residual = nullptr;
  void* sum = nullptr;  // with residual only
};

// dx (T) += the gradient through the norm, so that what came along the residual path stays in it; dweight,
// dbias (acc [width]) are overwritten.
struct NormBackwardArgs {
  NormKind kind = NormKind::kRmsNorm;
  int64_t rows = 0, width = 0;
  const void* x = nullptr;
  const void* weight = nullptr;
  const void* dy = nullptr;
  const void* mean = nullptr;
  const void* rstd = nullptr;
  void* dx = nullptr;
  void* dweight = nullptr;
  void* dbias = nullptr;  // LayerNorm only
  Workspace workspace;
};

// Rotary position embedding in place (RoFormer), half-split pairing (x[i], x[i + dim/2]) as in Llama.
// x: T, `heads` heads of `head_dim` at x + row * ld; the position of row r is r % seq. `inverse` rotates
// back (the backward pass). Angles are position * theta^(-2 i / head_dim), computed in double.
struct RopeArgs {
  int64_t rows = 0, seq = 0, heads = 0, head_dim = 0, ld = 0;
  double theta = 10000;
  void* x = nullptr;
  bool inverse = false;
};

// Causal softmax(q k^T * scale) v per sequence, grouped-query: query head h uses kv head
// h / (heads / kv_heads). Never builds a seq x seq matrix: tiles with online softmax (FlashAttention,
// Dao et al. 2022). Row r = b * seq + s; q at q + r * ldq + h * head_dim; k, v, out likewise.
// lse: acc [batch, heads, seq], log-sum-exp of the scaled scores.
struct AttentionArgs {
  int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, head_dim = 0;
  double scale = 0;  // > 0
  const void* q = nullptr;
  int64_t ldq = 0;
  const void* k = nullptr;
  int64_t ldk = 0;
  const void* v = nullptr;
  int64_t ldv = 0;
  void* out = nullptr;
  int64_t ldo = 0;
  void* lse = nullptr;
  Workspace workspace;
};

// dq, dk, dv (T, leading dimensions lddq, lddk, lddv) are overwritten.
struct AttentionBackwardArgs {
  AttentionArgs forward;  // out and lse as the forward pass left them
  const void* dout = nullptr;
  int64_t lddo = 0;
  void* dq = nullptr;
  int64_t lddq = 0;
  void* dk = nullptr;
  int64_t lddk = 0;
  void* dv = nullptr;
  int64_t lddv = 0;
};

enum class GeluKind : uint8_t { kTanh, kErf };

// out[i] = x[i] / (1 - drop) where element i is kept, else 0; n elements of T; out may be x. The gradient is
// the same call on dy. What is kept depends on seed, step, tensor and the element's position in the tensor,
// first + i, alone: the forward pass, the same computed again, the backward pass and any piece of the tensor
// draw the same, on every backend. It is kept when word position % 4 of the Philox4x32 block
// (common/random.h) {position / 4 in two words, low one first; tensor; step} under the key `seed` is below
// keep_below().
struct DropoutArgs {
  int64_t n = 0;
  double drop = 0;      // probability, 0 <= drop < 1
  uint64_t seed = 0;    // of the run
  uint32_t step = 0;    // optimizer step
  uint32_t tensor = 0;  // which dropout of the model
  int64_t first = 0;    // >= 0
  const void* x = nullptr;
  void* out = nullptr;

  uint64_t keep_below() const { return static_cast<uint64_t>(std::llround((1 - drop) * 0x1p32)); }
  double scale() const { return 1 / (1 - drop); }  // rounded to acc before it is multiplied with
};

// logits: T [rows, vocab] (ld = vocab); targets: int32 [rows]; a target of -1 is masked: no loss, no
// gradient. loss: double[2], += {sum of the rows' losses by a fixed tree, unmasked rows}. With `gradient`,
// logits are replaced by (softmax - onehot) * gradient_scale (masked rows: zero).
struct CrossEntropyArgs {
  int64_t rows = 0, vocab = 0;
  void* logits = nullptr;
  const int32_t* targets = nullptr;
  double* loss = nullptr;
  bool gradient = false;
  double gradient_scale = 1;
  Workspace workspace;
};

}  // namespace strata

#endif  // KERNELS_OP_ARGS_H_
