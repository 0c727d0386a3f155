#include "kernels/optimizer/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "common/check.h"
#include "common/checked.h"
#include "kernels/optimizer/parallel.h"

#if STRATA_OPTIMIZER_X86
#include <immintrin.h>
#endif

namespace strata {
namespace {

constexpr int kLanes = 32;
// Ask for memory this far ahead, also beyond the leaf: the next leaf is usually next in memory.
constexpr int64_t kPrefetchElements = 4096 / sizeof(float);

double JoinLanes(double* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// Adds elements begin..n-1 to their lanes; begin is a multiple of kLanes. A product of two floats is exact in
// double, so multiply-and-add rounds once with or without a fused instruction.
void AddToLanes(const float* x, int64_t begin, int64_t n, double* lanes) {
  for (int64_t i = begin; i < n; ++i) {
    const double value = x[i];
    lanes[i % kLanes] += value * value;
  }
}

double LeafScalar(const float* x, int64_t n) {
  double lanes[kLanes] = {};
  AddToLanes(x, 0, n, lanes);
  return JoinLanes(lanes);
}

#if STRATA_OPTIMIZER_X86

STRATA_TARGET_AVX2 double LeafAvx2(const float* x, int64_t n) {
  __m256d sums[kLanes / 4];
  for (__m256d& sum : sums) sum = _mm256_setzero_pd();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    _mm_prefetch(x + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(x + i + kPrefetchElements + kLanes / 2, _MM_HINT_T0);
#pragma GCC unroll 8
    for (int j = 0; j < kLanes / 4; ++j) {
      const __m256d value = _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4 * j));
      sums[j] = _mm256_fmadd_pd(value, value, sums[j]);
    }
  }
  double lanes[kLanes];
  for (int j = 0; j < kLanes / 4; ++j) _mm256_storeu_pd(lanes + 4 * j, sums[j]);
  AddToLanes(x, i, n, lanes);
  return JoinLanes(lanes);
}

STRATA_TARGET_AVX512 double LeafAvx512(const float* x, int64_t n) {
  __m512d sums[kLanes / 8];
  for (__m512d& sum : sums) sum = _mm512_setzero_pd();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    _mm_prefetch(x + i + kPrefetchElements, _MM_HINT_T0);
    _mm_prefetch(x + i + kPrefetchElements + kLanes / 2, _MM_HINT_T0);
#pragma GCC unroll 4
    for (int j = 0; j < kLanes / 8; ++j) {
      const __m512d value = _mm512_cvtps_pd(_mm256_loadu_ps(x + i + 8 * j));
      sums[j] = _mm512_fmadd_pd(value, value, sums[j]);
    }
  }
  double lanes[kLanes];
  for (int j = 0; j < kLanes / 8; ++j) _mm512_storeu_pd(lanes + 8 * j, sums[j]);
  AddToLanes(x, i, n, lanes);
  return JoinLanes(lanes);
}

#endif  // STRATA_OPTIMIZER_X86

}  // namespace

double LeafSumSquaresOnIsa(Isa isa, const float* x, int64_t n) {
  STRATA_CHECK(n >= 0 && n <= kReductionLeaf);
#if STRATA_OPTIMIZER_X86
  if (isa == Isa::kAvx512) return LeafAvx512(x, n);
  if (isa == Isa::kAvx2) return LeafAvx2(x, n);
#endif
  return LeafScalar(x, n);
}

double LeafSumSquares(const float* x, int64_t n) { return LeafSumSquaresOnIsa(BestIsa(), x, n); }

int64_t FirstNonFinite(const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if ((std::bit_cast<uint32_t>(x[i]) & 0x7F800000) == 0x7F800000) return i;
  }
  return -1;
}

void LeafSums(const float* x, int64_t n, double* leaves, int threads) {
  static_assert(kPartUnit % kReductionLeaf == 0, "parts are made of whole leaves");
  const Isa isa = BestIsa();
  ForEachPart(n, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kReductionLeaf) {
      leaves[i / kReductionLeaf] = LeafSumSquaresOnIsa(isa, x + i, std::min(kReductionLeaf, end - i));
    }
  });
}

double TreeSum(std::span<const double> leaves) {
  if (leaves.empty()) return 0;
  if (leaves.size() == 1) return leaves[0];
  const size_t left = std::bit_floor(leaves.size() - 1);
  return TreeSum(leaves.first(left)) + TreeSum(leaves.subspan(left));
}

void TreeSummer::Add(double leaf) {
  // Like adding one to a binary number: a carry joins two complete subtrees of equal size.
  int bit = 0;
  for (; count_ >> bit & 1; ++bit) leaf = partial_[bit] + leaf;
  partial_[bit] = leaf;
  ++count_;
}

double TreeSummer::Total() const {
  if (count_ == 0) return 0;
  int bit = std::countr_zero(count_);
  double total = partial_[bit];
  for (++bit; bit < 64; ++bit) {
    if (count_ >> bit & 1) total = partial_[bit] + total;
  }
  return total;
}

SumSquaresResult SumSquares(const float* x, int64_t n, int threads) {
  // Leaves go through a buffer on the stack: nothing is allocated, whatever n.
  constexpr int64_t kBatchLeaves = 1024;
  double leaves[kBatchLeaves];
  SumSquaresResult result;
  TreeSummer tree;
  for (int64_t begin = 0; begin < n; begin += kBatchLeaves * kReductionLeaf) {
    const int64_t size = std::min(n - begin, kBatchLeaves * kReductionLeaf);
    LeafSums(x + begin, size, leaves, threads);
    const int64_t count = CeilDiv(size, kReductionLeaf);
    for (int64_t i = 0; i < count; ++i) {
      if (result.first_bad < 0 && !std::isfinite(leaves[i])) {
        const int64_t start = begin + i * kReductionLeaf;
        result.first_bad = start + FirstNonFinite(x + start, std::min(kReductionLeaf, n - start));
      }
      tree.Add(leaves[i]);
    }
  }
  result.sum = tree.Total();
  return result;
}

}  // namespace strata
