#include "kernels/optimizer/cast.h"

#include <cstring>

#include "common/check.h"
#include "kernels/optimizer/half_pack.h"
#include "kernels/optimizer/parallel.h"

namespace strata {
namespace {

template <typename Half>
void CastScalar(const float* master, Half* params, int64_t n) {
  for (int64_t i = 0; i < n; ++i) params[i] = RoundTo<Half>(master[i]);
}

#if STRATA_OPTIMIZER_X86
template <typename Half>
STRATA_TARGET_AVX2 void CastAvx2(const float* master, Half* params, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(params + i), PackHalf<Half>(_mm256_loadu_ps(master + i)));
  }
  CastScalar(master + i, params + i, n - i);
}

template <typename Half>
STRATA_TARGET_AVX512 void CastAvx512(const float* master, Half* params, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(params + i), PackHalf<Half>(_mm512_loadu_ps(master + i)));
  }
  CastScalar(master + i, params + i, n - i);
}
#endif

template <typename Half>
void CastToHalf(Isa isa, const float* master, Half* params, int64_t n, int threads) {
  auto cast = CastScalar<Half>;
#if STRATA_OPTIMIZER_X86
  if (isa == Isa::kAvx512) cast = CastAvx512<Half>;
  if (isa == Isa::kAvx2) cast = CastAvx2<Half>;
#endif
  ForEachPart(n, threads,
              [&](int64_t begin, int64_t end) { cast(master + begin, params + begin, end - begin); });
}

}  // namespace

void CastParamsOnIsa(Isa isa, const float* master, void* params, DType params_dtype, int64_t n, int threads) {
  switch (params_dtype) {
    case DType::kBF16:
      return CastToHalf(isa, master, static_cast<BFloat16*>(params), n, threads);
    case DType::kF16:
      return CastToHalf(isa, master, static_cast<Float16*>(params), n, threads);
    default:
      STRATA_CHECK(params_dtype == DType::kF32);
      ForEachPart(n, threads, [&](int64_t begin, int64_t end) {
        std::memcpy(static_cast<float*>(params) + begin, master + begin, (end - begin) * sizeof(float));
      });
  }
}

void CastParams(const float* master, void* params, DType params_dtype, int64_t n, int threads) {
  CastParamsOnIsa(BestIsa(), master, params, params_dtype, n, threads);
}

}  // namespace strata
