#include "kernels/optimizer/adamw.h"

#include <cmath>
#include <cstring>

#include "common/check.h"
#include "kernels/optimizer/adamw_math.h"
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

template <typename Params>
[[gnu::always_inline]] inline void UpdateOne(const AdamWScalars& s, const AdamWRange& r, int64_t i) {
  const AdamWElement x = UpdateElement(s, r.grad[i], {r.master[i], r.m[i], r.v[i]});
  r.m[i] = x.m;
  r.v[i] = x.v;
  r.master[i] = x.master;
  StoreParams<Params>(r.params, i, x.master);
}

template <typename Params>
void UpdateScalar(const AdamWScalars& s, const AdamWRange& r) {
  for (int64_t i = 0; i < r.n; ++i) UpdateOne<Params>(s, r, i);
}

#if STRATA_OPTIMIZER_X86

template <typename Params>
STRATA_TARGET_AVX2 void UpdateAvx2(const AdamWScalars& s, const AdamWRange& r) {
  const Scalars256 c = Broadcast256(s);
  constexpr int64_t kLanes = 8;
  int64_t i = 0;
  for (; i + kLanes <= r.n; i += kLanes) {
    _mm_prefetch(r.grad + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.master + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.m + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(r.v + i + kPrefetchElements, _MM_HINT_T0);
    const State256 x =
        Update256(c, _mm256_loadu_ps(r.grad + i),
                  {_mm256_loadu_ps(r.master + i), _mm256_loadu_ps(r.m + i), _mm256_loadu_ps(r.v + i)});
    _mm256_storeu_ps(r.m + i, x.m);
    _mm256_storeu_ps(r.v + i, x.v);
    _mm256_storeu_ps(r.master + i, x.master);
    StoreParams<Params>(r.params, i, x.master);
  }
  for (; i < r.n; ++i) UpdateOne<Params>(s, r, i);
}

template <typename Params>
STRATA_TARGET_AVX512 void UpdateAvx512(const AdamWScalars& s, const AdamWRange& r) {
  const Scalars512 c = Broadcast512(s);
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
    StoreParams<Params>(r.params, i, x.master);
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
  const UpdateFunction update = WithParamsType(range.params, range.params_dtype, [isa](auto type) {
    return Choose<typename decltype(type)::type>(isa);
  });
  ForEachPart(range.n, threads,
              [&](int64_t begin, int64_t end) { update(scalars, Part(range, begin, end)); });
}

void AdamW(const AdamWScalars& scalars, const AdamWRange& range, int threads) {
  AdamWOnIsa(BestIsa(), scalars, range, threads);
}

}  // namespace strata
