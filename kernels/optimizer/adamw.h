// AdamW on contiguous ranges in host memory: decoupled weight decay (Loshchilov and Hutter, ICLR 2019), the
// update of torch.optim.AdamW, in one pass over 28 bytes per parameter plus the low-precision copy.
//
// The definition, per element, every line one IEEE operation rounded to float (fma rounds once):
//     g  = grad * grad_scale
//     m  = fma(beta1, m, (1 - beta1) * g)
//     v  = fma(beta2, v, ((1 - beta2) * g) * g)
//     d  = fma(sqrt(v), 1 / sqrt(1 - beta2^step), eps)
//     master = fma(-(lr / (1 - beta1^step)), m / d, master * (1 - lr * weight_decay))
//     params = round(master)
// All instruction sets, tails included, follow it: the bits do not depend on the path, on how a range is
// split, or on threads. (The payload of a NaN is not defined.) Denormals are kept: the caller must not have
// set flush-to-zero modes.
#ifndef KERNELS_OPTIMIZER_ADAMW_H_
#define KERNELS_OPTIMIZER_ADAMW_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/optimizer/isa.h"

namespace strata {

struct AdamWParameters {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;  // zero for tensors that do not decay
};

// The constants of one step and one group of tensors, rounded to float once.
struct AdamWScalars {
  float grad_scale = 1;
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float inv_sqrt_bias2 = 1;  // 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^step)
  float decay = 1;      // 1 - lr * weight_decay
};

// `step` counts from 1. Bias corrections come from the integer step in double, by repeated squaring (a fixed
// sequence of IEEE operations, so no library version changes a bit). `grad_scale` multiplies the gradient
// first: the clip coefficient.
AdamWScalars MakeAdamWScalars(const AdamWParameters& hyper, int64_t step, float grad_scale = 1);

// Ranges of n elements that do not overlap; no alignment is needed beyond that of the element types.
struct AdamWRange {
  int64_t n = 0;
  const float* grad = nullptr;
  float* master = nullptr;  // updated in place, like m and v
  float* m = nullptr;
  float* v = nullptr;
  void* params = nullptr;             // written: by params_dtype; nullptr writes none
  DType params_dtype = DType::kBF16;  // kBF16, kF16 or kF32
};

// Thread-safe on different ranges. With threads > 1 an OpenMP team shares the range.
void AdamW(const AdamWScalars& scalars, const AdamWRange& range, int threads = 1);

// The same on a given instruction set, which must be Supported(): tests and benches.
void AdamWOnIsa(Isa isa, const AdamWScalars& scalars, const AdamWRange& range, int threads = 1);

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_ADAMW_H_
