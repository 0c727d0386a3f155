// Addition, dropout and clearing on the device.
#ifndef KERNELS_ELEMENTWISE_LAUNCH_H_
#define KERNELS_ELEMENTWISE_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"
#include "kernels/op_args.h"

namespace strata::gpu {

// out[i] = a[i] + b[i], T; out may be a or b.
kx::LaunchStatus Add(kx::Stream stream, DType dtype, int64_t n, const void* a, const void* b, void* out);

// Zero bytes; none is no launch.
kx::LaunchStatus Clear(kx::Stream stream, void* data, int64_t bytes);

// Ops::Dropout.
kx::LaunchStatus Dropout(kx::Stream stream, DType dtype, const DropoutArgs& args);

}  // namespace strata::gpu

#endif  // KERNELS_ELEMENTWISE_LAUNCH_H_
