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
#include "kernels/op_args.h"

namespace strata {

struct Stream;  // opaque; owned by the Device

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

  virtual absl::Status Dropout(Stream* stream, const DropoutArgs& args) = 0;

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
