// The parameters' copy of master weights: rounding to the 16-bit types, one by one and in vectors, with the
// same bits, and writing what an update leaves.
#ifndef KERNELS_OPTIMIZER_HALF_PACK_H_
#define KERNELS_OPTIMIZER_HALF_PACK_H_

#include <cstdint>
#include <type_traits>

#include "common/bfloat16.h"
#include "common/check.h"
#include "common/float16.h"
#include "kernels/dtype.h"
#include "kernels/optimizer/isa.h"

#if STRATA_OPTIMIZER_X86
#include <immintrin.h>
#endif

namespace strata {

// T is BFloat16 or Float16.
template <typename T>
T RoundTo(float x);
template <>
inline BFloat16 RoundTo<BFloat16>(float x) {
  return ToBFloat16(x);
}
template <>
inline Float16 RoundTo<Float16>(float x) {
  return ToFloat16(x);
}

#if STRATA_OPTIMIZER_X86

template <typename T>
__m256i PackHalf(__m512 x);
template <typename T>
__m128i PackHalf(__m256 x);

// The hardware conversion (vcvtneps2bf16) is not used: it flushes denormals to zero.
template <>
STRATA_TARGET_AVX512 inline __m256i PackHalf<BFloat16>(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
}

template <>
STRATA_TARGET_AVX2 inline __m128i PackHalf<BFloat16>(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  // Pack within the 128-bit lanes, then bring the two halves together. Values are below 2^16: no saturation.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(chosen, chosen), 0b1000);
  return _mm256_castsi256_si128(packed);
}

// These keep denormals whatever the flush-to-zero mode.
template <>
STRATA_TARGET_AVX512 inline __m256i PackHalf<Float16>(__m512 x) {
  return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

template <>
STRATA_TARGET_AVX2 inline __m128i PackHalf<Float16>(__m256 x) {
  return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#endif

// `Params` below is the type of the parameters' copy: BFloat16, Float16, float, or void for none.
template <typename Params>
constexpr bool kIsHalf = !std::is_void_v<Params> && !std::is_same_v<Params, float>;

// f(std::type_identity<Params>()) for a copy at `params` (nullptr: none) of a type that parameters can have.
template <typename F>
auto WithParamsType(const void* params, DType dtype, F f) {
  if (params == nullptr) return f(std::type_identity<void>());
  switch (dtype) {
    case DType::kBF16:
      return f(std::type_identity<BFloat16>());
    case DType::kF16:
      return f(std::type_identity<Float16>());
    default:
      STRATA_CHECK(dtype == DType::kF32);
      return f(std::type_identity<float>());
  }
}

// params[i] = master, and the vector's lanes behind it.
template <typename Params>
[[gnu::always_inline]] inline void StoreParams(void* params, int64_t i, float master) {
  if constexpr (kIsHalf<Params>) static_cast<Params*>(params)[i] = RoundTo<Params>(master);
  if constexpr (std::is_same_v<Params, float>) static_cast<float*>(params)[i] = master;
}

#if STRATA_OPTIMIZER_X86

template <typename Params>
[[gnu::always_inline]] inline STRATA_TARGET_AVX2 void StoreParams(void* params, int64_t i, __m256 master) {
  if constexpr (kIsHalf<Params>)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<Params*>(params) + i), PackHalf<Params>(master));
  if constexpr (std::is_same_v<Params, float>) _mm256_storeu_ps(static_cast<float*>(params) + i, master);
}

template <typename Params>
[[gnu::always_inline]] inline STRATA_TARGET_AVX512 void StoreParams(void* params, int64_t i, __m512 master) {
  if constexpr (kIsHalf<Params>) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<Params*>(params) + i),
                        PackHalf<Params>(master));
  }
  if constexpr (std::is_same_v<Params, float>) _mm512_storeu_ps(static_cast<float*>(params) + i, master);
}

#endif

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_HALF_PACK_H_
