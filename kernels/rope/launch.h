// Rotary embedding on the device: arguments as in kernels/op_args.h, checked by the caller.
#ifndef KERNELS_ROPE_LAUNCH_H_
#define KERNELS_ROPE_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"
#include "kernels/op_args.h"

namespace strata::gpu {

kx::LaunchStatus Rope(kx::Stream stream, DType dtype, const RopeArgs& args);

}  // namespace strata::gpu

#endif  // KERNELS_ROPE_LAUNCH_H_
