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
KX_DEVICE Vec<uint8_t, 8> EncodeEight(Gmem<const bf16> x, int64_t at, float power) {
  float v[kFp8Wide];
  LoadFloats<kFp8Wide>(x, at, v);
  Vec<uint8_t, 8> codes;
  KX_UNROLL
  for (int k = 0; k < kFp8Wide; ++k) codes[k] = static_cast<uint8_t>(EncodeFp8(kType, v[k] * power));
  return codes;
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
    out.StoreVec(row * m.columns + i, EncodeEight<kType>(m.x, row * m.ld + i, power));
  }
}

// A tile of the matrix is kFp8Tile rows and columns; transposed, a row of it takes kFp8Pitch bytes of shared
// memory.
inline constexpr int kFp8Tile = 64;
inline constexpr int kFp8Pitch = kFp8Tile + 16;

// out[column * rows + row] = code of x. Grid: x over tiles of columns, y over tiles of rows.
template <Fp8 kType>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void Fp8TransposedKernel(const Fp8Matrix m,
                                                                   const Gmem<const uint32_t> largest,
                                                                   const Gmem<float> scale,
                                                                   const Gmem<uint8_t> out) {
  Smem smem;
  const auto partial = smem.Alloc<uint32_t, 4>(kBlockThreads / 32);
  const auto tile = smem.Alloc<uint8_t, 16>(kFp8Tile * kFp8Pitch);
  const float power = PowerOfTwo(Fp8Exponent<kType>(m.partials, largest, scale, partial));
  const int64_t first_column = static_cast<int64_t>(BlockIdx().x) * kFp8Tile;
  const int thread = static_cast<int>(ThreadIdx().x);
  KX_NO_UNROLL
  for (int64_t first_row = static_cast<int64_t>(BlockIdx().y) * kFp8Tile; first_row < m.rows;
       first_row += static_cast<int64_t>(GridDim().y) * kFp8Tile) {
    KX_UNROLL
    for (int part = 0; part < kFp8Tile * kFp8Tile / (kBlockThreads * kFp8Wide); ++part) {
      const int piece = part * kBlockThreads + thread, row = piece / (kFp8Tile / kFp8Wide);
      const int column = piece % (kFp8Tile / kFp8Wide) * kFp8Wide;
      if (first_row + row >= m.rows || first_column + column >= m.columns) continue;
      const Vec<uint8_t, 8> codes =
          EncodeEight<kType>(m.x, (first_row + row) * m.ld + first_column + column, power);
      KX_UNROLL
      for (int k = 0; k < kFp8Wide; ++k) tile.Store((column + k) * kFp8Pitch + row, codes[k]);
    }
    KX_MUTANT("fused/fp8/tile_sync", Sync(), (void)0);
    // 16 rows of one column per thread; rows and columns are multiples of 16.
    const int column = thread / (kFp8Tile / 16), row = thread % (kFp8Tile / 16) * 16;
    if (first_row + row < m.rows && first_column + column < m.columns) {
      out.StoreVec((first_column + column) * m.rows + first_row + row,
                   tile.template LoadVec<16>(column * kFp8Pitch + row));
    }
    Sync();  // before the tile is written again
  }
}

}  // namespace strata::gpu

#endif  // KERNELS_FP8_FP8_H_
