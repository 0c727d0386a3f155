#include "kernels/optimizer/adamw8.h"

#include <cmath>
#include <string>
#include <utility>
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
  EXPECT_EQ(EncodeSigned(-0.0f), 0);
  EXPECT_EQ(EncodeSigned(-1e-30f), 0);
  EXPECT_EQ(EncodeSigned(-1.875f), 0xff);
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
  std::vector<float> x(n), x8(n), m(n), v(n), grad(n), m_scale(16), v_scale(16);
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

// States of n elements in memory of their own.
struct States {
  explicit States(int64_t n)
      : master(n),
        m(n),
        v(n),
        m_scale((n + kCode8Block - 1) / kCode8Block),
        v_scale(m_scale.size()),
        params(2 * n) {}

  AdamW8Range Range(const std::vector<float>& grad, DType dtype) {
    return {.n = static_cast<int64_t>(master.size()),
            .grad = grad.data(),
            .master = master.data(),
            .m = m.data(),
            .m_scale = m_scale.data(),
            .v = v.data(),
            .v_scale = v_scale.data(),
            .params = params.data(),
            .params_dtype = dtype};
  }
  bool operator==(const States&) const = default;

  std::vector<float> master;
  std::vector<uint8_t> m, v;
  std::vector<float> m_scale, v_scale;
  std::vector<uint16_t> params;
};

TEST(AdamW8, ABlockOfZerosStaysZero) {
  constexpr int64_t n = 3 * kCode8Block + 44;
  std::vector<float> grad(n);
  States states(n);
  states.master.assign(n, 1.0f);
  for (int64_t i = 3 * kCode8Block; i < n; ++i) grad[i] = 1;
  AdamW8(MakeAdamWScalars({.lr = 0.1}, 1), states.Range(grad, DType::kBF16));
  EXPECT_EQ(states.master[0], 1.0f);
  EXPECT_EQ(states.m_scale[0], 0);
  EXPECT_EQ(states.m[0], 0);
  EXPECT_EQ(states.m[n - 1], 0x7f);  // all alike: the largest code
  EXPECT_EQ(states.v[n - 1], 0xff);
  EXPECT_NEAR(states.master[n - 1], 0.9f, 1e-5);
}

// A gradient of minus zero once made the largest code of what had been a tiny negative m.
TEST(AdamW8, MinusZeroIsZero) {
  std::vector<float> grad(kCode8Block, 1.0f);
  grad[1] = -1e-12f;
  States states(kCode8Block);
  AdamW8(MakeAdamWScalars({.lr = 0.1}, 1), states.Range(grad, DType::kBF16));
  EXPECT_EQ(states.m[1], 0);
  grad[1] = -0.0f;
  AdamW8(MakeAdamWScalars({.lr = 0.1}, 2), states.Range(grad, DType::kBF16));
  EXPECT_EQ(states.m[1], 0);
}

// What is next to nothing, and what overflows a float, has finite factors.
TEST(AdamW8, FactorsAreFinite) {
  for (const float g : {1e-21f, 1e-30f, 1e21f, 3e38f}) {
    std::vector<float> grad(kCode8Block, g);
    grad[7] = g / 4;
    States states(kCode8Block);
    for (int64_t step = 1; step <= 3; ++step)
      AdamW8(MakeAdamWScalars({.lr = 0.1}, step), states.Range(grad, DType::kBF16));
    EXPECT_TRUE(std::isfinite(states.m_scale[0]) && std::isfinite(states.v_scale[0])) << g;
    EXPECT_GT(states.m_scale[0], 0) << g;
    EXPECT_EQ(states.v[0] > 0, g > 1e-29f) << g;  // a square below the least float is zero
    for (const float x : states.master) EXPECT_TRUE(std::isfinite(x)) << g;
  }
}

TEST(AdamW8, EveryInstructionSetHasTheSameBits) {
  const CounterRandom random(11, 5);
  uint64_t draw = 0;
  for (const int64_t n : {1, 63, 64, 65, 640, 4096, 4097, 20'000}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      States expected(n);
      for (float& x : expected.master) x = static_cast<float>(random.Normal(draw++));
      std::vector<std::pair<std::string, States>> others;
      for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
        if (Supported(isa)) others.push_back({Name(isa), expected});
      }
      std::vector<float> grad(n);
      for (int64_t step = 1; step <= 4; ++step) {
        for (float& g : grad) {
          const uint64_t kind = random.Below(draw++, 12);
          const double size = std::ldexp(1, static_cast<int>(random.Below(draw++, 60)) - 50);
          g = static_cast<float>(random.Normal(draw++) * size);
          if (kind == 0) g = 0;
          if (kind == 1) g = -0.0f;
          if (kind == 2) g = 1e-41f;
          if (kind == 3 && step == 3) g = 2e20f;  // v overflows
        }
        const AdamWScalars scalars = MakeAdamWScalars({.lr = 1e-2, .weight_decay = 0.1}, step, 0.7f);
        AdamW8OnIsa(Isa::kScalar, scalars, expected.Range(grad, dtype));
        for (auto& [name, states] : others) {
          const Isa isa = name == "scalar" ? Isa::kScalar : name == "avx2" ? Isa::kAvx2 : Isa::kAvx512;
          AdamW8OnIsa(isa, scalars, states.Range(grad, dtype), 2);
          EXPECT_TRUE(states == expected) << name << " n=" << n << " " << Name(dtype) << " step " << step;
        }
      }
    }
  }
}

// Where a chunk ends is invisible as long as it ends with a block; a block's neighbours are.
TEST(AdamW8, RangesMayBeCutAtBlocks) {
  constexpr int64_t n = 10 * kCode8Block;
  const CounterRandom random(3, 9);
  std::vector<float> grad(n);
  States whole(n), parts(n);
  for (int64_t step = 1; step <= 3; ++step) {
    for (int64_t i = 0; i < n; ++i) grad[i] = static_cast<float>(random.Normal(n * step + i));
    const AdamWScalars scalars = MakeAdamWScalars({.lr = 1e-2}, step);
    AdamW8(scalars, whole.Range(grad, DType::kBF16));
    for (const int64_t first : {0, 1, 4, 9}) {
      const int64_t last = first == 0 ? 1 : first == 1 ? 4 : first == 4 ? 9 : 10;
      AdamW8Range part = parts.Range(grad, DType::kBF16);
      const int64_t begin = first * kCode8Block;
      part.n = (last - first) * kCode8Block;
      part.grad += begin;
      part.master += begin;
      part.m += begin;
      part.v += begin;
      part.m_scale += first;
      part.v_scale += first;
      part.params = parts.params.data() + begin;
      AdamW8(scalars, part);
    }
    EXPECT_TRUE(whole == parts) << step;
  }
}

}  // namespace
}  // namespace strata
