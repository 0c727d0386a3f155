// What the sm_90a kernels share: tiles as TMA lays them into shared memory, the descriptors wgmma reads them
// by, and accumulators as wgmma lays them into registers.
//
// A tile of `kRows` rows and kD columns is kSlabs slabs of [kRows][128 bytes], 128-byte-swizzled: 64 columns
// of two bytes each, or 128 of one. Columns past the head dimension are zeros that TMA makes (a head of 96
// takes the room of 128).
#ifndef KERNELS_ATTENTION_FA3_TILES_H_
#define KERNELS_ATTENTION_FA3_TILES_H_

#include "kernels/attention/params.h"
#include "kernels/kx/kx_hopper.h"

namespace strata::attention {

template <int kTileRows, int kD, int kElementBytes = 2>
struct Slabs {
  static constexpr int kColumns = 128 / kElementBytes;  // of a slab
  static constexpr int kRows = kTileRows, kSlabs = (kD + kColumns - 1) / kColumns;
  static constexpr int kElements = kRows * kSlabs * kColumns, kBytes = kElementBytes * kElements;

  // Loads rows [row, row + kRows) of head `head`, sequence `batch` of the map, columns from `column` on;
  // completes kBytes on `full`.
  KX_DEVICE static void Load(kx::SharedAddress tile, const kx::TensorMap& map, kx::SharedAddress full,
                             int row, int head, int batch, int column = 0) {
    KX_UNROLL
    for (int slab = 0; slab < kSlabs; ++slab) {
      kx::TmaLoad(tile + slab * kRows * 128, map, full, column + slab * kColumns, row, head, batch);
    }
  }
  // The operand whose K runs along the columns: 32 bytes of them (one step of wgmma) from step kk on, M or N
  // along the rows from `row` (a multiple of 8).
  KX_DEVICE static uint64_t AlongColumns(kx::SharedAddress tile, int row, int kk) {
    return kx::SwizzledDescriptor(tile + (kk / 4) * kRows * 128 + row * 128 + (kk % 4) * 32, 16, 1024);
  }
  // The operand whose K runs along the rows: 16 of them from 16 kk on, N along all columns.
  KX_DEVICE static uint64_t AlongRows(kx::SharedAddress tile, int kk) {
    return kx::SwizzledDescriptor(tile + kk * 2048, kRows * 128, 1024);
  }
};

// Where TMA finds a sequence: batched maps have one box row space per sequence (rows past its end load as
// zeros), packed maps one for all.
struct TmaRows {
  int row, batch;
};
KX_DEVICE TmaRows QueryRows(const Problem& p, const Sequence& seq, int b) {
  return p.cu_q.IsNull() ? TmaRows{0, b} : TmaRows{static_cast<int>(seq.q_begin), 0};
}
KX_DEVICE TmaRows KeyRows(const Problem& p, const Sequence& seq, int b) {
  return p.cu_q.IsNull() ? TmaRows{0, b} : TmaRows{static_cast<int>(seq.k_begin), 0};
}

// A warp fills one tile of a ring: arrives once on `full`, with the bytes or with the tile already there. Of
// the tile's rows the first `rows` belong to the sequence; where the rest would be a neighbour's (a packed
// map), they are made zeros: a weight of zero does not silence a NaN. `scratch` is a barrier of one arrival,
// used by this warp alone.
template <class Tile, class T>
KX_DEVICE void FillTile(kx::SmemArray<T> tile, const kx::TensorMap& map, kx::SharedAddress full,
                        kx::SharedAddress scratch, int& scratch_parity, int row, int head, int batch,
                        int rows, bool packed) {
  const int lane = kx::LaneId();
  if (!packed || rows >= Tile::kRows) {
    if (lane == 0) {
      kx::MbarArriveExpectTx(full, KX_MUTANT("fa3/half_the_bytes", Tile::kBytes, Tile::kBytes / 2));
      Tile::Load(tile.Address(), map, full, row, head, batch);
    }
    return;
  }
  if (lane == 0) {
    kx::MbarArriveExpectTx(scratch, Tile::kBytes);
    Tile::Load(tile.Address(), map, scratch, row, head, batch);
  }
  kx::MbarWait(scratch, scratch_parity);
  scratch_parity ^= 1;
  const int begin = KX_MUTANT("fa3/neighbours_rows_kept", rows * 64, Tile::kRows * 64);
  KX_NO_UNROLL
  for (int slab = 0; slab < Tile::kSlabs; ++slab) {
    KX_NO_UNROLL
    for (int at = begin + lane * 8; at < Tile::kRows * 64; at += 32 * 8) {
      tile.StoreVec(slab * Tile::kRows * 64 + at, kx::Vec<T, 16>{});
    }
  }
  KX_MUTANT("fa3/no_proxy_fence_after_zeros", kx::FenceAsyncProxy(), (void)0);
  KX_MUTANT("fa3/no_syncwarp_after_zeros", kx::Syncwarp(), (void)0);
  if (lane == 0) kx::MbarArrive(full);
}

// Stage and parity of the it-th tile that goes through a ring.
template <int kStages>
struct RingPosition {
  int stage = 0, parity = 0;
  KX_DEVICE void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// 16 columns of accumulators from 16 kk on, rounded to T: an A operand in registers.
template <class T, int kCount>
KX_DEVICE void ToOperand(uint32_t (&a)[4], const float (&d)[kCount], int kk) {
  KX_UNROLL
  for (int i = 0; i < 4; ++i) a[i] = kx::Pack<T>(d[8 * kk + 2 * i], d[8 * kk + 2 * i + 1]);
}

template <class T, int kSteps, int kCount>
KX_DEVICE void ToOperands(uint32_t (&a)[kSteps][4], const float (&d)[kCount]) {
  static_assert(8 * kSteps == kCount);
  KX_UNROLL
  for (int kk = 0; kk < kSteps; ++kk) ToOperand<T>(a[kk], d, kk);
}

template <int kCount>
KX_DEVICE void Clear(float (&d)[kCount]) {
  KX_UNROLL
  for (int i = 0; i < kCount; ++i) d[i] = 0.f;
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA3_TILES_H_
