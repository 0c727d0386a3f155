// Q, K and V to e4m3 with one scale per block of rows and head (fp8_layout.h): one pass that reads each
// element once. An element is its code times the scale of its block; the largest of a block becomes 448.
//
// Incoherent processing (Chee et al. 2023, "QuIP"; FlashAttention-3, section 3.3): Q and K are multiplied by
// the same orthogonal matrix, random signs and then a Hadamard transform. Q K^T stays what it is, and an
// outlier is spread over its group of columns instead of taking the range of all others.
#ifndef KERNELS_ATTENTION_FP8_QUANTISE_H_
#define KERNELS_ATTENTION_FP8_QUANTISE_H_

#include "kernels/attention/fp8_layout.h"
#include "kernels/attention/params.h"
#include "kernels/kx/kx_hopper.h"

namespace strata::attention {

// A matrix and where it goes.
template <class T>
struct QuantiseParams {
  Problem problem;
  kx::Gmem<const T> x;
  int64_t ld = 0;
  kx::Gmem<kx::e4m3> codes;
  kx::Gmem<float> scales;
  int scale_step = 1;       // from a block's scale to the next one's
  int64_t rows = 0;         // padded, of codes
  bool incoherent = false;  // of Q and K
};

// A block is scaled as if its largest element were at least this: a zero block has a scale that can be
// divided by, and quotients and products of scales stay far from the ends of float.
inline constexpr float kFp8LargestMin = kx::kE4m3Max * 0x1p-40f;

// 64 elements of a thread: what the loops below hold in registers between the maximum and the rounding.
inline constexpr int kFp8Pieces = 4, kFp8Piece = 16;

// Rows [first, first + rows) of a block as its matrix has them.
struct QuantiseRows {
  int64_t source;  // row of the matrix
  int64_t target;  // row of the codes
  int count;       // rows that exist; at most 0: none
  bool unused;     // also no zeros are wanted
};
template <bool kQueries>
KX_DEVICE QuantiseRows RowsOf(const Problem& p, int b, int first) {
  const Sequence seq = SequenceOf(p, b);
  const int count = kQueries ? seq.q_count : seq.k_count;
  const int64_t begin = kQueries ? seq.q_begin : seq.k_begin;
  const int64_t target = Fp8RowOf(!p.cu_q.IsNull(), b, kQueries ? p.seq_q : p.seq_k, begin);
  return {begin + first, target + first, count - first, first >= Fp8RoundUp(count)};
}

// 16 elements of a row from `column` on, zeros where there is no row or no column.
template <class T>
KX_DEVICE void LoadPiece(float (&x)[kFp8Piece], const QuantiseParams<T>& p, int head, int64_t row,
                         bool exists, int column) {
  KX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int c = column + 8 * half;
    const bool valid = exists && c < p.problem.head_dim;
    kx::Vec<T> piece = {};
    if (valid) piece = p.x.LoadVec(row * p.ld + static_cast<int64_t>(head) * p.problem.head_dim + c);
    KX_UNROLL
    for (int i = 0; i < 8; ++i) x[8 * half + i] = kx::ToFloat(piece[i]);
  }
}

// Random signs of columns [16 piece, 16 piece + 16), the same in every run, by an integer hash.
KX_DEVICE void FlipSigns(float (&x)[kFp8Piece], int piece) {
  uint32_t bits = (static_cast<uint32_t>(piece) + 1) * 0x9e3779b1u;
  bits = (bits ^ bits >> 15) * 0x85ebca77u;
  bits ^= bits >> 13;
  KX_UNROLL
  for (int i = 0; i < kFp8Piece; ++i) x[i] = (bits >> i & 1) != 0 ? -x[i] : x[i];
}

// The Hadamard transform, times the root of kGroup, of kGroup columns that lie in kGroup / 16 neighbouring
// lanes: butterflies of growing width, first in the lane.
template <int kGroup>
KX_DEVICE void Hadamard(float (&x)[kFp8Piece]) {
  KX_UNROLL
  for (int width = 1; width < kFp8Piece; width *= 2) {
    KX_UNROLL
    for (int i = 0; i < kFp8Piece; ++i) {
      if ((i & width) != 0) continue;
      const float a = x[i], b = x[i + width];
      x[i] = a + b;
      x[i + width] = a - b;
    }
  }
  KX_UNROLL
  for (int mask = 1; mask < kGroup / kFp8Piece; mask *= 2) {
    const bool upper = (kx::LaneId() & mask) != 0;
    KX_UNROLL
    for (int i = 0; i < kFp8Piece; ++i) {
      const float other = kx::ShflXor(x[i], mask);
      x[i] = upper ? other - x[i] : x[i] + other;
    }
  }
}

// The factor that takes the block's elements to codes, after thread 0 has stored the block's scale: what
// takes them back, times `scale_factor`. All threads of the block call it with the 64 elements they hold.
// fmaxf passes NaNs over: they become NaN codes themselves. An infinity makes the scale infinite, and NaNs of
// itself and, in the product, of its block: nothing not finite is hidden.
KX_DEVICE float BlockFactor(const float (&x)[kFp8Pieces][kFp8Piece], kx::Gmem<float> scales, int64_t at,
                            float scale_factor) {
  kx::Smem smem;
  const kx::SmemArray<float> partial = smem.Alloc<float>(32);
  float top = kFp8LargestMin;
  KX_UNROLL
  for (int piece = 0; piece < kFp8Pieces; ++piece) {
    KX_UNROLL
    for (int i = 0; i < kFp8Piece; ++i) top = fmaxf(top, fabsf(x[piece][i]));
  }
  KX_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, kx::ShflXor(top, mask));
  if (kx::LaneId() == 0) partial.Store(kx::WarpId(), top);
  KX_MUTANT("fp8/no_sync_before_maximum", kx::Sync(), (void)0);
  const int warps = static_cast<int>(kx::BlockDim().x) / 32;
  for (int w = 0; w < warps; ++w) {
    top = KX_MUTANT("fp8/maximum_of_one_warp", fmaxf(top, partial.Load(w)), top);
  }
  if (kx::ThreadIdx().x == 0) scales.Store(at, kx::DivRn(top, kx::kE4m3Max) * scale_factor);
  return kx::DivRn(kx::kE4m3Max, top);
}

