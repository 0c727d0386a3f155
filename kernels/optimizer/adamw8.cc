#include "kernels/optimizer/adamw8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/optimizer/adamw_math.h"
#include "kernels/optimizer/code8.h"
#include "kernels/optimizer/half_pack.h"
#include "kernels/optimizer/parallel.h"

namespace strata {
namespace {

// Parts of a range begin with a block.
static_assert(kPartUnit % kCode8Block == 0);

// As in adamw.cc: 2 KiB of floats.
constexpr int64_t kPrefetchElements = 2048 / sizeof(float);

struct Factors {
  float scale, inverse;
};

Factors FactorsOf(float largest) {
  if (!(largest > 0)) return {0, 0};
  largest = std::clamp(largest, kCode8Least, std::numeric_limits<float>::max());
  return {largest * kCode8ScaleOfLargest, kCode8Largest / largest};
}

// The block that begins at element `begin`, of n elements. A NaN is never the largest.
template <typename Params>
[[gnu::always_inline]] inline void UpdateBlock(const AdamWScalars& s, const AdamW8Range& r, int64_t begin,
                                               int64_t n) {
  const int64_t block = begin / kCode8Block;
  float m[kCode8Block], v[kCode8Block], m_max = 0, v_max = 0;
  for (int64_t k = 0; k < n; ++k) {
    const int64_t i = begin + k;
    const AdamWElement x = UpdateElement(
        s, r.grad[i],
        {r.master[i], r.m_scale[block] * DecodeSigned(r.m[i]), r.v_scale[block] * DecodeUnsigned(r.v[i])});
    m[k] = x.m;
    v[k] = x.v;
    r.master[i] = x.master;
    StoreParams<Params>(r.params, i, x.master);
    m_max = std::max(m_max, std::abs(x.m));
    v_max = std::max(v_max, x.v);
  }
  const Factors m_factors = FactorsOf(m_max), v_factors = FactorsOf(v_max);
  for (int64_t k = 0; k < n; ++k) {
    r.m[begin + k] = EncodeSigned(m[k] * m_factors.inverse);
    r.v[begin + k] = EncodeUnsigned(v[k] * v_factors.inverse);
  }
  r.m_scale[block] = m_factors.scale;
  r.v_scale[block] = v_factors.scale;
}

template <typename Params>
void UpdateScalar(const AdamWScalars& s, const AdamW8Range& r) {
  for (int64_t i = 0; i < r.n; i += kCode8Block)
    UpdateBlock<Params>(s, r, i, std::min<int64_t>(kCode8Block, r.n - i));
}

#if STRATA_OPTIMIZER_X86

// ---- AVX2: the functions of code8.h on eight lanes. Codes are 32-bit lanes below 256.

template <int kExponents>
[[gnu::always_inline]] inline STRATA_TARGET_AVX2 __m256 Decode256(__m256i code) {
  constexpr uint32_t kStep = static_cast<uint32_t>(127 + 1 - kExponents - 3) << 23;
  const __m256i normal =
      _mm256_slli_epi32(_mm256_add_epi32(code, _mm256_set1_epi32((127 - kExponents) << 3)), 20);
  const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(code), _mm256_castsi256_ps(_mm256_set1_epi32(kStep)));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), code);
  return _mm256_blendv_ps(_mm256_castsi256_ps(normal), small, _mm256_castsi256_ps(is_small));
}

// A signed code is a half-precision number without its highest exponent bit and its last mantissa bits.
[[gnu::always_inline]] inline STRATA_TARGET_AVX2 __m256 DecodeSigned256(const uint8_t* codes) {
  const __m128i words = _mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
  return _mm256_cvtph_ps(
      _mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff))));
}

template <int kExponents>
[[gnu::always_inline]] inline STRATA_TARGET_AVX2 __m256i Encode256(__m256 y) {
  constexpr uint32_t kInverseStep = static_cast<uint32_t>(127 - 1 + kExponents + 3) << 23;
  const __m256 magic = _mm256_set1_ps(12582912.0f);
  const __m256i bits = _mm256_castps_si256(y);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  // The bias of the code's exponent is taken off before the shift.
  constexpr int kRound = 0x7ffff - ((127 - kExponents) << 23);
  const __m256i normal =
      _mm256_srai_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(kRound)), odd), 20);
  const __m256 steps = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_set1_epi32(kInverseStep)));
  const __m256i small =
      _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(steps, magic)), _mm256_castps_si256(magic));
  const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), normal);
  const __m256i bounded = _mm256_min_epi32(normal, _mm256_set1_epi32(kExponents * 8 + 7));
  return _mm256_blendv_epi8(bounded, small, is_small);
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX2 __m256i EncodeSigned256(__m256 y) {
  const __m256i bits = _mm256_castps_si256(y);
  const __m256i code =
      Encode256<15>(_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff))));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i is_zero = _mm256_cmpeq_epi32(code, _mm256_setzero_si256());
  return _mm256_or_si256(code, _mm256_andnot_si256(is_zero, sign));
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX2 __m256i EncodeUnsigned256(__m256 y) {
  const __m256i code = Encode256<31>(y);
  const __m256i is_zero = _mm256_cmpeq_epi32(code, _mm256_setzero_si256());
  const __m256i positive = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_GT_OQ));
  return _mm256_sub_epi32(code, _mm256_and_si256(is_zero, positive));  // all ones: minus one
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX2 __m256i LoadCodes256(const uint8_t* codes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
}
[[gnu::always_inline]] inline STRATA_TARGET_AVX2 void StoreCodes256(uint8_t* to, __m256i codes) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
}

