#include "kernels/optimizer/adamw.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "common/bfloat16.h"
#include "common/float16.h"
#include "common/random.h"

namespace strata {
namespace {

constexpr uint64_t kSeed = 20261129;

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (Supported(isa)) {
      isas.push_back(isa);
    } else {
      std::printf("skipped: this processor has no %s\n", Name(isa));
    }
  }
  return isas;
}

struct States {
  std::vector<float> grad, master, m, v;
  std::vector<BFloat16> bf16;
  std::vector<Float16> f16;
  std::vector<float> f32;

  explicit States(int64_t n) : grad(n), master(n), m(n), v(n), bf16(n), f16(n), f32(n) {}

  AdamWRange Range(int64_t begin, int64_t n, int output) {
    AdamWRange range;
    range.n = n;
    range.grad = grad.data() + begin;
    range.master = master.data() + begin;
    range.m = m.data() + begin;
    range.v = v.data() + begin;
    if (output == 1) range.params = bf16.data() + begin;
    if (output == 2) {
      range.params = f32.data() + begin;
      range.params_dtype = DType::kF32;
    }
    if (output == 3) {
      range.params = f16.data() + begin;
      range.params_dtype = DType::kF16;
    }
    return range;
  }
};

// Any bit pattern: denormals, infinities, NaNs, huge and tiny values.
float AnyFloat(const CounterRandom& random, uint64_t index) {
  return std::bit_cast<float>(static_cast<uint32_t>(random.Bits(index)));
}

States RandomStates(int64_t n, uint64_t stream, bool wild) {
  const CounterRandom random(kSeed, stream);
  States s(n);
  for (int64_t i = 0; i < n; ++i) {
    if (wild) {
      s.grad[i] = AnyFloat(random, 4 * i);
      s.master[i] = AnyFloat(random, 4 * i + 1);
      s.m[i] = AnyFloat(random, 4 * i + 2);
      s.v[i] = std::fabs(AnyFloat(random, 4 * i + 3));
    } else {
      s.grad[i] = static_cast<float>(random.Normal(4 * i) * std::exp2(random.Normal(4 * i + 1) * 20));
      s.master[i] = static_cast<float>(random.Normal(4 * i + 1));
      s.m[i] = static_cast<float>(random.Normal(4 * i + 2) * 1e-3);
      s.v[i] = static_cast<float>(std::fabs(random.Normal(4 * i + 3)) * 1e-6);
    }
  }
  return s;
}

template <typename T>
uint32_t Canonical(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return std::isnan(ToFloat(value)) ? 0x7FC0 : value.bits;
  } else if constexpr (std::is_same_v<T, Float16>) {
    return std::isnan(ToFloat(value)) ? 0x7E00 : value.bits;
  } else {
    return std::isnan(value) ? 0x7FC00000 : std::bit_cast<uint32_t>(value);
  }
}

template <typename T>
void ExpectSameBits(const std::vector<T>& a, const std::vector<T>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_EQ(Canonical(a[i]), Canonical(b[i])) << what << "[" << i << "]";
}

void ExpectSameStates(const States& a, const States& b) {
  ExpectSameBits(a.master, b.master, "master");
  ExpectSameBits(a.m, b.m, "m");
  ExpectSameBits(a.v, b.v, "v");
  ExpectSameBits(a.bf16, b.bf16, "bf16");
  ExpectSameBits(a.f16, b.f16, "f16");
  ExpectSameBits(a.f32, b.f32, "f32");
}

constexpr AdamWParameters kHyper{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

TEST(AdamW, EveryInstructionSetGivesTheSameBitsOnAnyValuesLengthsAndAlignments) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const AdamWScalars scalars = MakeAdamWScalars(kHyper, 7, 0.37f);
  constexpr int64_t kPad = 3;  // elements around the range that must stay
  for (int64_t n = 0; n <= 130; ++n) {
    for (const bool wild : {false, true}) {
      for (const int output : {0, 1, 2, 3}) {
        const States start = RandomStates(n + 2 * kPad, 100 + n, wild);
        States expected = start;
        AdamWOnIsa(Isa::kScalar, scalars, expected.Range(kPad, n, output));
        for (int64_t i = 0; i < n + 2 * kPad; ++i) {
          if (i >= kPad && i < n + kPad) continue;
          ASSERT_EQ(Canonical(start.master[i]), Canonical(expected.master[i]));
        }
        for (const Isa isa : SupportedIsas()) {
          SCOPED_TRACE(testing::Message()
                       << Name(isa) << " n " << n << " wild " << wild << " output " << output);
          States got = start;
          AdamWOnIsa(isa, scalars, got.Range(kPad, n, output));
          ASSERT_NO_FATAL_FAILURE(ExpectSameStates(expected, got));
        }
      }
    }
  }
}

TEST(AdamW, AnySplitOfTheRangeAndAnyThreadsGiveTheSameBits) {
  constexpr int64_t n = 3 * 4096 + 777;
  const AdamWScalars scalars = MakeAdamWScalars(kHyper, 1000, 1.0f);
  const States start = RandomStates(n, 1, false);
  States expected = start;
  AdamWOnIsa(Isa::kScalar, scalars, expected.Range(0, n, 1));
  const CounterRandom random(kSeed, 2);
  for (const Isa isa : SupportedIsas()) {
    for (int round = 0; round < 20; ++round) {
      States got = start;
      uint64_t draw = 1000 * round;
      for (int64_t begin = 0; begin < n;) {
        const int64_t piece =
            std::min<int64_t>(n - begin, 1 + static_cast<int64_t>(random.Below(draw++, 3000)));
        AdamWOnIsa(isa, scalars, got.Range(begin, piece, 1));
        begin += piece;
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSameStates(expected, got));
    }
    for (const int threads : {2, 3, 5}) {
      States got = start;
      AdamWOnIsa(isa, scalars, got.Range(0, n, 1), threads);
      ASSERT_NO_FATAL_FAILURE(ExpectSameStates(expected, got));
    }
  }
}

