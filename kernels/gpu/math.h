// Functions of one float that the fused kernels need. Exp<T> and what is built on it are as exact as the
// element type T can show: about 1 ulp of float for T = float, an instruction's approximation (2^-22) for
// the 16-bit types. A NaN stays a NaN everywhere.
#ifndef KERNELS_GPU_MATH_H_
#define KERNELS_GPU_MATH_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/kx/kx.h"

namespace strata::gpu {

using namespace kx;  // NOLINT: the vocabulary of every kernel

KX_DEVICE uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
KX_DEVICE float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Comparisons with a NaN are false: it passes.
KX_DEVICE float AtLeast(float x, float low) { return x < low ? low : x; }
KX_DEVICE float AtMost(float x, float high) { return x > high ? high : x; }
KX_DEVICE int BitCount(uint32_t x) {
  x -= x >> 1 & 0x55555555u;
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  return static_cast<int>(((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
}
KX_DEVICE float Infinity() { return FloatOf(0x7f800000u); }

// e^x. Argument reduction by n ln 2 in two parts (Cody and Waite), then a polynomial fitted on
// [-ln2/2, ln2/2] (5e-9), as in kernels/cpu. Overflows to infinity; below -104 it is 0.
KX_DEVICE float ExpOfFloat(float x) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: the sum has no bits left for a fraction
  const float bounded = AtMost(AtLeast(x, -104.0f), 90.0f);
  const float shifted = Fma(bounded, 1.44269504f, kMagic), n = SubRn(shifted, kMagic);
  float r = Fma(n, -0.693145752f, bounded);
  r = Fma(n, -1.42860677e-6f, r);
  float p = 0.001393364103f;
  p = Fma(p, r, 0.008369148491f);
  p = Fma(p, r, 0.04166646501f);
  p = Fma(p, r, 0.1666650526f);
  p = Fma(p, r, 0.5000000013f);
  const float result = Fma(r * r, p, r) + 1.0f;
  // 2^n in two factors, neither of which leaves the range of normal numbers.
  const int32_t whole = static_cast<int32_t>(BitsOf(shifted) - BitsOf(kMagic)), half = whole >> 1;
  const float low = FloatOf(static_cast<uint32_t>(half + 127) << 23);
  const float high = FloatOf(static_cast<uint32_t>(whole - half + 127) << 23);
  return x != x ? x : result * low * high;
}

template <class T>
KX_DEVICE float Exp(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return ExpOfFloat(x);
  } else {
    return Ex2(x * 1.44269504f);
  }
}

// Natural logarithm of a positive double within 1e-15 relative; infinity and NaN stay.
KX_DEVICE double Log(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  if ((bits >> 52 & 0x7ff) == 0x7ff) return x;
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)); log m = 2 (s + s^3/3 + s^5/5 + ...), s = (m - 1) / (m + 1).
  const int64_t shifted = static_cast<int64_t>(bits) - 0x3fe6a09e667f3bcd;
  const double n = static_cast<double>(static_cast<int32_t>(shifted >> 52));
  bits = static_cast<uint64_t>((shifted & 0x000fffffffffffff) + 0x3fe6a09e667f3bcd);
  double m;
  memcpy(&m, &bits, 8);
  const double s = DivRn(m - 1, m + 1), square = s * s;
  double p = 2.0 / 21;
  p = Fma(p, square, 2.0 / 19);
  p = Fma(p, square, 2.0 / 17);
  p = Fma(p, square, 2.0 / 15);
  p = Fma(p, square, 2.0 / 13);
  p = Fma(p, square, 2.0 / 11);
  p = Fma(p, square, 2.0 / 9);
  p = Fma(p, square, 2.0 / 7);
  p = Fma(p, square, 2.0 / 5);
  p = Fma(p, square, 2.0 / 3);
  p = Fma(p, square, 2.0);
  return Fma(n, 0.69314718055994530942, p * s);
}

// Sine and cosine of `angle` (|angle| < 2^30) to about 1e-12.
struct SineCosine {
  double sine, cosine;
};
KX_DEVICE SineCosine SinCos(double angle) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = Fma(angle, 0.63661977236758134308, kMagic), n = SubRn(shifted, kMagic);
  uint64_t quadrant;
  memcpy(&quadrant, &shifted, 8);
  // pi/2 in two parts; what is left is in [-pi/4, pi/4].
  double r = Fma(n, -1.57079632679489655800, angle);
  r = Fma(n, -6.12323399573676603587e-17, r);
  const double square = r * r;
  double s = -1.0 / 39916800 + square * (1.0 / 6227020800);
  s = Fma(s, square, 1.0 / 362880);
  s = Fma(s, square, -1.0 / 5040);
  s = Fma(s, square, 1.0 / 120);
  s = Fma(s, square, -1.0 / 6);
  s = Fma(s * square, r, r);
  double c = 1.0 / 479001600 - square * (1.0 / 87178291200);
  c = Fma(c, square, -1.0 / 3628800);
  c = Fma(c, square, 1.0 / 40320);
  c = Fma(c, square, -1.0 / 720);
  c = Fma(c, square, 1.0 / 24);
  c = Fma(c, square, -0.5);
  c = Fma(c, square, 1.0);
  const bool swap = (quadrant & 1) != 0, minus_sine = (quadrant & 2) != 0,
             minus_cosine = ((quadrant + 1) & 2) != 0;
  const double sine = swap ? c : s, cosine = swap ? s : c;
  return {minus_sine ? -sine : sine, minus_cosine ? -cosine : cosine};
}

// 1 / (1 + e^-x) and its complement, both with small relative error.
struct SigmoidValue {
  float value, complement;
};
template <class T>
KX_DEVICE SigmoidValue Sigmoid(float x) {
  const float e = Exp<T>(-AtLeast(x, -87.0f));
  const float value = Rcp(1.0f + e);
  return {value, e * value};
}

// Standard normal: cumulative distribution and density at x, the former with small relative error in both
// tails: for t = |x|, Phi(-t) = e^(-t^2/2) u P(u) with u = 1 / (1 + 0.3 t), P fitted to 4.4e-9 (as in
// kernels/cpu).
struct NormalValue {
  float cdf, density;
};
template <class T>
KX_DEVICE NormalValue Normal(float x) {
  const float t = AtMost(x < 0 ? -x : x, 15.0f);
  const float square = MulRn(t, t);
  // t * t exactly is square + error: an error of the exponent is one of e^..., times its size.
  const float error = Fma(t, t, -square);
  const float e = Exp<T>(square * -0.5f) * (1.0f - error * 0.5f);
  const float u = Rcp(Fma(0.3f, t, 1.0f));
  float p = -0.02098466936f;
  p = Fma(p, u, 0.1144021119f);
  p = Fma(p, u, -0.2328354831f);
  p = Fma(p, u, 0.1979216441f);
  p = Fma(p, u, -0.08448128252f);
  p = Fma(p, u, 0.09883084131f);
  p = Fma(p, u, 0.07748577065f);
  p = Fma(p, u, 0.1104231966f);
  p = Fma(p, u, 0.1195501183f);
  p = Fma(p, u, 0.1196877502f);
  const float tail = e * u * p;
  return {x > 0 ? 1.0f - tail : tail, e * 0.39894228f};
}

}  // namespace strata::gpu

#endif  // KERNELS_GPU_MATH_H_
