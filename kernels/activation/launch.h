// Activations on the device: arguments as in kernels/ops.h, checked by the caller.
#ifndef KERNELS_ACTIVATION_LAUNCH_H_
#define KERNELS_ACTIVATION_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"
#include "kernels/op_args.h"

namespace strata::gpu {

kx::LaunchStatus GeluForward(kx::Stream stream, DType dtype, GeluKind kind, int64_t n, const void* x,
                             void* y);
kx::LaunchStatus GeluBackward(kx::Stream stream, DType dtype, GeluKind kind, int64_t n, const void* x,
                              const void* dy, void* dx);
kx::LaunchStatus SwigluForward(kx::Stream stream, DType dtype, int64_t rows, int64_t ffn, const void* x,
                               void* y);
kx::LaunchStatus SwigluBackward(kx::Stream stream, DType dtype, int64_t rows, int64_t ffn, const void* x,
                                const void* dy, void* dx);

}  // namespace strata::gpu

#endif  // KERNELS_ACTIVATION_LAUNCH_H_