TEST(AdamW, TheCopyIsTheMasterRoundedAsItsTypeDoesIt) {
  constexpr int64_t n = 100000;
  for (const Isa isa : SupportedIsas()) {
    States s = RandomStates(n, 3, true);
    // A step that leaves the master as it is: every bit pattern reaches the rounding.
    AdamWScalars scalars;
    scalars.grad_scale = 0;
    AdamWOnIsa(isa, scalars, s.Range(0, n, 1));
    AdamWOnIsa(isa, scalars, s.Range(0, n, 3));
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(Canonical(ToBFloat16(s.master[i])), Canonical(s.bf16[i]));
      ASSERT_EQ(Canonical(ToFloat16(s.master[i])), Canonical(s.f16[i]));
    }
  }
}

// torch.optim.AdamW (single-tensor form), in double.
struct Reference {
  double master, m = 0, v = 0;
  void Step(double g, const AdamWParameters& h, int64_t step) {
    master *= 1 - h.lr * h.weight_decay;
    m = h.beta1 * m + (1 - h.beta1) * g;
    v = h.beta2 * v + (1 - h.beta2) * g * g;
    const double bias1 = 1 - std::pow(h.beta1, static_cast<double>(step));
    const double bias2 = 1 - std::pow(h.beta2, static_cast<double>(step));
    const double denominator = std::sqrt(v) / std::sqrt(bias2) + h.eps;
    master -= h.lr / bias1 * m / denominator;
  }
};

TEST(AdamW, FollowsTheFloat64ReferenceOverManySteps) {
  constexpr int64_t n = 200;
  constexpr int kSteps = 300;
  const CounterRandom random(kSeed, 4);
  States s(n);
  std::vector<Reference> reference(n);
  for (int64_t i = 0; i < n; ++i) {
    s.master[i] = static_cast<float>(random.Normal(i));
    reference[i].master = s.master[i];
  }
  for (int step = 1; step <= kSteps; ++step) {
    AdamWParameters hyper = kHyper;
    hyper.lr = 1e-3 * (1 + step % 5);
    const float clip = step % 3 == 0 ? 0.25f : 1.0f;
    for (int64_t i = 0; i < n; ++i) {
      s.grad[i] =
          static_cast<float>(random.Normal(1000000 + step * n + i) * (1 + static_cast<double>(i)) * 1e-4);
      reference[i].Step(static_cast<double>(s.grad[i]) * clip, hyper, step);
    }
    AdamW(MakeAdamWScalars(hyper, step, clip), s.Range(0, n, 1));
  }
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_NEAR(s.master[i], reference[i].master, 3e-6 * std::max(1.0, std::fabs(reference[i].master)));
    EXPECT_NEAR(s.m[i], reference[i].m, 1e-6 * (1 + static_cast<double>(i)) * 1e-3);
    EXPECT_NEAR(s.v[i], reference[i].v, 1e-5 * reference[i].v);
  }
}

TEST(AdamW, AFirstStepMovesByTheLearningRate) {
  // m / bias1 = g and v / bias2 = g^2: the first update is lr * sign(g) but for eps.
  States s(3);
  s.grad = {0.5f, -2.0f, 0.0f};
  s.master = {1.0f, 1.0f, 1.0f};
  AdamWParameters hyper = kHyper;
  hyper.weight_decay = 0;
  AdamW(MakeAdamWScalars(hyper, 1), s.Range(0, 3, 0));
  EXPECT_NEAR(s.master[0], 1 - 3e-3, 1e-6);
  EXPECT_NEAR(s.master[1], 1 + 3e-3, 1e-6);
  EXPECT_EQ(s.master[2], 1.0f);
}

TEST(AdamW, BiasCorrectionsComeFromTheIntegerStep) {
  for (const int64_t step : {1, 2, 10, 1000, 123456, 100000000}) {
    const AdamWScalars s = MakeAdamWScalars({.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999}, step);
    const double bias1 = -std::expm1(static_cast<double>(step) * std::log(0.9));
    const double bias2 = -std::expm1(static_cast<double>(step) * std::log(0.999));
    EXPECT_NEAR(s.step_size, 1e-3 / bias1, 1e-3 / bias1 * 1e-7) << step;
    EXPECT_NEAR(s.inv_sqrt_bias2, 1 / std::sqrt(bias2), 1 / std::sqrt(bias2) * 1e-7) << step;
  }
  const AdamWScalars no_momentum = MakeAdamWScalars({.lr = 1, .beta1 = 0, .beta2 = 0}, 1);
  EXPECT_EQ(no_momentum.step_size, 1);
  EXPECT_EQ(no_momentum.inv_sqrt_bias2, 1);
}

TEST(AdamW, ZeroPaddingStaysZero) {
  States s(64);
  for (int step = 1; step <= 3; ++step) AdamW(MakeAdamWScalars(kHyper, step), s.Range(0, 64, 1));
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(s.master[i]), 0u);
    EXPECT_EQ(std::bit_cast<uint32_t>(s.m[i]), 0u);
    EXPECT_EQ(s.bf16[i].bits, 0u);
  }
}

}  // namespace
}  // namespace strata
