// Norms on the device: arguments as in kernels/op_args.h, checked by the caller (kernels/validate.h).
#ifndef KERNELS_NORM_LAUNCH_H_
#define KERNELS_NORM_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"
#include "kernels/op_args.h"

namespace strata::gpu {

// `dtype` is T: kF32, kBF16 or kF16.
kx::LaunchStatus NormForward(kx::Stream stream, DType dtype, const NormArgs& args);
kx::LaunchStatus NormBackward(kx::Stream stream, DType dtype, const NormBackwardArgs& args);

}  // namespace strata::gpu

#endif  // KERNELS_NORM_LAUNCH_H_
