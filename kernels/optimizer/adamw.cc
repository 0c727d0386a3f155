#include "kernels/optimizer/adamw.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "common/check.h"
#include "kernels/optimizer/half_pack.h"
#include "kernels/optimizer/parallel.h"

#if STRATA_OPTIMIZER_X86
#include <immintrin.h>
#endif

namespace strata {
namespace {

// How far ahead of the arithmetic memory is asked for: the hardware prefetchers stop at 4 KiB pages and give
// four read streams too little; 2 KiB was best on Zen 5 class machines (+10 % at two threads).
constexpr int64_t kPrefetchElements = 2048 / sizeof(float);

// `Params` below is the type of the parameters' copy: BFloat16, Float16, float, or void for none.
template <typename Params>
constexpr bool kIsHalf = !std::is_void_v<Params> && !std::is_same_v<Params, float>;

// One element, in the order of adamw.h. always_inline: the fma is an instruction where the caller's target
// has one and a correctly rounded library call where it has not.
template <typename Params>
[[gnu::always_inline]] inline void UpdateOne(const AdamWScalars& s, const AdamWRange& r, int64_t i) {
  const float g = r.grad[i] * s.grad_scale;
  const float m = __builtin_fmaf(s.beta1, r.m[i], s.one_minus_beta1 * g);
  const float v = __builtin_fmaf(s.beta2, r.v[i], s.one_minus_beta2 * g * g);
  const float d = __builtin_fmaf(__builtin_sqrtf(v), s.inv_sqrt_bias2, s.eps);
  const float master = __builtin_fmaf(-s.step_size, m / d, r.master[i] * s.decay);
  r.m[i] = m;
  r.v[i] = v;
  r.master[i] = master;
  if constexpr (kIsHalf<Params>) static_cast<Params*>(r.params)[i] = RoundTo<Params>(master);
  if constexpr (std::is_same_v<Params, float>) static_cast<float*>(r.params)[i] = master;
}

template <typename Params>
void UpdateScalar(const AdamWScalars& s, const AdamWRange& r) {
  for (int64_t i = 0; i < r.n; ++i) UpdateOne<Params>(s, r, i);
}

#if STRATA_OPTIMIZER_X86

// GCC 12 puts always_inline functions of a wider caller in place as they are compiled for that caller.
template <typename Params>
STRATA_TARGET_AVX2 void UpdateAvx2(const AdamWScalars& s, const AdamWRange& r) {
  const __m256 grad_scale = _mm256_set1_ps(s.grad_scale);
  const __m256 beta1 = _mm256_set1_ps(s.beta1), one_minus_beta1 = _mm256_set1_ps(s.one_minus_beta1);
  const __m256 beta2 = _mm256_set1_ps(s.beta2), one_minus_beta2 = _mm256_set1_ps(s.one_minus_beta2);
  const __m256 inv_sqrt_bias2 = _mm256_set1_ps(s.inv_sqrt_bias2), eps = _mm256_set1_ps(s.eps);
  const __m256 step_size = _mm256_set1_ps(s.step_size), decay = _mm256_set1_ps(s.decay);
  constexpr int64_t kLanes = 8;
  int64_t i = 0;
  for (; i + kLanes <= r.n; i += kLanes) {
    _mm_prefetch(r.grad + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.master + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.m + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.v + i + kPrefetchElements, _MM_HINT_T0);
    const __m256 g = _mm256_mul_ps(_mm256_loadu_ps(r.grad + i), grad_scale);
    const __m256 m = _mm256_fmadd_ps(beta1, _mm256_loadu_ps(r.m + i), _mm256_mul_ps(one_minus_beta1, g));
    const __m256 v =
        _mm256_fmadd_ps(beta2, _mm256_loadu_ps(r.v + i), _mm256_mul_ps(_mm256_mul_ps(one_minus_beta2, g), g));
    const __m256 d = _mm256_fmadd_ps(_mm256_sqrt_ps(v), inv_sqrt_bias2, eps);
    const __m256 master =
        _mm256_fnmadd_ps(step_size, _mm256_div_ps(m, d), _mm256_mul_ps(_mm256_loadu_ps(r.master + i), decay));
    _mm256_storeu_ps(r.m + i, m);
    _mm256_storeu_ps(r.v + i, v);
    _mm256_storeu_ps(r.master + i, master);
    if constexpr (kIsHalf<Params>) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<Params*>(r.params) + i),
                       PackHalf<Params>(master));
    }
    if constexpr (std::is_same_v<Params, float>) _mm256_storeu_ps(static_cast<float*>(r.params) + i, master);
  }
  for (; i < r.n; ++i) UpdateOne<Params>(s, r, i);
}

struct Scalars512 {
  __m512 grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias2, eps, step_size, decay;
};

struct State512 {
  __m512 master, m, v;
};

[[gnu::always_inline]] inline STRATA_TARGET_AVX512 State512 Update512(const Scalars512& s, __m512 grad,
                                                                      State512 x) {
  const __m512 g = _mm512_mul_ps(grad, s.grad_scale);
  x.m = _mm512_fmadd_ps(s.beta1, x.m, _mm512_mul_ps(s.one_minus_beta1, g));
  x.v = _mm512_fmadd_ps(s.beta2, x.v, _mm512_mul_ps(_mm512_mul_ps(s.one_minus_beta2, g), g));
  const __m512 d = _mm512_fmadd_ps(_mm512_sqrt_ps(x.v), s.inv_sqrt_bias2, s.eps);
  x.master = _mm512_fnmadd_ps(s.step_size, _mm512_div_ps(x.m, d), _mm512_mul_ps(x.master, s.decay));
  return x;
}

