// Cross-entropy on the device: arguments as in kernels/op_args.h, checked by the caller.
#ifndef KERNELS_LOSS_LAUNCH_H_
#define KERNELS_LOSS_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"
#include "kernels/op_args.h"

namespace strata::gpu {

kx::LaunchStatus CrossEntropy(kx::Stream stream, DType dtype, const CrossEntropyArgs& args);

}  // namespace strata::gpu

#endif  // KERNELS_LOSS_LAUNCH_H_
