// Vector forms of ToBFloat16 (common/bfloat16.h), bit for bit. The hardware conversion (vcvtneps2bf16) is not
// used: it flushes denormals to zero.
#ifndef KERNELS_OPTIMIZER_BFLOAT16_PACK_H_
#define KERNELS_OPTIMIZER_BFLOAT16_PACK_H_

#include "kernels/optimizer/isa.h"

#if STRATA_OPTIMIZER_X86
#include <immintrin.h>

namespace strata {

STRATA_TARGET_AVX512 inline __m256i PackBFloat16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
}

STRATA_TARGET_AVX2 inline __m128i PackBFloat16(__m256 x) {
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

}  // namespace strata
#endif

#endif  // KERNELS_OPTIMIZER_BFLOAT16_PACK_H_
