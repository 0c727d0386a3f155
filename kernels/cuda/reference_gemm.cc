#include "kernels/cuda/reference_gemm.h"

#include "common/bfloat16.h"
#include "common/check.h"
#include "kernels/fp8/fp8_format.h"
#include "kernels/reference/reference_ops.h"

namespace strata {

absl::Status ReferenceGemm::Gemm(Stream* stream, DType compute, const GemmArgs& args) {
  return MakeReferenceOps(compute)->Gemm(stream, args);
}

absl::Status ReferenceGemm::Fp8Gemm(Stream*, const Fp8GemmArgs& g) {
  STRATA_CHECK(g.c_type == DType::kBF16 || g.c_type == DType::kF32);
  const auto* const a = static_cast<const uint8_t*>(g.a);
  const auto* const b = static_cast<const uint8_t*>(g.b);
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < g.k; ++p) {
        sum += DecodeFp8(g.a_type, a[i * g.lda + p]) * DecodeFp8(g.b_type, b[j * g.ldb + p]);
      }
      sum *= *g.a_scale * *g.b_scale;
      if (g.bias != nullptr) sum += ToFloat(static_cast<const BFloat16*>(g.bias)[j]);
      const int64_t at = i * g.ldc + j;
      if (g.c_type == DType::kF32) {
        float& c = static_cast<float*>(g.c)[at];
        c = g.accumulate ? c + sum : sum;
      } else {
        BFloat16& c = static_cast<BFloat16*>(g.c)[at];
        c = ToBFloat16(g.accumulate ? ToFloat(c) + sum : sum);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace strata