// A NaN in x leaves the other as it is, as std::max(largest, x) does.
[[gnu::always_inline]] inline STRATA_TARGET_AVX2 float LargestLane256(__m256 x) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

template <typename Params>
STRATA_TARGET_AVX2 void UpdateAvx2(const AdamWScalars& s, const AdamW8Range& r) {
  constexpr int kLanes = 8, kVectors = kCode8Block / kLanes;
  const Scalars256 c = Broadcast256(s);
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  int64_t begin = 0;
  for (; begin + kCode8Block <= r.n; begin += kCode8Block) {
    const int64_t block = begin / kCode8Block;
    const __m256 m_scale = _mm256_set1_ps(r.m_scale[block]), v_scale = _mm256_set1_ps(r.v_scale[block]);
    _mm_prefetch(r.m + begin + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.v + begin + kPrefetchElements, _MM_HINT_T0);
    __m256 m[kVectors], v[kVectors], m_max = _mm256_setzero_ps(), v_max = _mm256_setzero_ps();
    for (int k = 0; k < kVectors; ++k) {
      const int64_t i = begin + k * kLanes;
      _mm_prefetch(r.grad + i + kPrefetchElements, _MM_HINT_T0);
      _mm_prefetch(r.master + i + kPrefetchElements, _MM_HINT_T0);
      const State256 x =
          Update256(c, _mm256_loadu_ps(r.grad + i),
                    {_mm256_loadu_ps(r.master + i), _mm256_mul_ps(m_scale, DecodeSigned256(r.m + i)),
                     _mm256_mul_ps(v_scale, Decode256<31>(LoadCodes256(r.v + i)))});
      m[k] = x.m;
      v[k] = x.v;
      _mm256_storeu_ps(r.master + i, x.master);
      StoreParams<Params>(r.params, i, x.master);
      m_max = _mm256_max_ps(_mm256_and_ps(x.m, magnitude), m_max);
      v_max = _mm256_max_ps(x.v, v_max);
    }
    const Factors m_factors = FactorsOf(LargestLane256(m_max)), v_factors = FactorsOf(LargestLane256(v_max));
    const __m256 m_inverse = _mm256_set1_ps(m_factors.inverse), v_inverse = _mm256_set1_ps(v_factors.inverse);
    for (int k = 0; k < kVectors; ++k) {
      const int64_t i = begin + k * kLanes;
      StoreCodes256(r.m + i, EncodeSigned256(_mm256_mul_ps(m[k], m_inverse)));
      StoreCodes256(r.v + i, EncodeUnsigned256(_mm256_mul_ps(v[k], v_inverse)));
    }
    r.m_scale[block] = m_factors.scale;
    r.v_scale[block] = v_factors.scale;
  }
  if (begin < r.n) UpdateBlock<Params>(s, r, begin, r.n - begin);
}

// ---- AVX-512: the same on sixteen lanes

template <int kExponents>
[[gnu::always_inline]] inline STRATA_TARGET_AVX512 __m512 Decode512(__m512i code) {
  constexpr uint32_t kStep = static_cast<uint32_t>(127 + 1 - kExponents - 3) << 23;
  const __m512i normal =
      _mm512_slli_epi32(_mm512_add_epi32(code, _mm512_set1_epi32((127 - kExponents) << 3)), 20);
  const __mmask16 small = _mm512_cmplt_epi32_mask(code, _mm512_set1_epi32(8));
  return _mm512_mask_mul_ps(_mm512_castsi512_ps(normal), small, _mm512_cvtepi32_ps(code),
                            _mm512_castsi512_ps(_mm512_set1_epi32(kStep)));
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX512 __m512 DecodeSigned512(const uint8_t* codes) {
  const __m256i words = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  return _mm512_cvtph_ps(
      _mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(static_cast<int16_t>(0xbfff))));
}

template <int kExponents>
[[gnu::always_inline]] inline STRATA_TARGET_AVX512 __m512i Encode512(__m512 y) {
  constexpr uint32_t kInverseStep = static_cast<uint32_t>(127 - 1 + kExponents + 3) << 23;
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  const __m512i bits = _mm512_castps_si512(y);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  constexpr int kRound = 0x7ffff - ((127 - kExponents) << 23);
  const __m512i normal =
      _mm512_srai_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(kRound)), odd), 20);
  const __m512 steps = _mm512_mul_ps(y, _mm512_castsi512_ps(_mm512_set1_epi32(kInverseStep)));
  const __mmask16 small = _mm512_cmplt_epi32_mask(normal, _mm512_set1_epi32(8));
  return _mm512_mask_sub_epi32(_mm512_min_epi32(normal, _mm512_set1_epi32(kExponents * 8 + 7)), small,
                               _mm512_castps_si512(_mm512_add_ps(steps, magic)), _mm512_castps_si512(magic));
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX512 __m512i EncodeSigned512(__m512 y) {
  const __m512i code = Encode512<15>(_mm512_abs_ps(y));
  const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(y));
  return _mm512_mask_or_epi32(code, _mm512_mask_test_epi32_mask(negative, code, code), code,
                              _mm512_set1_epi32(0x80));
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX512 __m512i EncodeUnsigned512(__m512 y) {
  const __m512i code = Encode512<31>(y);
  const __mmask16 positive = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_GT_OQ);
  return _mm512_mask_mov_epi32(code, _mm512_mask_testn_epi32_mask(positive, code, code),
                               _mm512_set1_epi32(1));
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX512 __m512i LoadCodes512(const uint8_t* codes) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}

