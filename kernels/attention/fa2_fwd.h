// Attention forward for sm_80 and later: tensor cores by mma.sync, copies by cp.async (FlashAttention-2, Dao
// 2023).
//
// A block owns kRows queries of one head: each warp 16 * kBlocks whole rows, so the softmax needs no shared
// memory. It walks over the keys it can see in tiles of kColumns; scores never leave the registers. K and V
// have one buffer each: while QK^T runs, V of the same tile is on its way, while PV runs, K of the next one.
#ifndef KERNELS_ATTENTION_FA2_FWD_H_
#define KERNELS_ATTENTION_FA2_FWD_H_

#include "kernels/attention/fragments.h"
#include "kernels/attention/params.h"

namespace strata::attention {

template <int kHeadDim>
struct Fa2ForwardTile {
  static constexpr int kD = kHeadDim;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps;
  // 32 rows per warp halve the shared-memory traffic per product, as long as the registers hold them.
  static constexpr int kBlocks = kD <= 128 ? 2 : 1;
  static constexpr int kRows = 16 * kBlocks * kWarps;
  static constexpr int kColumns = kD <= 64 ? 64 : 32;
  // Q's fragments stay in registers where there is room, else they are read again for every tile.
  static constexpr bool kQInRegisters = kD <= 64;
  static constexpr int kSharedBytes = (kRows + 2 * kColumns) * kD * 2;
};

// The softmax of one row block of a warp: scores become probabilities relative to the running maximum.
// Returns by reference the factor by which sums so far shrink. s: scores, scaled by nobody yet.
template <int kBlocks>
KX_DEVICE void OnlineSoftmax(float (&s)[kBlocks][4], float (&maximum)[2], float (&sum)[2], float (&shrink)[2],
                             float scale_log2) {
  KX_UNROLL
  for (int half = 0; half < 2; ++half) {
    float top = maximum[half];
    KX_UNROLL
    for (int i = 0; i < kBlocks; ++i) top = fmaxf(top, fmaxf(s[i][2 * half], s[i][2 * half + 1]));
    top = KX_MUTANT("fa2_fwd/max_of_one_lane", QuadMax(top), top);
    // A row that has seen nothing keeps -inf as its maximum; its exponents are taken relative to 0, so that
    // exp(-inf - 0) = 0 and never exp(-inf + inf).
    const float base = top == -INFINITY ? 0.f : top * scale_log2;
    shrink[half] = KX_MUTANT("fa2_fwd/no_rescale", kx::Ex2(maximum[half] * scale_log2 - base), 1.f);
    maximum[half] = top;
    float added = 0.f;
    KX_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      KX_UNROLL
      for (int j = 0; j < 2; ++j) {
        const float e = kx::Ex2(s[i][2 * half + j] * scale_log2 - base);
        s[i][2 * half + j] = e;
        added += e;
      }
    }
    sum[half] = sum[half] * shrink[half] + added;
  }
}

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa2ForwardTile<kHeadDim>::kThreads) Fa2Forward(const ForwardParams<T> p) {
  using Tile = Fa2ForwardTile<kHeadDim>;
  constexpr int kD = Tile::kD, kN = Tile::kColumns, kM = Tile::kBlocks;
  const Problem& problem = p.problem;
  const QueryBlock<Tile> block(problem);
  if (block.IsEmpty()) return;
  const Sequence& seq = block.seq;
  const int head = block.head, kv_head = block.kv_head, first = block.first;

  kx::Smem smem;
  const auto q_tile = smem.template Alloc<T>(Tile::kRows * kD);
  const auto k_tile = smem.template Alloc<T>(kN * kD);
  const auto v_tile = smem.template Alloc<T>(kN * kD);
  const auto q = p.q + (seq.q_begin * p.ldq + static_cast<int64_t>(head) * problem.head_dim);
  const auto k = p.k + (seq.k_begin * p.ldk + static_cast<int64_t>(kv_head) * problem.head_dim);
  const auto v = p.v + (seq.k_begin * p.ldv + static_cast<int64_t>(kv_head) * problem.head_dim);
  const Tiles keys = block.KeyTiles(problem);
  const int tile_begin = keys.begin, tile_end = keys.end;

  const int lane = kx::LaneId(), row_in_block = kx::WarpId() * 16 * kM;
  const float scale_log2 = problem.scale * kLog2e;
  float o[kM][kD / 8][4], maximum[kM][2], sum[kM][2];
  KX_UNROLL
  for (int m = 0; m < kM; ++m) {
    Clear(o[m]);
    maximum[m][0] = maximum[m][1] = -INFINITY;
    sum[m][0] = sum[m][1] = 0.f;
  }
  uint32_t q_kept[kM][Tile::kQInRegisters ? kD / 16 : 1][4];

  const auto copy_keys = [&](kx::SmemArray<T> tile, kx::Gmem<const T> matrix, int64_t ld, int n) {
    CopyTile<T, kD, kN, Tile::kThreads>(tile, matrix, ld, n * kN, seq.k_count, problem.head_dim);
    kx::CpAsyncCommit();
  };
  CopyTile<T, kD, Tile::kRows, Tile::kThreads>(q_tile, q, p.ldq, first, seq.q_count, problem.head_dim);
  kx::CpAsyncCommit();
  if (tile_begin < tile_end) copy_keys(k_tile, k, p.ldk, tile_begin);

  KX_NO_UNROLL
  for (int n = tile_begin; n < tile_end; ++n) {
    KX_MUTANT("fa2_fwd/no_wait_k", kx::CpAsyncWait<0>(), (void)0);
    KX_MUTANT("fa2_fwd/no_sync_k", kx::Sync(),
              (void)0);  // Q and K(n) are there; nobody reads V(n-1) any more.
    copy_keys(v_tile, v, p.ldv, n);
    if constexpr (Tile::kQInRegisters) {
      if (n == tile_begin) {
        KX_UNROLL
        for (int m = 0; m < kM; ++m) {
          KX_UNROLL
          for (int kk = 0; kk < kD / 16; ++kk)
            LoadA<kD>(q_kept[m][kk], q_tile, row_in_block + 16 * m, 16 * kk);
        }
      }
    }

    float s[kM][kN / 8][4];
    KX_UNROLL
    for (int m = 0; m < kM; ++m) Clear(s[m]);
    KX_UNROLL
    for (int kk = 0; kk < kD / 16; ++kk) {
      uint32_t a[kM][4];
      KX_UNROLL
      for (int m = 0; m < kM; ++m) {
        if constexpr (Tile::kQInRegisters) {
          KX_UNROLL
          for (int j = 0; j < 4; ++j) a[m][j] = q_kept[m][kk][j];
        } else {
          LoadA<kD>(a[m], q_tile, row_in_block + 16 * m, 16 * kk);
        }
      }
      KX_UNROLL
      for (int nn = 0; nn < kN / 16; ++nn) {
        uint32_t b[4];
        LoadBRows<kD>(b, k_tile, 16 * nn, 16 * kk);
        KX_UNROLL
        for (int m = 0; m < kM; ++m) {
          kx::Mma<T>(s[m][2 * nn], a[m], b[0], b[1]);
          const int lower = KX_MUTANT("fa2_fwd/swapped_fragment", 2, 3);
          kx::Mma<T>(s[m][2 * nn + 1], a[m], b[lower], b[5 - lower]);
        }
      }
    }
    kx::CpAsyncWait<0>();
    KX_MUTANT("fa2_fwd/no_sync_v", kx::Sync(), (void)0);  // V(n) is there; nobody reads K(n) any more.
    if (n + 1 < tile_end) copy_keys(k_tile, k, p.ldk, n + 1);

    KX_UNROLL
    for (int m = 0; m < kM; ++m) {
      const int i0 = first + row_in_block + 16 * m, j0 = n * kN;
      if (!KX_MUTANT("fa2_fwd/mask_forgotten", seq.AllVisible(problem, i0, 16, j0, kN), true)) {
        KX_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int i = i0 + lane / 4 + 8 * half;
          const int begin = i + seq.shift - problem.left;
          const int end =
              Min(seq.k_count, i + seq.shift + problem.right + KX_MUTANT("fa2_fwd/mask_off_by_one", 1, 0));
          KX_UNROLL
          for (int c = 0; c < kN / 8; ++c) {
            KX_UNROLL
            for (int e = 0; e < 2; ++e) {
              const int j = j0 + 8 * c + 2 * (lane % 4) + e;
              if (j < begin || j >= end) s[m][c][2 * half + e] = -INFINITY;
            }
          }
        }
      }
      float shrink[2];
      OnlineSoftmax(s[m], maximum[m], sum[m], shrink, scale_log2);
      KX_UNROLL
      for (int d = 0; d < kD / 8; ++d) {
        KX_UNROLL
        for (int e = 0; e < 4; ++e) o[m][d][e] *= shrink[e / 2];
      }
    }

    KX_UNROLL
    for (int kk = 0; kk < kN / 16; ++kk) {
      uint32_t a[kM][4];
      KX_UNROLL
      for (int m = 0; m < kM; ++m) ToA<T>(a[m], s[m], kk);
      KX_UNROLL
      for (int nn = 0; nn < kD / 16; ++nn) {
        uint32_t b[4];
        LoadBColumns<kD>(b, v_tile, 16 * kk, 16 * nn);
        KX_UNROLL
        for (int m = 0; m < kM; ++m) {
          kx::Mma<T>(o[m][2 * nn], a[m], b[0], b[1]);
          kx::Mma<T>(o[m][2 * nn + 1], a[m], b[2], b[3]);
        }
      }
    }
  }
  kx::CpAsyncWait<0>();  // Q's copy, where no key was seen.

  const auto out = p.out + (seq.q_begin * p.ldo + static_cast<int64_t>(head) * problem.head_dim);
  const auto lse = p.lse + (seq.lse_at + head * seq.lse_head);
  KX_UNROLL
  for (int m = 0; m < kM; ++m) {
    KX_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = QuadSum(sum[m][half]);
      const float inverse = total == 0.f ? 0.f : 1.f / total;
      const int i = first + row_in_block + 16 * m + lane / 4 + 8 * half;
      if (i >= KX_MUTANT("fa2_fwd/rows_past_end_are_written", seq.q_count, seq.q_count + 1)) continue;
      KX_UNROLL
      for (int d = 0; d < kD / 8; ++d) {
        if (8 * d >= problem.head_dim) continue;
        StorePair(out, i * p.ldo + 8 * d + 2 * (lane % 4), o[m][d][2 * half] * inverse,
                  o[m][d][2 * half + 1] * inverse);
      }
      if (lane % 4 == 0) {
        lse.Store(i, total == 0.f ? -INFINITY : (maximum[m][half] * scale_log2 + kx::Lg2(total)) * kLn2);
      }
    }
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA2_FWD_H_
