#include "kernels/optimizer/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "common/bfloat16.h"
#include "common/float16.h"
#include "common/random.h"
#include "kernels/optimizer/accumulate.h"
#include "kernels/optimizer/cast.h"

namespace strata {
namespace {

constexpr uint64_t kSeed = 7;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> Values(int64_t n, uint64_t stream) {
  std::printf("seed %llu, stream %llu\n", static_cast<unsigned long long>(kSeed),
              static_cast<unsigned long long>(stream));
  const CounterRandom random(kSeed, stream);
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<float>(random.Normal(2 * i) * std::exp2(10 * random.Normal(2 * i + 1)));
  }
  return x;
}

uint64_t Bits(double value) { return std::bit_cast<uint64_t>(value); }

TEST(Reduce, ALeafHasTheSameBitsOnEveryInstructionSet) {
  const std::vector<float> x = Values(kReductionLeaf + 5, 1);
  for (int64_t n = 0; n <= kReductionLeaf; n = n < 200 ? n + 1 : n + 487) {
    for (int64_t start = 0; start < 5; ++start) {
      const double expected = LeafSumSquaresOnIsa(Isa::kScalar, x.data() + start, n);
      for (const Isa isa : {Isa::kAvx2, Isa::kAvx512}) {
        if (!Supported(isa)) continue;
        ASSERT_EQ(Bits(LeafSumSquaresOnIsa(isa, x.data() + start, n)), Bits(expected))
            << Name(isa) << " " << n;
      }
    }
  }
}

TEST(Reduce, IsCloseToTheExactSum) {
  const std::vector<float> x = Values(100000, 2);
  long double exact = 0;
  for (const float value : x) exact += static_cast<long double>(value) * value;
  EXPECT_NEAR(SumSquares(x.data(), 100000).sum / static_cast<double>(exact), 1, 1e-14);
}

TEST(Reduce, PiecesAndThreadsDoNotChangeTheBits) {
  constexpr int64_t n = 1100 * kReductionLeaf + 123;  // more than one batch of leaves
  const std::vector<float> x = Values(n, 3);
  std::vector<double> leaves((n + kReductionLeaf - 1) / kReductionLeaf);
  LeafSums(x.data(), n, leaves.data());
  const double expected = TreeSum(leaves);
  for (const int threads : {1, 2, 3, 7}) {
    const SumSquaresResult got = SumSquares(x.data(), n, threads);
    EXPECT_EQ(Bits(got.sum), Bits(expected));
    EXPECT_EQ(got.first_bad, -1);
  }
  for (const int64_t piece : {kReductionLeaf, 3 * kReductionLeaf, 64 * kReductionLeaf}) {
    std::vector<double> pieces(leaves.size());
    for (int64_t begin = 0; begin < n; begin += piece) {
      LeafSums(x.data() + begin, std::min(piece, n - begin), pieces.data() + begin / kReductionLeaf, 2);
    }
    EXPECT_EQ(pieces, leaves);
  }
}

TEST(Reduce, TheStreamedTreeIsTheTree) {
  std::vector<double> leaves;
  EXPECT_EQ(TreeSum(leaves), 0);
  TreeSummer summer;
  EXPECT_EQ(summer.Total(), 0);
  const CounterRandom random(kSeed, 4);
  for (int i = 0; i < 1030; ++i) {
    leaves.push_back(std::exp2(20 * random.Normal(i)));
    summer.Add(leaves.back());
    ASSERT_EQ(Bits(summer.Total()), Bits(TreeSum(leaves))) << i;
  }
  // The shape itself: ((0 1) (2 3)) ((4 5) 6).
  leaves.resize(7);
  const auto& l = leaves;
  EXPECT_EQ(TreeSum(leaves), ((l[0] + l[1]) + (l[2] + l[3])) + ((l[4] + l[5]) + l[6]));
}

TEST(Reduce, NamesTheFirstElementThatIsNotFinite) {
  for (const int64_t position :
       {int64_t{0}, int64_t{31}, kReductionLeaf - 1, kReductionLeaf, 5 * kReductionLeaf + 77}) {
    for (const float bad : {kInf, -kInf, kNan}) {
      std::vector<float> x(6 * kReductionLeaf, 1.5f);
      x[position] = bad;
      x.back() = kNan;
      const SumSquaresResult got = SumSquares(x.data(), static_cast<int64_t>(x.size()), 2);
      EXPECT_FALSE(std::isfinite(got.sum));
      EXPECT_EQ(got.first_bad, position);
    }
  }
  std::vector<float> huge(3 * kReductionLeaf, std::numeric_limits<float>::max());
  const SumSquaresResult got = SumSquares(huge.data(), static_cast<int64_t>(huge.size()));
  EXPECT_TRUE(std::isfinite(got.sum));
  EXPECT_EQ(got.first_bad, -1);
  EXPECT_EQ(SumSquares(nullptr, 0).sum, 0);
}

TEST(Accumulate, AddsElementwise) {
  for (int64_t n : {0, 1, 15, 16, 17, 100, 3 * 4096 + 5}) {
    const std::vector<float> a = Values(n, 5), x = Values(n, 6);
    for (const int threads : {1, 3}) {
      std::vector<float> acc = a;
      Accumulate(acc.data(), x.data(), n, threads);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(std::bit_cast<uint32_t>(acc[i]), std::bit_cast<uint32_t>(a[i] + x[i]));
      }
    }
  }
}

template <typename Half>
void ExpectCastRounds(const std::vector<float>& x, DType dtype, Half (*round)(float)) {
  const auto n = static_cast<int64_t>(x.size());
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!Supported(isa)) continue;
    for (int64_t length : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, int64_t{31}, n}) {
      std::vector<Half> low(n + 1, Half{0x1234});
      CastParamsOnIsa(isa, x.data(), low.data(), dtype, length, 2);
      for (int64_t i = 0; i < length; ++i) {
        ASSERT_EQ(low[i].bits, round(x[i]).bits)
            << Name(dtype) << " on " << Name(isa) << ": " << std::bit_cast<uint32_t>(x[i]);
      }
      ASSERT_EQ(low[length].bits, 0x1234);
    }
  }
}

TEST(Cast, RoundsEveryBitPatternAsTheTypesDoIt) {
  constexpr int64_t n = 70001;
  const CounterRandom random(kSeed, 8);
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits = static_cast<uint32_t>(random.Bits(i));
    // Half of them near the range of fp16, denormals and ties included.
    if (i % 2 == 0)
      bits = (bits & 0x87FFF000) | (100 + bits % 48) << 23 | (bits % 3 == 0 ? 0x1000 : bits & 0xFFF);
    x[i] = std::bit_cast<float>(bits);
  }
  x[0] = kInf;
  x[1] = kNan;
  x[2] = std::bit_cast<float>(0x7F800001u);  // a NaN that truncation would turn into infinity
  x[3] = std::numeric_limits<float>::max();
  x[4] = std::numeric_limits<float>::denorm_min();
  x[5] = -0.0f;
  ExpectCastRounds<BFloat16>(x, DType::kBF16, ToBFloat16);
  ExpectCastRounds<Float16>(x, DType::kF16, ToFloat16);
  std::vector<float> copy(n);
  CastParams(x.data(), copy.data(), DType::kF32, n);
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(std::bit_cast<uint32_t>(copy[i]), std::bit_cast<uint32_t>(x[i]));
}

}  // namespace
}  // namespace strata