template <typename Params>
STRATA_TARGET_AVX512 void UpdateAvx512(const AdamWScalars& s, const AdamW8Range& r) {
  constexpr int kLanes = 16, kVectors = kCode8Block / kLanes;
  const Scalars512 c = Broadcast512(s);
  int64_t begin = 0;
  for (; begin + kCode8Block <= r.n; begin += kCode8Block) {
    const int64_t block = begin / kCode8Block;
    const __m512 m_scale = _mm512_set1_ps(r.m_scale[block]), v_scale = _mm512_set1_ps(r.v_scale[block]);
    _mm_prefetch(r.m + begin + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.v + begin + kPrefetchElements, _MM_HINT_T0);
    __m512 m[kVectors], v[kVectors], m_max = _mm512_setzero_ps(), v_max = _mm512_setzero_ps();
    for (int k = 0; k < kVectors; ++k) {
      const int64_t i = begin + k * kLanes;
      _mm_prefetch(r.grad + i + kPrefetchElements, _MM_HINT_T0);
      _mm_prefetch(r.master + i + kPrefetchElements, _MM_HINT_T0);
      const State512 x =
          Update512(c, _mm512_loadu_ps(r.grad + i),
                    {_mm512_loadu_ps(r.master + i), _mm512_mul_ps(m_scale, DecodeSigned512(r.m + i)),
                     _mm512_mul_ps(v_scale, Decode512<31>(LoadCodes512(r.v + i)))});
      m[k] = x.m;
      v[k] = x.v;
      _mm512_storeu_ps(r.master + i, x.master);
      StoreParams<Params>(r.params, i, x.master);
      m_max = _mm512_max_ps(_mm512_abs_ps(x.m), m_max);
      v_max = _mm512_max_ps(x.v, v_max);
    }
    const Factors m_factors = FactorsOf(_mm512_reduce_max_ps(m_max)),
                  v_factors = FactorsOf(_mm512_reduce_max_ps(v_max));
    const __m512 m_inverse = _mm512_set1_ps(m_factors.inverse), v_inverse = _mm512_set1_ps(v_factors.inverse);
    for (int k = 0; k < kVectors; ++k) {
      const int64_t i = begin + k * kLanes;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(r.m + i),
                       _mm512_cvtepi32_epi8(EncodeSigned512(_mm512_mul_ps(m[k], m_inverse))));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(r.v + i),
                       _mm512_cvtepi32_epi8(EncodeUnsigned512(_mm512_mul_ps(v[k], v_inverse))));
    }
    r.m_scale[block] = m_factors.scale;
    r.v_scale[block] = v_factors.scale;
  }
  if (begin < r.n) UpdateBlock<Params>(s, r, begin, r.n - begin);
}

#endif  // STRATA_OPTIMIZER_X86

using UpdateFunction = void (*)(const AdamWScalars&, const AdamW8Range&);

template <typename Params>
UpdateFunction Choose(Isa isa) {
#if STRATA_OPTIMIZER_X86
  if (isa == Isa::kAvx512) return UpdateAvx512<Params>;
  if (isa == Isa::kAvx2) return UpdateAvx2<Params>;
#endif
  return UpdateScalar<Params>;
}

AdamW8Range Part(const AdamW8Range& range, int64_t begin, int64_t end) {
  AdamW8Range part = range;
  part.n = end - begin;
  part.grad += begin;
  part.master += begin;
  part.m += begin;
  part.m_scale += begin / kCode8Block;
  part.v += begin;
  part.v_scale += begin / kCode8Block;
  if (part.params != nullptr)
    part.params = static_cast<char*>(part.params) + begin * SizeOf(part.params_dtype);
  return part;
}

}  // namespace

void AdamW8OnIsa(Isa isa, const AdamWScalars& scalars, const AdamW8Range& range, int threads) {
  const UpdateFunction update = WithParamsType(range.params, range.params_dtype, [isa](auto type) {
    return Choose<typename decltype(type)::type>(isa);
  });
  ForEachPart(range.n, threads,
              [&](int64_t begin, int64_t end) { update(scalars, Part(range, begin, end)); });
}

void AdamW8(const AdamWScalars& scalars, const AdamW8Range& range, int threads) {
  AdamW8OnIsa(BestIsa(), scalars, range, threads);
}

}  // namespace strata
