#include "kernels/cuda/reference_gemm.h"

#include "kernels/reference/reference_ops.h"

namespace strata {

absl::Status ReferenceGemm::Gemm(Stream* stream, DType compute, const GemmArgs& args) {
  return MakeReferenceOps(compute)->Gemm(stream, args);
}

}  // namespace strata
