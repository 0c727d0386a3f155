#include "kernels/optimizer/cast.h"

#include <cstring>

#include "common/bfloat16.h"
#include "common/check.h"
#include "kernels/optimizer/bfloat16_pack.h"
#include "kernels/optimizer/parallel.h"

namespace strata {
namespace {

void CastScalar(const float* master, BFloat16* params, int64_t n) {
  for (int64_t i = 0; i < n; ++i) params[i] = ToBFloat16(master[i]);
}

#if STRATA_OPTIMIZER_X86
STRATA_TARGET_AVX2 void CastAvx2(const float* master, BFloat16* params, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(params + i), PackBFloat16(_mm256_loadu_ps(master + i)));
  }
  CastScalar(master + i, params + i, n - i);
}

STRATA_TARGET_AVX512 void CastAvx512(const float* master, BFloat16* params, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(params + i), PackBFloat16(_mm512_loadu_ps(master + i)));
  }
  CastScalar(master + i, params + i, n - i);
}
#endif

}  // namespace

void CastParamsOnIsa(Isa isa, const float* master, void* params, DType params_dtype, int64_t n, int threads) {
  if (params_dtype == DType::kF32) {
    ForEachPart(n, threads, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<float*>(params) + begin, master + begin, (end - begin) * sizeof(float));
    });
    return;
  }
  STRATA_CHECK(params_dtype == DType::kBF16);
  auto cast = CastScalar;
#if STRATA_OPTIMIZER_X86
  if (isa == Isa::kAvx512) cast = CastAvx512;
  if (isa == Isa::kAvx2) cast = CastAvx2;
#endif
  ForEachPart(n, threads, [&](int64_t begin, int64_t end) {
    cast(master + begin, static_cast<BFloat16*>(params) + begin, end - begin);
  });
}

void CastParams(const float* master, void* params, DType params_dtype, int64_t n, int threads) {
  CastParamsOnIsa(BestIsa(), master, params, params_dtype, n, threads);
}

}  // namespace strata
