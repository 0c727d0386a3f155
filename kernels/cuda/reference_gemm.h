// GEMMs by the loops of kernels/reference, on the calling thread and in host memory: for the emulator.
#ifndef KERNELS_CUDA_REFERENCE_GEMM_H_
#define KERNELS_CUDA_REFERENCE_GEMM_H_

#include "kernels/cuda/gemm_provider.h"

namespace strata {

class ReferenceGemm final : public GemmProvider {
 public:
  absl::Status Gemm(Stream* stream, DType compute, const GemmArgs& args) override;
  absl::Status Fp8Gemm(Stream* stream, const Fp8GemmArgs& args) override;
};

}  // namespace strata

#endif  // KERNELS_CUDA_REFERENCE_GEMM_H_
