// Conversions, rounded arithmetic and the tensor cores' sums. Compiled without contraction.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/kx/emu/machine.h"
#include "kernels/kx/kx_hopper.h"

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

namespace {

// An eight-bit float: its fraction has `fraction` bits, numbers from `largest` on are no numbers.
struct Format8 {
  int fraction, bias;
  uint8_t largest;
};
constexpr Format8 kE4m3 = {3, 7, 0x7e}, kE5m2 = {2, 15, 0x7b};

double Magnitude(uint32_t bits, const Format8& format) {
  const int exponent = static_cast<int>(bits >> format.fraction);
  const int fraction = static_cast<int>(bits & ((1u << format.fraction) - 1));
  return exponent == 0
             ? std::ldexp(fraction, 1 - format.bias - format.fraction)
             : std::ldexp(fraction + (1 << format.fraction), exponent - format.bias - format.fraction);
}

uint8_t RoundTo(float f, const Format8& format) {
  if (f != f) return 0x7f;
  const auto sign = static_cast<uint8_t>(std::signbit(f) ? 0x80 : 0);
  const double magnitude = std::fabs(static_cast<double>(f));
  if (magnitude >= Magnitude(format.largest, format)) return sign | format.largest;
  // In units of the last place, to nearest even; a fraction that rounds up to 2 carries into the exponent.
  const int exponent = magnitude == 0 ? 1 - format.bias : std::max(std::ilogb(magnitude), 1 - format.bias);
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction - exponent));
  const int bits = ((exponent + format.bias - 1) << format.fraction) + static_cast<int>(units);
  return static_cast<uint8_t>(sign | bits);
}

std::array<float, 256> ValuesOf(const Format8& format, uint32_t infinity) {
  std::array<float, 256> values;
  for (uint32_t bits = 0; bits < 128; ++bits) {
    const float value = bits <= format.largest ? static_cast<float>(Magnitude(bits, format))
                        : bits == infinity     ? INFINITY
                                               : NAN;
    values[bits] = value;
    values[bits + 128] = -value;
  }
  return values;
}

}  // namespace

float ToFloat(e4m3 x) {
  static const std::array<float, 256> values = ValuesOf(kE4m3, 0x80);
  return values[x.bits];
}
float ToFloat(e5m2 x) {
  static const std::array<float, 256> values = ValuesOf(kE5m2, 0x7c);
  return values[x.bits];
}
template <>
e4m3 FromFloat<e4m3>(float f) {
  return {RoundTo(f, kE4m3)};
}
template <>
e5m2 FromFloat<e5m2>(float f) {
  return {RoundTo(f, kE5m2)};
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

#define KX_FLOAT_CHAIN                                                                \
  for (int i = 0; i < shape.rows; ++i) {                                              \
    for (int k = 0; k < shape.depth; ++k) {                                           \
      const float x = a[i * shape.depth + k];                                         \
      for (int j = 0; j < shape.n; ++j) c[i * shape.n + j] += x * b[k * shape.n + j]; \
    }                                                                                 \
  }

#if defined(__x86_64__)
// Twice as wide, the same bits: neither file nor function may fuse the product into the sum.
__attribute__((target("avx2"))) void FloatChainAvx2(float* __restrict c, const float* a, const float* b,
                                                    ProductShape shape) {
  KX_FLOAT_CHAIN
}
#endif
void FloatChain(float* __restrict c, const float* a, const float* b, ProductShape shape) { KX_FLOAT_CHAIN }

float Chop(double exact) {
  const auto rounded = static_cast<float>(exact);
  return std::fabs(static_cast<double>(rounded)) > std::fabs(exact) ? std::nextafter(rounded, 0.f) : rounded;
}

// The sum as a fixed-point adder makes it: every addend is aligned to the largest and chopped kBits behind
// its leading bit.
float AlignedSum(const double* addends, int count) {
  constexpr int kBits = 13;
  double largest = 0, plain = 0;
  for (int i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(addends[i]));
    plain += addends[i];
  }
  if (largest == 0 || !std::isfinite(plain)) return static_cast<float>(plain);
  const int exponent = std::ilogb(largest) - kBits;
  const double to_units = std::ldexp(1., -exponent);
  int32_t sum = 0;  // of addends below 2^(kBits + 1): the conversion chops
  for (int i = 0; i < count; ++i) sum += static_cast<int32_t>(addends[i] * to_units);
  return static_cast<float>(std::ldexp(sum, exponent));
}

}  // namespace

void MultiplyAdd(float* c, const float* a, const float* b, ProductShape shape, Accumulate how) {
  if (how == Accumulate::kFloatChain) {
#if defined(__x86_64__)
    static const bool avx2 = __builtin_cpu_supports("avx2");
    if (avx2) return FloatChainAvx2(c, a, b, shape);
#endif
    return FloatChain(c, a, b, shape);
  }
  const int depth = shape.depth;
  for (int i = 0; i < shape.rows; ++i) {
    for (int j = 0; j < shape.n; ++j) {
      float& to = c[i * shape.n + j];
      const auto product = [&](int k) { return static_cast<double>(a[i * depth + k]) * b[k * shape.n + j]; };
      if (how == Accumulate::kTruncate && depth == 32) {
        double addends[33] = {to};
        for (int k = 0; k < depth; ++k) addends[k + 1] = product(k);
        to = AlignedSum(addends, depth + 1);
        continue;
      }
      double sum = to;
      for (int k = 0; k < depth; ++k) {
        sum += product(k);
        if (how == Accumulate::kTruncate) sum = Chop(sum);
      }
      to = static_cast<float>(sum);
    }
  }
}

}  // namespace emu
}  // namespace strata::kx
