// Sums of squares with a fixed shape: the bits depend on the values and on where the flat range starts, never
// on chunks, threads or instruction set. (No error-free arithmetic: the same rounding errors every time.)
//
// A range is cut into leaves of 4096 elements (the last may be shorter). Within a leaf, element i is squared
// and added in double to lane i % 32 (the square of a float is exact in double), then the lanes are joined
// halving: lane j += lane j + 16, + 8, ... + 1. The leaf values are joined in index order by a pairwise tree:
// the sum of n > 1 leaves is the sum of the first p plus the sum of the others, p the largest power of
// two below n.
//
// The check for non-finite values costs nothing: squares of finite floats cannot overflow a double, so a leaf
// is finite exactly when all its elements are.
#ifndef KERNELS_OPTIMIZER_REDUCE_H_
#define KERNELS_OPTIMIZER_REDUCE_H_

#include <array>
#include <cstdint>
#include <span>

#include "kernels/optimizer/isa.h"

namespace strata {

inline constexpr int64_t kReductionLeaf = 4096;  // elements

// The value of one leaf of n <= kReductionLeaf elements: not finite exactly when some element is not.
double LeafSumSquares(const float* x, int64_t n);
double LeafSumSquaresOnIsa(Isa isa, const float* x, int64_t n);

// The index of the first element that is not finite, or -1.
int64_t FirstNonFinite(const float* x, int64_t n);

// leaves[i] = the leaf that starts at x[i * kReductionLeaf], for all ceil(n / kReductionLeaf) leaves. A flat
// range may be given piece by piece if pieces start at multiples of kReductionLeaf of the whole.
void LeafSums(const float* x, int64_t n, double* leaves, int threads = 1);

// The pairwise tree over leaf values.
double TreeSum(std::span<const double> leaves);

// The same tree, fed one leaf at a time in index order, in constant memory.
class TreeSummer {
 public:
  void Add(double leaf);
  double Total() const;  // of the leaves so far; 0 for none

 private:
  uint64_t count_ = 0;
  std::array<double, 64>
      partial_;  // partial_[b]: a complete subtree of 2^b leaves, where bit b of count_ is set
};

struct SumSquaresResult {
  double sum = 0;          // not finite exactly when an element is not
  int64_t first_bad = -1;  // index of the first element that is not finite
};

// The whole range at once.
SumSquaresResult SumSquares(const float* x, int64_t n, int threads = 1);

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_REDUCE_H_
