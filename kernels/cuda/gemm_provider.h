// GemmProvider: who multiplies matrices for CudaOps. cuBLASLt on a GPU; in emulation the plain loops of
// kernels/reference.
#ifndef KERNELS_CUDA_GEMM_PROVIDER_H_
#define KERNELS_CUDA_GEMM_PROVIDER_H_

#include "absl/status/status.h"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace strata {

// C[m, n] = A[m, k] * B[n, k]^T * a_scale * b_scale (+ C if accumulate): the one layout that the tensor cores
// take in fp8. A and B are fp8 with one scale per tensor (`*_scale`: float in device memory, what a stored
// value is multiplied with); not both E5M2. m is free, n and k are multiples of 16, leading dimensions and
// pointers too.
struct Fp8GemmArgs {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  int64_t lda = 0;
  Fp8 a_type = Fp8::kE4M3;
  const float* a_scale = nullptr;
  const void* b = nullptr;
  int64_t ldb = 0;
  Fp8 b_type = Fp8::kE4M3;
  const float* b_scale = nullptr;
  void* c = nullptr;
  int64_t ldc = 0;
  DType c_type = DType::kBF16;  // kBF16, kF16 or kF32
  bool accumulate = false;
  const void* bias = nullptr;      // [n] of c_type, which is then kBF16 or kF16
  bool fast_accumulation = false;  // sums in fewer bits: for forward passes
  Workspace workspace;
};

class GemmProvider {
 public:
  virtual ~GemmProvider() = default;

  // As Ops::Gemm: enqueued on `stream`, the same bits for the same arguments. `compute` is kF32, kBF16 or
  // kF16; the arguments have passed Validate (kernels/validate.h). Threads: one at a time per stream.
  virtual absl::Status Gemm(Stream* stream, DType compute, const GemmArgs& args) = 0;
  // The same of operands that are fp8 already. Refuses what Fp8GemmArgs excludes: kInvalidArgument.
  virtual absl::Status Fp8Gemm(Stream* stream, const Fp8GemmArgs& args) = 0;
};

}  // namespace strata

#endif  // KERNELS_CUDA_GEMM_PROVIDER_H_
