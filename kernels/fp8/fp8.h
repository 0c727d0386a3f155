// A bf16 matrix to fp8 with a scale of its own (fp8_format.h): the largest magnitude, then the codes, as they
// stand or transposed, since the tensor cores take fp8 operands along k only. The largest of magnitudes does
// not depend on the order in which they are seen, so every launch gives the same bits.
#ifndef KERNELS_FP8_FP8_H_
#define KERNELS_FP8_FP8_H_

#include "kernels/fp8/fp8_format.h"
#include "kernels/gpu/elements.h"
#include "kernels/gpu/math.h"
#include "kernels/gpu/reduce.h"

namespace strata::gpu {

inline constexpr int kFp8Wide = 8;        // elements of one 16-byte access; rows are multiples of 16
inline constexpr int kFp8Partials = 256;  // magnitudes that the first pass leaves at most
static_assert(kFp8Partials == kBlockThreads);

KX_DEVICE uint32_t LargerOf(uint32_t a, uint32_t b) { return a < b ? b : a; }

// Of the block's threads, told to all of them.
KX_DEVICE uint32_t BlockLargest(uint32_t x, SmemArray<uint32_t> partial) {
  KX_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = LargerOf(x, ShflXor(x, mask));
  if (LaneId() == 0) partial.Store(WarpId(), x);
  KX_MUTANT("fused/fp8/largest_sync", Sync(), (void)0);
  x = LaneId() < kBlockThreads / 32 ? partial.Load(LaneId()) : 0;
  KX_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) x = LargerOf(x, ShflXor(x, mask));
  return x;
}

struct Fp8Matrix {
  Gmem<const bf16> x;  // [rows, columns]
  int64_t rows, columns, ld;
  uint32_t partials;  // of the first pass
};

// largest[block] = bits of the largest magnitude in rows block, block + kFp8Partials, ...; kFp8Partials
// blocks.
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void Fp8LargestKernel(const Fp8Matrix m,
                                                                const Gmem<uint32_t> largest) {
  Smem smem;
  const auto partial = smem.Alloc<uint32_t, 4>(kBlockThreads / 32);
  uint32_t most = 0;
  KX_NO_UNROLL
  for (int64_t row = BlockIdx().x; row < m.rows; row += GridDim().x) {
    KX_NO_UNROLL
    for (int64_t i = ThreadIdx().x * kFp8Wide; i < m.columns; i += kBlockThreads * kFp8Wide) {
      float v[kFp8Wide];
      LoadFloats<kFp8Wide>(m.x, row * m.ld + i, v);
      KX_UNROLL
      for (int k = 0; k < kFp8Wide; ++k) most = LargerOf(most, BitsOf(v[k]) & 0x7fffffffu);
    }
  }
  most = BlockLargest(most, partial);
  if (ThreadIdx().x == 0) largest.Store(BlockIdx().x, most);
}

// What both of the next read first: e of the scale. Block 0 tells it as 2^-e, what a code's value is
// multiplied with.
template <Fp8 kType>
KX_DEVICE int Fp8Exponent(uint32_t partials, Gmem<const uint32_t> largest, Gmem<float> scale,
                          SmemArray<uint32_t> partial) {
  const int e = Fp8ScaleExponent(
      kType, BlockLargest(ThreadIdx().x < partials ? largest.Load(ThreadIdx().x) : 0, partial));
  if (BlockIdx().x == 0 && BlockIdx().y == 0 && ThreadIdx().x == 0) {
    scale.Store(0, PowerOfTwo(KX_MUTANT("fused/fp8/inverse", -e, e)));
  }
  return e;
}

template <Fp8 kType>
KX_DEVICE void EncodeEight(Gmem<const bf16> x, int64_t at, float power, uint8_t (&codes)[kFp8Wide]) {
  float v[kFp8Wide];
  LoadFloats<kFp8Wide>(x, at, v);
  KX_UNROLL
  for (int k = 0; k < kFp8Wide; ++k) codes[k] = static_cast<uint8_t>(EncodeFp8(kType, v[k] * power));
}

