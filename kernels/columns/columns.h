// Sums over rows, column by column, in a fixed order: rows are cut into the blocks of kernels/workspace.h
// (ReductionBlockRows). In a block, warp w of eight adds rows w, w + 8, ... in order and the eight are joined
// by a pairwise tree; the blocks' sums are joined by a pairwise tree over blocks.
#ifndef KERNELS_COLUMNS_COLUMNS_H_
#define KERNELS_COLUMNS_COLUMNS_H_

#include "kernels/gpu/elements.h"

namespace strata::gpu {

inline constexpr int kColumnWarps = kBlockThreads / 32;
inline constexpr int kRowBlocksMax = 64;

// Adds up what `Term` gives for each row and column: Term::kSums sums at once, sums[k] into
// partial[(k * row_blocks + block) * width + column].
//   struct Term {
//     static constexpr int kWidth, kSums;
//     template <int W> void Add(int64_t row, int64_t column, float (&sums)[kSums][W]) const;
//   };
struct ColumnGrid {
  int64_t rows, width, block_rows, row_blocks;
};

// Grid: x over 32 * W columns, y over blocks of rows.
template <class Term, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void ColumnPartials(const Term term, const ColumnGrid grid,
                                                              const Gmem<float> partial) {
  constexpr int W = kVector ? Term::kWidth : 1, kSums = Term::kSums, kColumns = 32 * W;
  Smem smem;
  const auto joined = smem.Alloc<float>(kSums * kColumnWarps * kColumns);
  const int lane = LaneId(), warp = WarpId();
  const int64_t column = static_cast<int64_t>(BlockIdx().x) * kColumns + lane * W;
  const int64_t first = static_cast<int64_t>(BlockIdx().y) * grid.block_rows;
  const int64_t end = first + grid.block_rows < grid.rows ? first + grid.block_rows : grid.rows;
  float sums[kSums][W] = {};
  if (column < grid.width) {
    for (int64_t row = first + warp; row < end; row += kColumnWarps) term.template Add<W>(row, column, sums);
  }
  // Element c of a warp's columns at [c % W * 32 + lane]: neighbouring lanes in neighbouring banks.
  KX_UNROLL
  for (int s = 0; s < kSums; ++s) {
    KX_UNROLL
    for (int k = 0; k < W; ++k) joined.Store(((s * kColumnWarps + warp) * W + k) * 32 + lane, sums[s][k]);
  }
  KX_MUTANT("fused/columns/sync", Sync(), (void)0);
  for (int i = static_cast<int>(ThreadIdx().x); i < kSums * kColumns; i += kBlockThreads) {
    const int s = i / kColumns, at = i % kColumns;
    float v[kColumnWarps];
    KX_UNROLL
    for (int w = 0; w < kColumnWarps; ++w) v[w] = joined.Load((s * kColumnWarps + w) * kColumns + at);
    KX_UNROLL
    for (int half = kColumnWarps / 2; half > 0; half /= 2) {
      KX_UNROLL
      for (int w = 0; w < half; ++w) v[w] += v[w + half];
    }
    const int64_t to = static_cast<int64_t>(BlockIdx().x) * kColumns + at % 32 * W + at / 32;
    if (to < grid.width) partial.Store((s * grid.row_blocks + BlockIdx().y) * grid.width + to, v[0]);
  }
}

// out[column] = the tree over the blocks' sums, of which there are at most kBlocks. Grid: x over
// kBlockThreads columns.
template <int kBlocks>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void ColumnTree(const Gmem<const float> partial,
                                                          const Gmem<float> out, const int64_t width,
                                                          const int row_blocks) {
  const int64_t column = static_cast<int64_t>(BlockIdx().x) * kBlockThreads + ThreadIdx().x;
  if (column >= width) return;
  float v[kBlocks];
  KX_UNROLL
  for (int b = 0; b < kBlocks; ++b) v[b] = b < row_blocks ? partial.Load(b * width + column) : 0.0f;
  KX_UNROLL
  for (int stride = 1; stride < kBlocks; stride *= 2) {
    KX_UNROLL
    for (int b = 0; b + stride < kBlocks; b += 2 * stride) v[b] += v[b + stride];
  }
  out.Store(column, v[0]);
}

// Sums of a matrix's columns.
template <class T>
struct PlainTerm {
  static constexpr int kWidth = kWide<T>, kSums = 1;
  Gmem<const T> x;
  int64_t ld;

  template <int W>
  KX_DEVICE void Add(int64_t row, int64_t column, float (&sums)[kSums][W]) const {
    float v[W];
    LoadFloats<W>(x, row * ld + column, v);
    KX_UNROLL
    for (int k = 0; k < W; ++k) sums[0][k] += v[k];
  }
};

}  // namespace strata::gpu

#endif  // KERNELS_COLUMNS_COLUMNS_H_