inline constexpr int kFp8QuantiseSharedBytes = 32 * 4;  // a maximum per warp
template <int kHeadDim, int kRows>
inline constexpr int kFp8RowThreads = kRows* kHeadDim / (kFp8Pieces * kFp8Piece);

// Q (kQueries; blocks of kFp8QueryBlock rows) or K (of kFp8Block). Grid: blocks of a sequence, heads, batch.
template <class T, int kHeadDim, bool kQueries>
KX_KERNEL void KX_LAUNCH_BOUNDS(kFp8RowThreads<kHeadDim, kQueries ? kFp8QueryBlock : kFp8Block>)
    Fp8QuantiseRows(const QuantiseParams<T> p) {
  constexpr int kRows = kQueries ? kFp8QueryBlock : kFp8Block, kAcross = kHeadDim / kFp8Piece;
  constexpr int kThreads = kFp8RowThreads<kHeadDim, kRows>, kGroup = HadamardGroup(kHeadDim);
  const int head = static_cast<int>(kx::BlockIdx().y), thread = static_cast<int>(kx::ThreadIdx().x);
  const QuantiseRows rows = RowsOf<kQueries>(p.problem, static_cast<int>(kx::BlockIdx().z),
                                             static_cast<int>(kx::BlockIdx().x) * kRows);
  if (rows.unused) return;
  float x[kFp8Pieces][kFp8Piece];
  KX_UNROLL
  for (int piece = 0; piece < kFp8Pieces; ++piece) {
    const int at = piece * kThreads + thread, row = at / kAcross, across = at % kAcross;
    LoadPiece(x[piece], p, head, rows.source + row,
              KX_MUTANT("fp8/rows_past_end_are_read", row < rows.count, true), across * kFp8Piece);
    if (p.incoherent) {
      FlipSigns(x[piece], KX_MUTANT("fp8/signs_of_k_differ", across, across + (kQueries ? 0 : kAcross)));
      Hadamard<kGroup>(x[piece]);
    }
  }
  const float root = kx::DivRn(1.f, kx::SqrtRn(static_cast<float>(kGroup)));
  const float factor = BlockFactor(x, p.scales, (head * p.rows + rows.target) / kRows * p.scale_step,
                                   p.incoherent ? KX_MUTANT("fp8/root_forgotten", root, 1.f) : 1.f);
  KX_UNROLL
  for (int piece = 0; piece < kFp8Pieces; ++piece) {
    const int at = piece * kThreads + thread, row = at / kAcross, across = at % kAcross;
    const float(&values)[kFp8Piece] = x[piece];
    kx::Vec<uint32_t> codes;
    KX_UNROLL
    for (int i = 0; i < 4; ++i) {
      codes[i] = kx::PackFour<kx::e4m3>(values[4 * i] * factor, values[4 * i + 1] * factor,
                                        values[4 * i + 2] * factor, values[4 * i + 3] * factor);
    }
    const auto to = p.codes + ((head * p.rows + rows.target + row) * kHeadDim + across * kFp8Piece);
    to.template As<uint32_t>().StoreVec(0, codes);
  }
}

// V, transposed: warp w has columns 16 w to 16 w + 15 of kFp8Block keys, lane l the four keys whose codes are
// the l-th word of a row of codes, so that each store of a warp is one line of 128 bytes. Grid: blocks of a
// sequence, kv heads, batch.
template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(kFp8RowThreads<kHeadDim, kFp8Block>)
    Fp8QuantiseTransposed(const QuantiseParams<T> p) {
  static_assert(kFp8Pieces == 4 && kFp8Block == 4 * 32);
  const int head = static_cast<int>(kx::BlockIdx().y), lane = kx::LaneId();
  const QuantiseRows rows = RowsOf<false>(p.problem, static_cast<int>(kx::BlockIdx().z),
                                          static_cast<int>(kx::BlockIdx().x) * kFp8Block);
  if (rows.unused) return;
  const int column = static_cast<int>(kx::ThreadIdx().x) / 32 * kFp8Piece;
  float x[4][kFp8Piece];
  KX_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int place = 4 * lane + i;
    const int row = KX_MUTANT("fp8/keys_in_order", place / 16 * 16 + Fp8KeyAt(place % 16), place);
    LoadPiece(x[i], p, head, rows.source + row, row < rows.count, column);
  }
  const float factor =
      BlockFactor(x, p.scales, (head * p.rows + rows.target) / kFp8Block * p.scale_step, 1.f);
  KX_UNROLL
  for (int c = 0; c < kFp8Piece; ++c) {
    const auto line = p.codes + ((static_cast<int64_t>(head) * kHeadDim + column + c) * p.rows + rows.target);
    line.template As<uint32_t>().Store(
        lane, kx::PackFour<kx::e4m3>(x[0][c] * factor, x[1][c] * factor, x[2][c] * factor, x[3][c] * factor));
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FP8_QUANTISE_H_
