// GemmProvider: who multiplies matrices for CudaOps. cuBLASLt on a GPU; in emulation the plain loops of
// kernels/reference.
#ifndef KERNELS_CUDA_GEMM_PROVIDER_H_
#define KERNELS_CUDA_GEMM_PROVIDER_H_

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

class GemmProvider {
 public:
  virtual ~GemmProvider() = default;

  // As Ops::Gemm: enqueued on `stream`, the same bits for the same arguments. `compute` is kF32, kBF16 or
  // kF16; the arguments have passed Validate (kernels/validate.h). Threads: one at a time per stream.
  virtual absl::Status Gemm(Stream* stream, DType compute, const GemmArgs& args) = 0;
};

}  // namespace strata

#endif  // KERNELS_CUDA_GEMM_PROVIDER_H_