template <typename Params>
STRATA_TARGET_AVX512 void UpdateAvx512(const AdamWScalars& s, const AdamWRange& r) {
  const Scalars512 c{
      _mm512_set1_ps(s.grad_scale), _mm512_set1_ps(s.beta1),           _mm512_set1_ps(s.one_minus_beta1),
      _mm512_set1_ps(s.beta2),      _mm512_set1_ps(s.one_minus_beta2), _mm512_set1_ps(s.inv_sqrt_bias2),
      _mm512_set1_ps(s.eps),        _mm512_set1_ps(s.step_size),       _mm512_set1_ps(s.decay)};
  constexpr int64_t kLanes = 16;
  int64_t i = 0;
  for (; i + kLanes <= r.n; i += kLanes) {
    _mm_prefetch(r.grad + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.master + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.m + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.v + i + kPrefetchElements, _MM_HINT_T0);
    const State512 x =
        Update512(c, _mm512_loadu_ps(r.grad + i),
                  {_mm512_loadu_ps(r.master + i), _mm512_loadu_ps(r.m + i), _mm512_loadu_ps(r.v + i)});
    _mm512_storeu_ps(r.m + i, x.m);
    _mm512_storeu_ps(r.v + i, x.v);
    _mm512_storeu_ps(r.master + i, x.master);
    if constexpr (kIsHalf<Params>) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<Params*>(r.params) + i),
                          PackHalf<Params>(x.master));
    }
    if constexpr (std::is_same_v<Params, float>)
      _mm512_storeu_ps(static_cast<float*>(r.params) + i, x.master);
  }
  if (i == r.n) return;
  const __mmask16 tail = static_cast<__mmask16>((1u << (r.n - i)) - 1);
  const State512 x = Update512(c, _mm512_maskz_loadu_ps(tail, r.grad + i),
                               {_mm512_maskz_loadu_ps(tail, r.master + i),
                                _mm512_maskz_loadu_ps(tail, r.m + i), _mm512_maskz_loadu_ps(tail, r.v + i)});
  _mm512_mask_storeu_ps(r.m + i, tail, x.m);
  _mm512_mask_storeu_ps(r.v + i, tail, x.v);
  _mm512_mask_storeu_ps(r.master + i, tail, x.master);
  if constexpr (kIsHalf<Params>) {
    _mm256_mask_storeu_epi16(static_cast<Params*>(r.params) + i, tail, PackHalf<Params>(x.master));
  }
  if constexpr (std::is_same_v<Params, float>)
    _mm512_mask_storeu_ps(static_cast<float*>(r.params) + i, tail, x.master);
}

#endif  // STRATA_OPTIMIZER_X86

using UpdateFunction = void (*)(const AdamWScalars&, const AdamWRange&);

template <typename Params>
UpdateFunction Choose(Isa isa) {
#if STRATA_OPTIMIZER_X86
  if (isa == Isa::kAvx512) return UpdateAvx512<Params>;
  if (isa == Isa::kAvx2) return UpdateAvx2<Params>;
#endif
  return UpdateScalar<Params>;
}

UpdateFunction Choose(Isa isa, const AdamWRange& range) {
  if (range.params == nullptr) return Choose<void>(isa);
  switch (range.params_dtype) {
    case DType::kBF16:
      return Choose<BFloat16>(isa);
    case DType::kF16:
      return Choose<Float16>(isa);
    default:
      STRATA_CHECK(range.params_dtype == DType::kF32);
      return Choose<float>(isa);
  }
}

AdamWRange Part(const AdamWRange& range, int64_t begin, int64_t end) {
  AdamWRange part = range;
  part.n = end - begin;
  part.grad += begin;
  part.master += begin;
  part.m += begin;
  part.v += begin;
  if (part.params != nullptr)
    part.params = static_cast<char*>(part.params) + begin * SizeOf(part.params_dtype);
  return part;
}

double IntegerPower(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace

AdamWScalars MakeAdamWScalars(const AdamWParameters& hyper, int64_t step, float grad_scale) {
  STRATA_CHECK(step >= 1);
  AdamWScalars s;
  s.grad_scale = grad_scale;
  s.beta1 = static_cast<float>(hyper.beta1);
  s.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
  s.beta2 = static_cast<float>(hyper.beta2);
  s.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
  s.inv_sqrt_bias2 = static_cast<float>(1 / std::sqrt(1 - IntegerPower(hyper.beta2, step)));
  s.eps = static_cast<float>(hyper.eps);
  s.step_size = static_cast<float>(hyper.lr / (1 - IntegerPower(hyper.beta1, step)));
  s.decay = static_cast<float>(1 - hyper.lr * hyper.weight_decay);
  return s;
}

void AdamWOnIsa(Isa isa, const AdamWScalars& scalars, const AdamWRange& range, int threads) {
  const UpdateFunction update = Choose(isa, range);
  ForEachPart(range.n, threads,
              [&](int64_t begin, int64_t end) { update(scalars, Part(range, begin, end)); });
}

void AdamW(const AdamWScalars& scalars, const AdamWRange& range, int threads) {
  AdamWOnIsa(BestIsa(), scalars, range, threads);
}

}  // namespace strata
