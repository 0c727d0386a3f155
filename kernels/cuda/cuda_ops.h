// Ops by the kernels of kernels/*/launch.h. Compiled once by the host compiler; what it links decides where
// it runs: the nvcc objects (a GPU; in the plugin only) or the emulator (tests).
#ifndef KERNELS_CUDA_CUDA_OPS_H_
#define KERNELS_CUDA_CUDA_OPS_H_

#include <memory>

#include "kernels/cuda/attention_backend.h"
#include "kernels/cuda/gemm_provider.h"
#include "kernels/ops.h"

namespace strata {

// `compute` is kF32, kBF16 or kF16. `gemm` and `attention` outlive the result. A Stream* is a cudaStream_t;
// calls enqueue and return (the emulator runs them at once). CrossEntropy's loss may be page-locked host
// memory. Errors of a launch are kInternal with CUDA's text; of shapes as in kernels/ops.h. kUnimplemented:
// attention in kF32 or of a head dimension that no kernel has. Threads: any, one per stream.
std::unique_ptr<Ops> MakeCudaOps(DType compute, GemmProvider& gemm, AttentionBackend& attention);

}  // namespace strata

#endif  // KERNELS_CUDA_CUDA_OPS_H_
