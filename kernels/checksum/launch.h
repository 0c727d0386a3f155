// CRC-32C of device memory, in pieces.
#ifndef KERNELS_CHECKSUM_LAUNCH_H_
#define KERNELS_CHECKSUM_LAUNCH_H_

#include <cstdint>

#include "kernels/kx/launch_types.h"

namespace strata::gpu {

// As StateOps::Checksums (kernels/state_ops.h), whose arguments have been checked. Nothing is launched for no
// bytes.
kx::LaunchStatus Checksums(kx::Stream stream, const void* data, int64_t bytes, uint32_t* crcs);

}  // namespace strata::gpu

#endif  // KERNELS_CHECKSUM_LAUNCH_H_
