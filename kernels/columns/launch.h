// Sums over rows on the device.
#ifndef KERNELS_COLUMNS_LAUNCH_H_
#define KERNELS_COLUMNS_LAUNCH_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"

namespace strata::gpu {

// dbias[j] (float) = the sum over rows of dy[r, j] (T, leading dimension ldy). `workspace` has
// BiasBackwardWorkspaceBytes.
kx::LaunchStatus BiasBackward(kx::Stream stream, DType dtype, int64_t rows, int64_t n, const void* dy,
                              int64_t ldy, void* dbias, void* workspace);

}  // namespace strata::gpu

#endif  // KERNELS_COLUMNS_LAUNCH_H_