// out[row * columns + column] = code of x. Grid: x over kBlockThreads * kFp8Wide columns, y over rows.
template <Fp8 kType>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void Fp8CodesKernel(const Fp8Matrix m,
                                                              const Gmem<const uint32_t> largest,
                                                              const Gmem<float> scale,
                                                              const Gmem<uint8_t> out) {
  Smem smem;
  const auto partial = smem.Alloc<uint32_t, 4>(kBlockThreads / 32);
  const float power = PowerOfTwo(Fp8Exponent<kType>(m.partials, largest, scale, partial));
  const int64_t i = (static_cast<int64_t>(BlockIdx().x) * kBlockThreads + ThreadIdx().x) * kFp8Wide;
  if (i >= m.columns) return;
  KX_NO_UNROLL
  for (int64_t row = BlockIdx().y; row < m.rows; row += GridDim().y) {
    Vec<uint8_t, kFp8Wide> codes;
    EncodeEight<kType>(m.x, row * m.ld + i, power, codes.v);
    out.StoreVec(row * m.columns + i, codes);
  }
}

// A tile of the matrix; transposed in shared memory, a column of it is a row of kFp8TileRows bytes. A thread
// reads a square of kFp8Square rows and kFp8Wide columns and stores words of kFp8Square rows; the eight
// squares beside each other in a warp meet different banks because every kFp8Wide columns are followed by 16
// bytes of nothing.
inline constexpr int kFp8TileRows = 128, kFp8TileColumns = 64, kFp8Square = 4;
KX_DEVICE constexpr int Fp8TileAt(int column, int row) {
  return column * kFp8TileRows + column / kFp8Wide * 16 + row;
}
inline constexpr int kFp8TileBytes = kFp8TileColumns * kFp8TileRows + kFp8TileColumns / kFp8Wide * 16;
static_assert(kFp8TileRows / kFp8Square * (kFp8TileColumns / kFp8Wide) == kBlockThreads);

// out[column * rows + row] = code of x. Grid: x over tiles of columns, y over tiles of rows.
template <Fp8 kType>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void Fp8TransposedKernel(const Fp8Matrix m,
                                                                   const Gmem<const uint32_t> largest,
                                                                   const Gmem<float> scale,
                                                                   const Gmem<uint8_t> out) {
  constexpr int kAcross = kFp8TileColumns / kFp8Wide, kPieces = kFp8TileRows / 16;
  Smem smem;
  const auto partial = smem.Alloc<uint32_t, 4>(kBlockThreads / 32);
  const auto tile = smem.Alloc<uint8_t, 16>(kFp8TileBytes);
  const float power = PowerOfTwo(Fp8Exponent<kType>(m.partials, largest, scale, partial));
  const int64_t first_column = static_cast<int64_t>(BlockIdx().x) * kFp8TileColumns;
  const int thread = static_cast<int>(ThreadIdx().x);
  const int square_row = thread / kAcross * kFp8Square, square_column = thread % kAcross * kFp8Wide;
  KX_NO_UNROLL
  for (int64_t first_row = static_cast<int64_t>(BlockIdx().y) * kFp8TileRows; first_row < m.rows;
       first_row += static_cast<int64_t>(GridDim().y) * kFp8TileRows) {
    // Rows and columns are multiples of 16: a square is whole or not there.
    if (first_row + square_row < m.rows && first_column + square_column < m.columns) {
      uint32_t words[kFp8Wide] = {};
      KX_UNROLL
      for (int r = 0; r < kFp8Square; ++r) {
        uint8_t codes[kFp8Wide];
        EncodeEight<kType>(m.x, (first_row + square_row + r) * m.ld + first_column + square_column, power,
                           codes);
        KX_UNROLL
        for (int k = 0; k < kFp8Wide; ++k) words[k] |= static_cast<uint32_t>(codes[k]) << (8 * r);
      }
      KX_UNROLL
      for (int k = 0; k < kFp8Wide; ++k) {
        tile.template As<uint32_t>().Store(Fp8TileAt(square_column + k, square_row) / 4, words[k]);
      }
    }
    KX_MUTANT("fused/fp8/tile_sync", Sync(), (void)0);
    // 16 rows of a column per thread.
    KX_UNROLL
    for (int part = 0; part < kFp8TileColumns * kPieces / kBlockThreads; ++part) {
      const int piece = part * kBlockThreads + thread, column = piece / kPieces, row = piece % kPieces * 16;
      if (first_row + row < m.rows && first_column + column < m.columns) {
        out.StoreVec((first_column + column) * m.rows + first_row + row,
                     tile.template LoadVec<16>(Fp8TileAt(column, row)));
      }
    }
    Sync();  // before the tile is written again
  }
}

}  // namespace strata::gpu

#endif  // KERNELS_FP8_FP8_H_
