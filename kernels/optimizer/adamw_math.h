// The update of adamw.h, of one element and of vectors of them. Every line is one IEEE operation (fma rounds
// once), so all have the same bits.
#ifndef KERNELS_OPTIMIZER_ADAMW_MATH_H_
#define KERNELS_OPTIMIZER_ADAMW_MATH_H_

#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/isa.h"

#if STRATA_OPTIMIZER_X86
#include <immintrin.h>
#endif

namespace strata {

struct AdamWElement {
  float master, m, v;
};

// always_inline: the fma is an instruction where the caller's target has one and a correctly rounded library
// call where it has not. (GCC 12 compiles always_inline functions for the target of their caller.)
[[gnu::always_inline]] inline AdamWElement UpdateElement(const AdamWScalars& s, float grad, AdamWElement x) {
  const float g = grad * s.grad_scale;
  x.m = __builtin_fmaf(s.beta1, x.m, s.one_minus_beta1 * g);
  x.v = __builtin_fmaf(s.beta2, x.v, s.one_minus_beta2 * g * g);
  const float d = __builtin_fmaf(__builtin_sqrtf(x.v), s.inv_sqrt_bias2, s.eps);
  x.master = __builtin_fmaf(-s.step_size, x.m / d, x.master * s.decay);
  return x;
}

#if STRATA_OPTIMIZER_X86

struct Scalars256 {
  __m256 grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias2, eps, step_size, decay;
};
struct State256 {
  __m256 master, m, v;
};

[[gnu::always_inline]] inline STRATA_TARGET_AVX2 Scalars256 Broadcast256(const AdamWScalars& s) {
  return {_mm256_set1_ps(s.grad_scale), _mm256_set1_ps(s.beta1),           _mm256_set1_ps(s.one_minus_beta1),
          _mm256_set1_ps(s.beta2),      _mm256_set1_ps(s.one_minus_beta2), _mm256_set1_ps(s.inv_sqrt_bias2),
          _mm256_set1_ps(s.eps),        _mm256_set1_ps(s.step_size),       _mm256_set1_ps(s.decay)};
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX2 State256 Update256(const Scalars256& s, __m256 grad,
                                                                    State256 x) {
  const __m256 g = _mm256_mul_ps(grad, s.grad_scale);
  x.m = _mm256_fmadd_ps(s.beta1, x.m, _mm256_mul_ps(s.one_minus_beta1, g));
  x.v = _mm256_fmadd_ps(s.beta2, x.v, _mm256_mul_ps(_mm256_mul_ps(s.one_minus_beta2, g), g));
  const __m256 d = _mm256_fmadd_ps(_mm256_sqrt_ps(x.v), s.inv_sqrt_bias2, s.eps);
  x.master = _mm256_fnmadd_ps(s.step_size, _mm256_div_ps(x.m, d), _mm256_mul_ps(x.master, s.decay));
  return x;
}

struct Scalars512 {
  __m512 grad_scale, beta1, one_minus_beta1, beta2, one_minus_beta2, inv_sqrt_bias2, eps, step_size, decay;
};
struct State512 {
  __m512 master, m, v;
};

[[gnu::always_inline]] inline STRATA_TARGET_AVX512 Scalars512 Broadcast512(const AdamWScalars& s) {
  return {_mm512_set1_ps(s.grad_scale), _mm512_set1_ps(s.beta1),           _mm512_set1_ps(s.one_minus_beta1),
          _mm512_set1_ps(s.beta2),      _mm512_set1_ps(s.one_minus_beta2), _mm512_set1_ps(s.inv_sqrt_bias2),
          _mm512_set1_ps(s.eps),        _mm512_set1_ps(s.step_size),       _mm512_set1_ps(s.decay)};
}

[[gnu::always_inline]] inline STRATA_TARGET_AVX512 State512 Update512(const Scalars512& s, __m512 grad,
                                                                      State512 x) {
  const __m512 g = _mm512_mul_ps(grad, s.grad_scale);
  x.m = _mm512_fmadd_ps(s.beta1, x.m, _mm512_mul_ps(s.one_minus_beta1, g));
  x.v = _mm512_fmadd_ps(s.beta2, x.v, _mm512_mul_ps(_mm512_mul_ps(s.one_minus_beta2, g), g));
  const __m512 d = _mm512_fmadd_ps(_mm512_sqrt_ps(x.v), s.inv_sqrt_bias2, s.eps);
  x.master = _mm512_fnmadd_ps(s.step_size, _mm512_div_ps(x.m, d), _mm512_mul_ps(x.master, s.decay));
  return x;
}

#endif  // STRATA_OPTIMIZER_X86

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_ADAMW_MATH_H_
