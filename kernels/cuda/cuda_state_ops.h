// StateOps by the kernels of kernels/state and kernels/checksum: the CPU's bits
// (kernels/optimizer/cpu_state_ops.h) on a device.
#ifndef KERNELS_CUDA_CUDA_STATE_OPS_H_
#define KERNELS_CUDA_CUDA_STATE_OPS_H_

#include <cstdint>
#include <memory>

#include "kernels/ops.h"
#include "kernels/state_ops.h"

namespace strata {

// Device memory that MakeCudaStateOps is lent, for sums of squares on up to kCudaStateStreamsMax streams.
inline constexpr int kCudaStateStreamsMax = 8;
int64_t CudaStateScratchBytes();

// `scratch` (aligned to 64 bytes) has at least CudaStateScratchBytes and outlives the result. A Stream* is a
// cudaStream_t. The results of SumSquares and Checksums are page-locked host memory or device memory. Errors:
// as CpuStateOps, and kResourceExhausted for sums of squares on more streams than that, kInternal for a
// launch that failed. Threads: any, one per stream.
std::unique_ptr<StateOps> MakeCudaStateOps(Workspace scratch);

}  // namespace strata

#endif  // KERNELS_CUDA_CUDA_STATE_OPS_H_
