// StateOps: math on model states (gradients, optimizer records) as the offload engine needs it, on a host or
// a device. Every implementation gives the same bits (architecture: numerics contract): AdamW is one
// definition with FMA everywhere, sums of squares have one fixed tree, so where a state lives is invisible.
#ifndef KERNELS_STATE_OPS_H_
#define KERNELS_STATE_OPS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

// Decoupled weight decay (Loshchilov and Hutter 2019), as torch.optim.AdamW. All ranges have n elements.
struct AdamWStep {
  int64_t n = 0;
  const float* grad = nullptr;
  float* master = nullptr;  // updated in place, like m and v
  float* m = nullptr;
  float* v = nullptr;
  void* params = nullptr;  // the low-precision copy, written: params_dtype (kF32, kBF16 or kF16)
  DType params_dtype = DType::kBF16;
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;      // 1 for the first update: bias corrections are computed from it in double
  float grad_scale = 1;  // multiplied into the gradient first (clipping)
};

// m and v in eight bits (kernels/optimizer/code8.h): a code for each of n elements, and a scale for each
// block of 64 of them, of which the last may be shorter. All are updated in place; all zero at first.
struct Code8Moments {
  uint8_t* m = nullptr;
  uint8_t* v = nullptr;
  float* m_scale = nullptr;
  float* v_scale = nullptr;
};

class StateOps {
 public:
  virtual ~StateOps() = default;

  virtual absl::Status AdamW(Stream* stream, const AdamWStep& step) = 0;

  // The same on m and v in eight bits. `step` has none of its own.
  virtual absl::Status AdamW8(Stream* stream, const AdamWStep& step, const Code8Moments& moments) = 0;

  // params = master rounded to params_dtype: what an update that is skipped still has to write.
  virtual absl::Status CastParams(Stream* stream, const float* master, void* params, DType params_dtype,
                                  int64_t n) = 0;

  // *sum = the sum of squares of x[0..n) in double, over leaves of 4096 elements from x[0] on, joined by a
  // fixed pairwise tree; not finite exactly when some element is not. *first_bad: index of the first
  // element that is not finite, or -1. Both are host memory, valid when the stream has reached this call.
  virtual absl::Status SumSquares(Stream* stream, const float* x, int64_t n, double* sum,
                                  int64_t* first_bad) = 0;

  // acc[i] += x[i].
  virtual absl::Status Accumulate(Stream* stream, float* acc, const float* x, int64_t n) = 0;

  // crcs[i] = the CRC-32C (common/crc32c.h) of piece i of `data` (kernels/checksum/pieces.h; JoinPieces joins
  // them). `data` is aligned to 16 bytes, `bytes` a multiple of kChecksumBlockBytes. `crcs` is host memory,
  // valid when the stream has reached this call.
  virtual absl::Status Checksums(Stream* stream, const void* data, int64_t bytes, uint32_t* crcs) = 0;
};

}  // namespace strata

#endif  // KERNELS_STATE_OPS_H_
