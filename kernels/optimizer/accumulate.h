// Gradient accumulation in host memory.
#ifndef KERNELS_OPTIMIZER_ACCUMULATE_H_
#define KERNELS_OPTIMIZER_ACCUMULATE_H_

#include <cstdint>

namespace strata {

// acc[i] += x[i] for n elements; the ranges do not overlap. Bits do not depend on threads or instruction set.
void Accumulate(float* acc, const float* x, int64_t n, int threads = 1);

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_ACCUMULATE_H_
