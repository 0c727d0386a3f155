// CRC-32C of device memory, a block for each piece: the host joins the pieces (pieces.h).
#ifndef KERNELS_CHECKSUM_CHECKSUM_H_
#define KERNELS_CHECKSUM_CHECKSUM_H_

#include "kernels/checksum/crc32c_field.h"
#include "kernels/gpu/elements.h"

namespace strata::gpu {

// A row is four words of each thread; words of a thread are one behind the other.
inline constexpr int kCrcWords = 4;
inline constexpr int kCrcRowWords = kBlockThreads * kCrcWords;
inline constexpr uint64_t kCrcWordBits = 32;

// crc * x^(bits of a row), by bytes of crc.
KX_DEVICE uint32_t PastRow(SmemArray<uint32_t> table, uint32_t crc) {
  uint32_t moved = 0;
  KX_UNROLL
  for (int byte = 0; byte < 4; ++byte)
    moved ^= table.Load(256 * byte + static_cast<int>(crc >> (8 * byte) & 0xff));
  return moved;
}

// `crc` of lane i, of kThreads threads from it on, and what lane i + kThreads has of those behind them; lane
// 0 ends with the warp's.
template <int kThreads>
KX_DEVICE uint32_t JoinLanes(uint32_t crc) {
  constexpr uint32_t kPast = Crc32cPower(kCrcWordBits * kCrcWords * kThreads);
  const uint32_t behind = ShflDown(crc, kThreads);
  crc = Crc32cTimes(kPast, crc) ^ KX_MUTANT("fused/checksum/lanes", behind, crc);
  if constexpr (kThreads < 16) {
    return JoinLanes<2 * kThreads>(crc);
  } else {
    return crc;
  }
}

// crcs[block] = CRC-32C of rows [block * rows_per_piece, + rows_per_piece) of `data`, which has `rows`. Each
// thread sums its words of all rows, a row being x^(its bits) away from the next; threads are joined at the
// end. Grid: x over pieces.
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void Crc32cPieces(const Gmem<const uint32_t> data,
                                                            const int64_t rows, const int64_t rows_per_piece,
                                                            const Gmem<uint32_t> crcs) {
  Smem smem;
  const auto table = smem.Alloc<uint32_t>(4 * 256);
  const auto warps = smem.Alloc<uint32_t>(kBlockThreads / 32);
  const int thread = static_cast<int>(ThreadIdx().x);
  constexpr uint32_t kPastRow = Crc32cPower(kCrcWordBits * kCrcRowWords);
  static_assert(kBlockThreads == 256);  // one value of a byte each
  KX_UNROLL
  for (int byte = 0; byte < 4; ++byte)
    table.Store(256 * byte + thread, Crc32cTimes(kPastRow, static_cast<uint32_t>(thread) << (8 * byte)));
  KX_MUTANT("fused/checksum/table_sync", Sync(), (void)0);

  const int64_t first = static_cast<int64_t>(BlockIdx().x) * rows_per_piece;
  const int64_t end = rows - first < rows_per_piece ? rows : first + rows_per_piece;
  uint32_t crc[kCrcWords] = {};
  KX_NO_UNROLL
  for (int64_t row = first; row < end; ++row) {
    Vec<uint32_t, 16> words = data.template LoadVec<16>(row * kCrcRowWords + thread * kCrcWords);
    // A CRC starts from all ones.
    if (row == first && thread == 0) words[0] = KX_MUTANT("fused/checksum/start", ~words[0], words[0]);
    KX_UNROLL
    for (int k = 0; k < kCrcWords; ++k)
      crc[k] = KX_MUTANT("fused/checksum/row", PastRow(table, crc[k]), crc[k]) ^ words[k];
  }

  constexpr uint32_t kPastWord = Crc32cPower(kCrcWordBits);
  uint32_t sum = crc[0];
  KX_UNROLL
  for (int k = 1; k < kCrcWords; ++k) sum = Crc32cTimes(kPastWord, sum) ^ crc[k];
  sum = JoinLanes<1>(sum);
  if (LaneId() == 0) warps.Store(WarpId(), sum);
  KX_MUTANT("fused/checksum/warps_sync", Sync(), (void)0);
  if (thread != 0) return;
  constexpr uint32_t kPastWarp = Crc32cPower(kCrcWordBits * kCrcWords * 32);
  uint32_t all = 0;
  for (int warp = 0; warp < kBlockThreads / 32; ++warp) all = Crc32cTimes(kPastWarp, all) ^ warps.Load(warp);
  crcs.Store(BlockIdx().x, ~Crc32cTimes(kPastWord, all));
}

}  // namespace strata::gpu

#endif  // KERNELS_CHECKSUM_CHECKSUM_H_
