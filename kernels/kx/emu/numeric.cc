// Conversions, rounded arithmetic and the tensor cores' sums. Compiled without contraction.
#include <cmath>

#include "kernels/kx/emu/machine.h"

namespace strata::kx {
namespace {

// Approximations flush subnormal inputs and results to zero, as .ftz does.
float Flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }

}  // namespace

float ToFloat(f16 x) { return emu::HalfToFloat(x.bits); }

template <>
bf16 FromFloat<bf16>(float f) {
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (f != f) return {0x7fff};  // the NaN that cvt makes
  bits += 0x7fffu + (bits >> 16 & 1);
  return {static_cast<uint16_t>(bits >> 16)};
}

template <>
f16 FromFloat<f16>(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {0x7fff};
  // 65520 is the tie between the largest finite value and the next power of two: it rounds up, to infinity.
  if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (magnitude < 0x38800000) {
    // Subnormal: the sum with 0.5 shifts the fraction to where its last bit weighs 2^-24, rounded by the
    // addition.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000))};
  }
  const uint32_t rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
  return {static_cast<uint16_t>(sign | rounded >> 13)};
}

float Fma(float a, float b, float c) { return std::fma(a, b, c); }
float MulRn(float a, float b) { return a * b; }
float AddRn(float a, float b) { return a + b; }
float SubRn(float a, float b) { return a - b; }
float DivRn(float a, float b) { return a / b; }
float SqrtRn(float a) { return std::sqrt(a); }
double Fma(double a, double b, double c) { return std::fma(a, b, c); }
double MulRn(double a, double b) { return a * b; }
double AddRn(double a, double b) { return a + b; }
double SubRn(double a, double b) { return a - b; }
double DivRn(double a, double b) { return a / b; }
double SqrtRn(double a) { return std::sqrt(a); }
float Ex2(float x) { return Flush(std::exp2(Flush(x))); }
float Lg2(float x) { return Flush(std::log2(Flush(x))); }
float Rsqrt(float x) { return Flush(1.f / std::sqrt(Flush(x))); }
float Rcp(float x) { return Flush(1.f / Flush(x)); }

namespace emu {

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) {
    return std::copysign(static_cast<float>(fraction) * 0x1p-24f, std::bit_cast<float>(sign | 0x3f800000));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

namespace {

#define KX_FLOAT_CHAIN                                              \
  for (int i = 0; i < rows; ++i) {                                  \
    for (int k = 0; k < 16; ++k) {                                  \
      const float x = a[i * 16 + k];                                \
      for (int j = 0; j < n; ++j) c[i * n + j] += x * b[k * n + j]; \
    }                                                               \
  }

#if defined(__x86_64__)
// Twice as wide, the same bits: neither file nor function may fuse the product into the sum.
__attribute__((target("avx2"))) void FloatChainAvx2(float* __restrict c, const float* a, const float* b,
                                                    int rows, int n) {
  KX_FLOAT_CHAIN
}
#endif
void FloatChain(float* __restrict c, const float* a, const float* b, int rows, int n) { KX_FLOAT_CHAIN }

float Chop(double exact) {
  const auto rounded = static_cast<float>(exact);
  return std::fabs(static_cast<double>(rounded)) > std::fabs(exact) ? std::nextafter(rounded, 0.f) : rounded;
}

}  // namespace

void MultiplyAdd(float* c, const float* a, const float* b, int rows, int n, Accumulate how) {
  if (how == Accumulate::kFloatChain) {
#if defined(__x86_64__)
    static const bool avx2 = __builtin_cpu_supports("avx2");
    if (avx2) return FloatChainAvx2(c, a, b, rows, n);
#endif
    return FloatChain(c, a, b, rows, n);
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < n; ++j) {
      double sum = c[i * n + j];
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(a[i * 16 + k]) * b[k * n + j];
        if (how == Accumulate::kTruncate) sum = Chop(sum);
      }
      c[i * n + j] = static_cast<float>(sum);
    }
  }
}

}  // namespace emu
}  // namespace strata::kx
