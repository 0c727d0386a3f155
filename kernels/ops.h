// Ops: the device math a transformer needs, one virtual call per kernel. A backend is the CPU
// (kernels/cpu), the float64 reference (kernels/reference) or, later, CUDA.
//
// Contract of every call
//  - Pointers are pointers of the backend's device; the caller owns them and keeps them alive until the
//    work on `stream` has finished. Matrices are row-major; `ld*` is the distance of rows in elements.
//  - `stream` orders the work: a CUDA backend enqueues and returns, the CPU backends run before they
//    return and take nullptr.
//  - T is the compute type given to the backend at construction (kF32, kBF16 or kF16; kF64 for the
//    reference). "acc" is the accumulation type: double for kF64, float for the others. Weight
//    gradients, softmax statistics and norm statistics are stored as acc. So a buffer of T takes
//    elements * SizeOf(T) bytes and a buffer of acc elements * SizeOf(acc).
//  - Results are a pure function of the inputs and shapes: reductions have a fixed order that does not
//    depend on threads (GEMMs: on the fixed number of threads of the backend), so a repeated call gives
//    the same bits.
//  - Nothing is allocated in a call once a shape has been seen: `workspace` is lent by the caller and
//    its size is given by the functions of kernels/workspace.h. `workspace.data` is aligned to 64 bytes;
//    its content is undefined before and after.
//  - Outputs do not alias inputs unless the op says so. Elements between a row's width and its leading
//    dimension are neither read nor written.
//  - Errors: kInvalidArgument for shapes a kernel cannot take (they name the shape), kInternal for a
//    library that failed; inputs are not range-checked otherwise (a token outside [0, vocab) is undefined).
#ifndef KERNELS_OPS_H_
#define KERNELS_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/dtype.h"

namespace strata {

struct Stream;  // opaque; owned by the Device

struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

// C[m, n] = op(A)[m, k] * op(B)[k, n] (+ C if accumulate) (+ bias[n] if given).
// A is T, stored [m, k] (or [k, m] when transpose_a); B is T, stored [k, n] (or [n, k] when
// transpose_b). C is T, or acc when c_is_acc. bias is T. Sums are taken in acc.
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
  Workspace workspace;
};

enum class NormKind : uint8_t {
  kLayerNorm,  // y = (x - mean) * rstd * weight + bias
  kRmsNorm,    // y = x * rstd * weight
};

// x, y: T [rows, width]; weight, bias: T [width]; mean, rstd: acc [rows] (mean unused for RMSNorm).
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
};

// dx (T) += the gradient through the norm; dweight, dbias (acc [width]) are overwritten.
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

class Ops {
 public:
  virtual ~Ops() = default;

  virtual DType compute_dtype() const = 0;
  virtual DType acc_dtype() const = 0;

  virtual absl::Status Gemm(Stream* stream, const GemmArgs& args) = 0;

  virtual absl::Status NormForward(Stream* stream, const NormArgs& args) = 0;
  virtual absl::Status NormBackward(Stream* stream, const NormBackwardArgs& args) = 0;

  virtual absl::Status Rope(Stream* stream, const RopeArgs& args) = 0;

  virtual absl::Status AttentionForward(Stream* stream, const AttentionArgs& args) = 0;
  virtual absl::Status AttentionBackward(Stream* stream, const AttentionBackwardArgs& args) = 0;

  // y[i] = gelu(x[i]), T.
  virtual absl::Status GeluForward(Stream* stream, GeluKind kind, int64_t n, const void* x, void* y) = 0;
  // dx[i] = dy[i] * gelu'(x[i]); dx may be dy.
  virtual absl::Status GeluBackward(Stream* stream, GeluKind kind, int64_t n, const void* x, const void* dy,
                                    void* dx) = 0;

  // y[r, i] = silu(gate) * up with gate = x[r, i], up = x[r, ffn + i]; x: T [rows, 2 ffn], y: T [rows, ffn].
  virtual absl::Status SwigluForward(Stream* stream, int64_t rows, int64_t ffn, const void* x, void* y) = 0;
  // dx: T [rows, 2 ffn], overwritten; dx may be x.
  virtual absl::Status SwigluBackward(Stream* stream, int64_t rows, int64_t ffn, const void* x,
                                      const void* dy, void* dx) = 0;

  // out[i] = a[i] + b[i], T; out may be a or b.
  virtual absl::Status Add(Stream* stream, int64_t n, const void* a, const void* b, void* out) = 0;

  // dbias[j] = sum over rows of dy[r, j] in a fixed tree; dy: T [rows, n] with ldy, dbias: acc, overwritten.
  virtual absl::Status BiasBackward(Stream* stream, int64_t rows, int64_t n, const void* dy, int64_t ldy,
                                    void* dbias, Workspace workspace) = 0;

  // out[r] = wte[tokens[r]] (+ wpe[r % seq] if given); wte: T [vocab, width], wpe: T [>= seq, width], out: T.
  virtual absl::Status EmbeddingForward(Stream* stream, int64_t rows, int64_t seq, int64_t vocab,
                                        int64_t width, const int32_t* tokens, const void* wte,
                                        const void* wpe, void* out) = 0;
  // dwte (acc [vocab, width], overwritten; rows of one token are added in row order) and, if given, dwpe
  // (acc [seq_max, width], overwritten; positions >= seq are zero).
  virtual absl::Status EmbeddingBackward(Stream* stream, int64_t rows, int64_t seq, int64_t vocab,
                                         int64_t width, const int32_t* tokens, const void* dout, void* dwte,
                                         void* dwpe, int64_t seq_max) = 0;

  virtual absl::Status CrossEntropy(Stream* stream, const CrossEntropyArgs& args) = 0;

  // memset to zero bytes, ordered on the stream.
  virtual absl::Status Zero(Stream* stream, void* data, int64_t bytes) = 0;
};

}  // namespace strata

#endif  // KERNELS_OPS_H_
