// Tiles of 16-bit rows in shared memory and the fragments mma.m16n8k16 takes from them (sm_80 and later).
#ifndef KERNELS_ATTENTION_FRAGMENTS_H_
#define KERNELS_ATTENTION_FRAGMENTS_H_

#include <cstdint>

#include "kernels/kx/kx.h"

namespace strata::attention {

// Element offset of column `column` (a multiple of 8 unless only its 16-byte chunk matters) in row `row` of a
// tile of kD columns. Chunks are exchanged so that the 8 rows of an ldmatrix lie in 8 different quarters of
// the banks: a row of 64, 128 or 256 elements starts at bank 0, so all 3 bits of the row are used; a row of
// 96 starts at bank 0 or 16 in turn, and the next two bits separate the rest inside groups of 4 chunks.
template <int kD>
KX_DEVICE int Swizzle(int row, int column) {
  static_assert(kD == 64 || kD == 96 || kD == 128 || kD == 256);
  const int chunk = column >> 3;
  const int moved = kD == 96 ? chunk ^ ((row >> 1) & 3) : chunk ^ (row & 7);
  return row * kD + moved * 8 + (column & 7);
}

// Starts copying rows [first, first + kRows) of a matrix with rows of `ld` elements, `columns` of them
// wanted, into a tile. Rows from `end` on and columns from `columns` on become zeros and are not read. All
// kThreads threads take part; the caller commits and waits.
template <class T, int kD, int kRows, int kThreads>
KX_DEVICE void CopyTile(kx::SmemArray<T> tile, kx::Gmem<const T> matrix, int64_t ld, int first, int end,
                        int columns) {
  constexpr int kChunks = kD / 8;
  static_assert(kRows * kChunks % kThreads == 0);
  KX_NO_UNROLL
  for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(kx::ThreadIdx().x);
    const int row = at / kChunks, column = at % kChunks * 8;
    const bool valid = KX_MUTANT("fa2/rows_past_end_are_read", first + row < end, true) && column < columns;
    kx::CpAsync16(tile.Address(Swizzle<kD>(row, column)),
                  matrix + (valid ? static_cast<int64_t>(first + row) * ld + column : 0), valid);
  }
}

// A: rows row .. row + 15, columns k .. k + 15 of a tile.
template <int kD, class T>
KX_DEVICE void LoadA(uint32_t (&a)[4], kx::SmemArray<T> tile, int row, int k) {
  const int lane = kx::LaneId();
  kx::LdMatrixX4(a, tile.Address(Swizzle<kD>(row + (lane & 15), k + (lane >> 4) * 8)));
}

// B = tile transposed: the tile's rows are B's columns. b[0], b[1] is the fragment of rows n .. n + 7 and
// columns k .. k + 15 of the tile; b[2], b[3] that of rows n + 8 .. n + 15.
template <int kD, class T>
KX_DEVICE void LoadBRows(uint32_t (&b)[4], kx::SmemArray<T> tile, int n, int k) {
  const int lane = kx::LaneId();
  kx::LdMatrixX4(b, tile.Address(Swizzle<kD>(n + (lane & 7) + (lane >> 4) * 8, k + ((lane >> 3) & 1) * 8)));
}

// B = tile: rows k .. k + 15 of the tile; b[0], b[1] is the fragment of columns n .. n + 7; b[2], b[3] that
// of columns n + 8 .. n + 15.
template <int kD, class T>
KX_DEVICE void LoadBColumns(uint32_t (&b)[4], kx::SmemArray<T> tile, int k, int n) {
  const int lane = kx::LaneId();
  kx::LdMatrixX4Trans(b, tile.Address(Swizzle<kD>(k + (lane & 15), n + (lane >> 4) * 8)));
}

// The accumulators of columns 16 kk .. 16 kk + 15 are, rounded to T, an A fragment with those as its k: a
// product's result goes into the next product without leaving the registers.
template <class T, int kBlocks>
KX_DEVICE void ToA(uint32_t (&a)[4], const float (&c)[kBlocks][4], int kk) {
  a[0] = kx::Pack<T>(c[2 * kk][0], c[2 * kk][1]);
  a[1] = kx::Pack<T>(c[2 * kk][2], c[2 * kk][3]);
  a[2] = kx::Pack<T>(c[2 * kk + 1][0], c[2 * kk + 1][1]);
  a[3] = kx::Pack<T>(c[2 * kk + 1][2], c[2 * kk + 1][3]);
}

template <int kBlocks>
KX_DEVICE void Clear(float (&c)[kBlocks][4]) {
  KX_UNROLL
  for (int i = 0; i < kBlocks; ++i) {
    KX_UNROLL
    for (int j = 0; j < 4; ++j) c[i][j] = 0.f;
  }
}

// Sum and maximum over the 4 lanes that share a row of an accumulator.
KX_DEVICE float QuadSum(float x) {
  x += kx::ShflXor(x, 1);
  return x + kx::ShflXor(x, 2);
}
KX_DEVICE float QuadMax(float x) {
  x = fmaxf(x, kx::ShflXor(x, 1));
  return fmaxf(x, kx::ShflXor(x, 2));
}

// Stores two neighbouring accumulators as T at element `at` (even, and the row 4-byte aligned).
template <class T>
KX_DEVICE void StorePair(kx::Gmem<T> out, int64_t at, float lo, float hi) {
  const uint32_t pair = kx::Pack<T>(lo, hi);
  kx::Vec<T, 4> vec;
  vec[0].bits = static_cast<uint16_t>(pair & 0xffff);
  vec[1].bits = static_cast<uint16_t>(pair >> 16);
  out.StoreVec(at, vec);
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FRAGMENTS_H_
