// The kernels of every family on the emulator: every kind of shape, every order, fresh random cases.
#include <gtest/gtest.h>

#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/emulated_case.h"

namespace strata::attention {
namespace {

using kx::emu::Accumulate;
using kx::emu::Options;
using kx::emu::Order;

EmulatedCase Causal(int heads, int kv_heads, int head_dim, std::vector<int> q, std::vector<int> k) {
  EmulatedCase c{heads, kv_heads, head_dim};
  c.q_lengths = std::move(q);
  c.k_lengths = std::move(k);
  c.right = 0;
  return c;
}

class Attention : public testing::TestWithParam<Family> {
 protected:
  static bool HasBackward() { return GetParam() != Family::kFa3Fp8; }
  void Check(DType dtype, const EmulatedCase& c, bool backward, Options options = {}) {
    EXPECT_EQ(RunEmulated(GetParam(), dtype, c, backward && HasBackward(), 11, options), "")
        << Name(dtype) << " " << c.Describe();
  }
  void Random(int cases, int length_max, bool backward, const std::vector<int>& head_dims) {
    const uint64_t seed = std::random_device()();
    printf("seed %lu\n", static_cast<unsigned long>(seed));
    std::mt19937_64 random(seed);
    for (int i = 0; i < cases; ++i) {
      const EmulatedCase c = RandomCase(random, head_dims, length_max);
      Options options;
      options.order = kx::emu::kAllOrders[random() % 5];
      options.accumulate = static_cast<Accumulate>(random() % 3);
      options.seed = random();
      const DType dtype = random() % 2 == 0 ? DType::kBF16 : DType::kF16;
      ASSERT_EQ(RunEmulated(GetParam(), dtype, c, backward, random(), options), "")
          << "seed " << seed << " case " << i << ": " << Name(dtype) << " " << c.Describe() << " order "
          << static_cast<int>(options.order);
    }
  }
};

TEST_P(Attention, OneQueryOneKey) { Check(DType::kBF16, Causal(2, 2, 64, {1}, {1}), true); }
TEST_P(Attention, OneQueryFacesManyKeys) { Check(DType::kF16, Causal(4, 1, 128, {1}, {77}), true); }
TEST_P(Attention, RowsThatSeeNothingAreZeroAndMinusInfinity) {
  Check(DType::kBF16, Causal(1, 1, 64, {130}, {50}), true);
}
TEST_P(Attention, FewerQueriesThanKeysAreAlignedAtTheEnd) {
  Check(DType::kF16, Causal(2, 1, 96, {50}, {133}), true);
}
TEST_P(Attention, EightQueryHeadsShareOneKeyHead) {
  Check(DType::kBF16, Causal(8, 1, 64, {37, 37}, {37, 37}), true);
}
TEST_P(Attention, EverythingVisible) {
  EmulatedCase c = Causal(1, 1, 128, {70}, {90});
  c.right = kUnbounded;
  Check(DType::kBF16, c, true);
}
TEST_P(Attention, SlidingWindow) {
  EmulatedCase c = Causal(2, 1, 64, {150}, {150});
  c.left = 20;
  Check(DType::kBF16, c, true);
  c.right = 7;
  Check(DType::kF16, c, true);
}
TEST_P(Attention, PackedDocumentsSeeOnlyThemselvesAndMayBeEmpty) {
  EmulatedCase c = Causal(2, 2, 64, {33, 0, 70, 5, 9}, {33, 12, 70, 0, 9});
  c.packed = true;
  Check(DType::kBF16, c, true);
  c.right = kUnbounded;
  Check(DType::kF16, c, true);
}
// What lies behind the last document is uninitialized memory as often as not.
TEST_P(Attention, NaNsBehindTheLastDocumentStayThere) {
  EmulatedCase c = Causal(2, 1, 64, {33, 70}, {50, 75});
  c.packed = true;
  c.tail = 30;
  Check(DType::kBF16, c, true);
  c.right = kUnbounded;
  c.head_dim = 96;
  Check(DType::kF16, c, true);
}
TEST_P(Attention, HeadsOfAnyMultipleOfEightArePadded) {
  Check(DType::kBF16, Causal(2, 1, 8, {40}, {40}), true);
  Check(DType::kF16, Causal(1, 1, 72, {40}, {40}), true);
  Check(DType::kBF16, Causal(1, 1, 200, {40}, {40}), false);
}
TEST_P(Attention, SharpSoftmaxKeepsItsMaximum) {
  EmulatedCase c = Causal(1, 1, 64, {96}, {96});
  c.magnitude = 4;
  Check(DType::kBF16, c, true);
}
TEST_P(Attention, ForwardOf256) { Check(DType::kBF16, Causal(1, 1, 256, {70}, {100}), false); }

// More than two rounds of tiles go through every ring; the block's own side stays short.
TEST_P(Attention, RingsAreWrappedTwice) {
  for (const int dim : {64, 96, 128}) {
    const int longest = GetParam() != Family::kFa2 ? 5 * 128 : dim == 64 ? 5 * 64 : 5 * 32;
    EmulatedCase c = Causal(1, 1, dim, {20}, {longest + 3});
    c.right = kUnbounded;
    Check(DType::kBF16, c, true);
    c.q_lengths = {longest + 3};
    c.k_lengths = {20};
    Check(DType::kF16, c, true);
  }
}
TEST_P(Attention, RingOf256IsWrappedTwice) {
  EmulatedCase c = Causal(1, 1, 256, {20}, {5 * (GetParam() == Family::kFa3Fp8 ? 128 : 64) + 3});
  Check(DType::kBF16, c, false);
}

TEST_P(Attention, BitsDoNotDependOnTheOrderOfThreadsAndBlocks) {
  EmulatedCase c = Causal(2, 1, 64, {90, 90}, {110, 110});
  std::string first;
  for (const Order order : kx::emu::kAllOrders) {
    Options options;
    options.order = order;
    std::string bits;
    ASSERT_EQ(RunEmulated(GetParam(), DType::kBF16, c, HasBackward(), 5, options, &bits), "");
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << "order " << static_cast<int>(order);
  }
}

TEST_P(Attention, ToleratesEveryWayATensorCoreAdds) {
  for (const Accumulate accumulate : {Accumulate::kDouble, Accumulate::kTruncate}) {
    Options options;
    options.accumulate = accumulate;
    Check(DType::kBF16, Causal(2, 1, 64, {60}, {60}), true, options);
  }
}

TEST_P(Attention, RandomForward) { Random(10, 260, false, {64, 96, 128, 256, 40}); }
TEST_P(Attention, RandomBackward) { Random(8, 160, HasBackward(), {64, 96, 128, 24}); }

INSTANTIATE_TEST_SUITE_P(Families, Attention, testing::Values(Family::kFa2, Family::kFa3, Family::kFa3Fp8),
                         [](const auto& info) {
                           return info.param == Family::kFa2   ? "Fa2"
                                  : info.param == Family::kFa3 ? "Fa3"
                                                               : "Fa3Fp8";
                         });

TEST(Fa2, LdmatrixNeverHitsABankTwice) {
  for (const int dim : {64, 96, 128}) {
    kx::emu::Stats stats;
    ASSERT_EQ(
        RunEmulated(Family::kFa2, DType::kBF16, Causal(1, 1, dim, {40}, {70}), true, 3, {}, nullptr, &stats),
        "");
    EXPECT_GT(stats.ldmatrix, 0u);
    EXPECT_EQ(stats.ldmatrix_wavefronts, stats.ldmatrix) << dim;
    EXPECT_TRUE(stats.conflicts.empty());
  }
}

TEST(Fa3, ProductsAreWgmmaAlone) {
  for (const Family family : {Family::kFa3, Family::kFa3Fp8}) {
    kx::emu::Stats stats;
    ASSERT_EQ(RunEmulated(family, DType::kBF16, Causal(1, 1, 64, {40}, {70}), family == Family::kFa3, 3, {},
                          nullptr, &stats),
              "");
    EXPECT_GT(stats.wgmma, 0u);
    EXPECT_EQ(stats.mma, 0u);
  }
}

}  // namespace
}  // namespace strata::attention
