// Addition, dropout and clearing on the device.
#ifndef KERNELS_ELEMENTWISE_LAUNCH_H_
#define KERNELS_ELEMENTWISE_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"

namespace strata::gpu {

// out[i] = a[i] + b[i], T; out may be a or b.
kx::LaunchStatus Add(kx::Stream stream, DType dtype, int64_t n, const void* a, const void* b, void* out);

// Zero bytes; none is no launch.
kx::LaunchStatus Clear(kx::Stream stream, void* data, int64_t bytes);

// What an element of a tensor draws: the same in the forward pass, in the backward pass, when the forward
// pass is recomputed, and however the tensor is split.
struct DropoutDraw {
  uint64_t seed = 0;    // of the run
  uint32_t step = 0;    // optimizer step
  uint32_t tensor = 0;  // which dropout of the model, micro-batch included
  int64_t first = 0;    // position of element 0 in the tensor
  double drop = 0;      // probability, 0 <= drop < 1
};
// out[i] = x[i] / (1 - drop) where element i is kept, else 0; T; out may be x. The gradient is the same
// function of dy.
kx::LaunchStatus Dropout(kx::Stream stream, DType dtype, const DropoutDraw& draw, int64_t n, const void* x,
                         void* out);

}  // namespace strata::gpu

#endif  // KERNELS_ELEMENTWISE_LAUNCH_H_
