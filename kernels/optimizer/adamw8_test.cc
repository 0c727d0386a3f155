#include "kernels/optimizer/adamw8.h"

#include <cmath>
#include <vector>

#include "common/random.h"
#include "gtest/gtest.h"
#include "kernels/optimizer/code8.h"

namespace strata {
namespace {

template <int kExponents>
void CheckCodes() {
  constexpr uint32_t kCodes = kExponents * 8 + 8;
  EXPECT_EQ(DecodeCode<kExponents>(0), 0);
  EXPECT_EQ(DecodeCode<kExponents>(1), std::ldexp(1, 1 - kExponents - 3));
  EXPECT_EQ(DecodeCode<kExponents>(kCodes - 1), kCode8Largest);
  for (uint32_t code = 0; code < kCodes; ++code) {
    const float value = DecodeCode<kExponents>(code);
    EXPECT_EQ(EncodeCode<kExponents>(value), code) << value;
    if (code + 1 == kCodes) break;
    const float next = DecodeCode<kExponents>(code + 1), middle = (value + next) / 2;  // exact
    EXPECT_LT(value, next);
    EXPECT_EQ(EncodeCode<kExponents>(middle), code + code % 2) << "a tie goes to the even code, " << middle;
    EXPECT_EQ(EncodeCode<kExponents>(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(EncodeCode<kExponents>(std::nextafter(middle, 9.0f)), code + 1);
  }
  EXPECT_EQ(EncodeCode<kExponents>(1.9f), kCodes - 1);
  EXPECT_EQ(EncodeCode<kExponents>(3.0f), kCodes - 1);
}

TEST(Code8, EveryCodeIsTheNearestOfItsValues) {
  CheckCodes<15>();
  CheckCodes<31>();
}

TEST(Code8, SignsAndWhatIsNotZeroStay) {
  for (int code = 0; code < 256; ++code) {
    if (code == 0x80) continue;  // minus zero is never written
    EXPECT_EQ(EncodeSigned(DecodeSigned(static_cast<uint8_t>(code))), code);
    EXPECT_EQ(EncodeUnsigned(DecodeUnsigned(static_cast<uint8_t>(code))), code);
  }
  EXPECT_EQ(EncodeSigned(0.0f), 0);
  EXPECT_EQ(EncodeUnsigned(0.0f), 0);
  EXPECT_EQ(EncodeUnsigned(1e-30f), 1);
  EXPECT_EQ(EncodeSigned(-1e-30f) & 0x7f, 0);
}

// A noisy quadratic with curvatures over three decades: eight-bit states end as low as floats do.
TEST(AdamW8, EndsWhereFloatStatesEnd) {
  constexpr int64_t n = 1000;
  const CounterRandom random(7, 1);
  std::vector<double> curvature(n), target(n);
  for (int64_t i = 0; i < n; ++i) {
    curvature[i] = std::pow(10, -3 * random.Uniform(i));
    target[i] = random.Normal(i + n);
  }
  const auto loss = [&](const std::vector<float>& x) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += curvature[i] * std::pow(x[i] - target[i], 2);
    return sum;
  };
  std::vector<float> x(n), x8(n), m(n), v(n), grad(n), m_scale(4), v_scale(4);
  std::vector<uint8_t> m8(n), v8(n);
  const double start = loss(x);
  uint64_t draws = 0;
  for (int64_t step = 1; step <= 300; ++step) {
    const AdamWScalars scalars = MakeAdamWScalars({.lr = 0.02, .weight_decay = 0}, step);
    const auto gradient = [&](const std::vector<float>& at, uint64_t from) {
      for (int64_t i = 0; i < n; ++i) {
        grad[i] = static_cast<float>(curvature[i] *
                                     (2 * (at[i] - target[i]) + 0.1 * random.Normal(3 * n + from + i)));
      }
    };
    gradient(x, draws);
    AdamW(scalars, {.n = n, .grad = grad.data(), .master = x.data(), .m = m.data(), .v = v.data()});
    gradient(x8, draws);
    AdamW8(scalars, {.n = n,
                     .grad = grad.data(),
                     .master = x8.data(),
                     .m = m8.data(),
                     .m_scale = m_scale.data(),
                     .v = v8.data(),
                     .v_scale = v_scale.data()});
    draws += n;
  }
  EXPECT_LT(loss(x), 0.02 * start);
  EXPECT_LT(loss(x8), 1.1 * loss(x) + 1e-3 * start);
}

TEST(AdamW8, ABlockOfZerosStaysZero) {
  constexpr int64_t n = 300;
  std::vector<float> grad(n), master(n, 1.0f), m_scale(2), v_scale(2);
  std::vector<uint8_t> m(n), v(n);
  for (int64_t i = 256; i < n; ++i) grad[i] = 1;
  AdamW8(MakeAdamWScalars({.lr = 0.1}, 1), {.n = n,
                                            .grad = grad.data(),
                                            .master = master.data(),
                                            .m = m.data(),
                                            .m_scale = m_scale.data(),
                                            .v = v.data(),
                                            .v_scale = v_scale.data()});
  EXPECT_EQ(master[0], 1.0f);
  EXPECT_EQ(m_scale[0], 0);
  EXPECT_EQ(m[0], 0);
  EXPECT_EQ(m[299], 0x7f);  // all alike: the largest code
  EXPECT_EQ(v[299], 0xff);
  EXPECT_NEAR(master[299], 0.9f, 1e-5);
}

}  // namespace
}  // namespace strata
