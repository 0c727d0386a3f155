// Conversions over every half and bfloat16, and arithmetic that must round once.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/kx/kx.h"

namespace strata::kx {
namespace {

// The value of the non-negative finite number `bits`, from the definition of the format.
double Value(uint32_t bits, int fraction_bits, int bias) {
  const int exponent = static_cast<int>(bits >> fraction_bits);
  const double fraction = static_cast<double>(bits & ((1u << fraction_bits) - 1));
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
  return std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// Every number, and between every two neighbours the midpoint and the floats beside it: complete for
// rounding.
template <class T>
void TestConversions(int fraction_bits, int bias, uint32_t infinity) {
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const auto x = static_cast<float>(Value(bits, fraction_bits, bias));
    const T t{static_cast<uint16_t>(bits)}, minus{static_cast<uint16_t>(bits | 0x8000)};
    ASSERT_EQ(ToFloat(t), x) << bits;
    ASSERT_EQ(ToFloat(minus), -x) << bits;
    ASSERT_EQ(FromFloat<T>(x).bits, bits);
    ASSERT_EQ(FromFloat<T>(-x).bits, bits | 0x8000) << bits;
    // Beyond the largest the format goes on to where infinity begins.
    const double next = Value(bits + 1, fraction_bits, bias);
    const double middle = (static_cast<double>(x) + next) / 2;
    const auto tie = static_cast<float>(middle);
    if (static_cast<double>(tie) != middle) continue;  // no float lies there
    ASSERT_EQ(FromFloat<T>(tie).bits, bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(FromFloat<T>(std::nextafter(tie, 0.f)).bits, bits) << bits;
    ASSERT_EQ(FromFloat<T>(std::nextafter(tie, INFINITY)).bits, bits + 1) << bits;
  }
  EXPECT_EQ(FromFloat<T>(INFINITY).bits, infinity);
  EXPECT_EQ(FromFloat<T>(-INFINITY).bits, infinity | 0x8000);
  EXPECT_EQ(FromFloat<T>(3e38f * 2).bits, infinity);
  EXPECT_EQ(FromFloat<T>(NAN).bits, 0x7fff);
  for (uint32_t bits = infinity + 1; bits < 0x8000; ++bits) {
    ASSERT_TRUE(std::isnan(ToFloat(T{static_cast<uint16_t>(bits)}))) << bits;
  }
}
TEST(Numeric, F16) { TestConversions<f16>(10, 15, 0x7c00); }
TEST(Numeric, Bf16) { TestConversions<bf16>(7, 127, 0x7f80); }

TEST(Numeric, PackAndUnpack) {
  EXPECT_EQ(Pack<bf16>(1.f, -2.f), 0xc0003f80u);
  EXPECT_EQ(Pack<f16>(1.f, -2.f), 0xc0003c00u);
  EXPECT_EQ(UnpackLo<f16>(0xc0003c00u), 1.f);
  EXPECT_EQ(UnpackHi<f16>(0xc0003c00u), -2.f);
}

TEST(Numeric, ProductsAndSumsAreNotContracted) {
  // x * x - x^2 rounded is 0; fused it is the rounding error of the square.
  const float x = 1.f + 0x1p-12f;
  EXPECT_EQ(SubRn(MulRn(x, x), x * x), 0.f);
  EXPECT_NE(Fma(x, x, -(x * x)), 0.f);
  const double y = 1. + 0x1p-27;
  EXPECT_EQ(SubRn(MulRn(y, y), y * y), 0.);
  EXPECT_NE(Fma(y, y, -(y * y)), 0.);
  EXPECT_EQ(AddRn(DivRn(1.f, 3.f), 0.f), 1.f / 3.f);
  EXPECT_EQ(SqrtRn(2.), std::sqrt(2.));
}

TEST(Numeric, ApproximationsFlushSubnormals) {
  EXPECT_EQ(Ex2(3.f), 8.f);
  EXPECT_EQ(Ex2(-INFINITY), 0.f);
  EXPECT_EQ(Ex2(-130.f), 0.f);
  EXPECT_EQ(Lg2(8.f), 3.f);
  EXPECT_EQ(Lg2(0x1p-140f), -INFINITY);
  EXPECT_EQ(Rsqrt(0.25f), 2.f);
  EXPECT_EQ(Rcp(4.f), 0.25f);
  EXPECT_EQ(Rcp(0x1p-130f), INFINITY);
}

}  // namespace
}  // namespace strata::kx
