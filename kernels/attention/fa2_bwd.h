// Attention backward for sm_80 and later (FlashAttention-2, Dao 2023, algorithm 2), in two kernels whose sums
// have one order: the same bits at every run, without atomics and without float buffers in global memory.
//
//   Fa2BackwardKeys     a block owns kRows keys of one kv head and walks over the queries of all heads that
//   share it:
//                       dv = P^T dout, dk = scale * dS^T q
//   Fa2BackwardQueries  a block owns kRows queries of one head and walks over the keys: dq = scale * dS k
// with P = exp(scale * q k^T - lse) and dS = P * (dout v^T - delta). The scores are computed twice: 7
// products instead of 5, the price of fixed bits.
//
// Keys are the rows of the first kernel's products, so that P^T and dS^T are accumulators that turn into
// operands in registers; nothing but inputs is in shared memory. The walked tiles have two buffers each.
#ifndef KERNELS_ATTENTION_FA2_BWD_H_
#define KERNELS_ATTENTION_FA2_BWD_H_

#include "kernels/attention/fragments.h"
#include "kernels/attention/params.h"

namespace strata::attention {

template <int kHeadDim>
struct Fa2BackwardKeysTile {
  static constexpr int kD = kHeadDim;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kStages = 2;
  static constexpr int kRows = 16 * kWarps;            // keys
  static constexpr int kColumns = kD <= 64 ? 64 : 32;  // queries of a tile
  static constexpr int kSharedBytes =
      (2 * kRows + 2 * kStages * kColumns) * kD * 2 + 2 * kStages * kColumns * 4;
};

template <int kHeadDim>
struct Fa2BackwardQueriesTile {
  static constexpr int kD = kHeadDim;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kStages = 2;
  static constexpr int kBlocks = 1;
  static constexpr int kRows = 16 * kBlocks * kWarps;  // queries
  static constexpr int kColumns = kD <= 64 ? 64 : 32;  // keys of a tile
  static constexpr int kSharedBytes = (2 * kRows + 2 * kStages * kColumns) * kD * 2;
};

// c[16 x 8 kBlocks] += rows `row` .. `row` + 15 of x times the rows of y.
template <class T, int kD, int kBlocks>
KX_DEVICE void TimesRows(float (&c)[kBlocks][4], kx::SmemArray<T> x, int row, kx::SmemArray<T> y) {
  KX_UNROLL
  for (int kk = 0; kk < kD / 16; ++kk) {
    uint32_t a[4];
    LoadA<kD>(a, x, row, 16 * kk);
    KX_UNROLL
    for (int nn = 0; nn < kBlocks / 2; ++nn) {
      uint32_t b[4];
      LoadBRows<kD>(b, y, 16 * nn, 16 * kk);
      kx::Mma<T>(c[2 * nn], a, b[0], b[1]);
      kx::Mma<T>(c[2 * nn + 1], a, b[2], b[3]);
    }
  }
}

// c[16 x kD] += w[16 x 8 kBlocks], rounded to T, times y.
template <class T, int kD, int kBlocks>
KX_DEVICE void AddWeighted(float (&c)[kD / 8][4], const float (&w)[kBlocks][4], kx::SmemArray<T> y) {
  KX_UNROLL
  for (int kk = 0; kk < kBlocks / 2; ++kk) {
    uint32_t a[4];
    ToA<T>(a, w, kk);
    KX_UNROLL
    for (int nn = 0; nn < kD / 16; ++nn) {
      uint32_t b[4];
      LoadBColumns<kD>(b, y, 16 * kk, 16 * nn);
      kx::Mma<T>(c[2 * nn], a, b[0], b[1]);
      kx::Mma<T>(c[2 * nn + 1], a, b[2], b[3]);
    }
  }
}

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa2BackwardKeysTile<kHeadDim>::kThreads)
    Fa2BackwardKeys(const BackwardParams<T> p) {
  using Tile = Fa2BackwardKeysTile<kHeadDim>;
  constexpr int kD = Tile::kD, kN = Tile::kColumns;
  const Problem& problem = p.problem;
  const KeyBlock<Tile> block(problem);
  if (block.IsEmpty()) return;
  const Sequence& seq = block.seq;
  const int kv_head = block.kv_head, members = block.members, first = block.first;

  kx::Smem smem;
  const auto k_tile = smem.template Alloc<T>(Tile::kRows * kD);
  const auto v_tile = smem.template Alloc<T>(Tile::kRows * kD);
  const auto q_tiles = smem.template Alloc<T>(Tile::kStages * kN * kD);
  const auto dout_tiles = smem.template Alloc<T>(Tile::kStages * kN * kD);
  const auto stats = smem.template Alloc<float>(Tile::kStages * 2 * kN);  // log2(e) * lse, then delta

  const Tiles queries = block.QueryTiles(problem);
  const int tile_begin = queries.begin, tile_end = queries.end;
  const int thread = static_cast<int>(kx::ThreadIdx().x), lane = kx::LaneId(), row = kx::WarpId() * 16;
  const int head_dim = problem.head_dim;
  const float scale_log2 = problem.scale * kLog2e;

  const auto copy_queries = [&](int stage, int member, int n) {
    const int head = kv_head * members + member;
    const auto q = p.q + (seq.q_begin * p.ldq + static_cast<int64_t>(head) * head_dim);
    const auto dout = p.dout + (seq.q_begin * p.lddo + static_cast<int64_t>(head) * head_dim);
    CopyTile<T, kD, kN, Tile::kThreads>(q_tiles.Slice(stage * kN * kD, kN * kD), q, p.ldq, n * kN,
                                        seq.q_count, head_dim);
    CopyTile<T, kD, kN, Tile::kThreads>(dout_tiles.Slice(stage * kN * kD, kN * kD), dout, p.lddo, n * kN,
                                        seq.q_count, head_dim);
    kx::CpAsyncCommit();
  };
  // Thread t carries the t-th of a tile's 2 kN statistics from global to shared memory: loaded when the tile
  // is ordered and stored when the one before has been worked on, so that nobody waits for it.
  static_assert(2 * kN <= Tile::kThreads);
  const auto load_stat = [&](int member, int n) {
    const int i = n * kN + thread % kN;
    if (thread >= 2 * kN || i >= seq.q_count) return 0.f;
    const int64_t at = seq.lse_at + (kv_head * members + member) * seq.lse_head + i;
    return thread < kN ? p.lse.Load(at) * kLog2e : p.delta.Load(at);
  };
  const auto store_stat = [&](int stage, float stat) {
    if (thread < 2 * kN) stats.Store(stage * 2 * kN + thread, stat);
  };

  float dk[kD / 8][4], dv[kD / 8][4];
  Clear(dk);
  Clear(dv);
  const auto k = p.k + (seq.k_begin * p.ldk + static_cast<int64_t>(kv_head) * head_dim);
  const auto v = p.v + (seq.k_begin * p.ldv + static_cast<int64_t>(kv_head) * head_dim);
  CopyTile<T, kD, Tile::kRows, Tile::kThreads>(k_tile, k, p.ldk, first, seq.k_count, head_dim);
  CopyTile<T, kD, Tile::kRows, Tile::kThreads>(v_tile, v, p.ldv, first, seq.k_count, head_dim);
  kx::CpAsyncCommit();
  int stage = 0, member = 0, n = tile_begin;
  if (tile_begin < tile_end) {
    copy_queries(0, 0, n);
    store_stat(0, load_stat(0, n));
  } else {
    member = members;  // Nobody sees these keys.
  }
  KX_NO_UNROLL
  while (member < members) {
    int next_member = member, next_n = n + 1;
    if (next_n == tile_end) {
      next_n = tile_begin;
      ++next_member;
    }
    KX_MUTANT("fa2_bwd/keys_no_wait", kx::CpAsyncWait<0>(), (void)0);
    KX_MUTANT("fa2_bwd/keys_no_sync", kx::Sync(), (void)0);  // This tile is there; the other buffer is free.
    float stat = 0.f;
    if (next_member < members) {
      copy_queries(stage ^ 1, next_member, next_n);
      stat = load_stat(next_member, next_n);
    }
    const auto q_tile = q_tiles.Slice(stage * kN * kD, kN * kD);
    const auto dout_tile = dout_tiles.Slice(stage * kN * kD, kN * kD);

    float s[kN / 8][4], dp[kN / 8][4];
    Clear(s);
    TimesRows<T, kD>(s, k_tile, row, q_tile);
    const bool all = seq.AllVisible(problem, n * kN, kN, first + row, 16);
    KX_UNROLL
    for (int c = 0; c < kN / 8; ++c) {
      const auto lse = stats.template LoadVec<8>(stage * 2 * kN + 8 * c + 2 * (lane % 4));
      KX_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int i = n * kN + 8 * c + 2 * (lane % 4) + e % 2, j = first + row + lane / 4 + 8 * (e / 2);
        const bool visible =
            all || KX_MUTANT("fa2_bwd/keys_mask_forgotten", seq.Visible(problem, i, j), true);
        s[c][e] = visible ? kx::Ex2(s[c][e] * scale_log2 - lse[e % 2]) : 0.f;
      }
    }
    AddWeighted<T, kD>(dv, s, dout_tile);
    Clear(dp);
    TimesRows<T, kD>(dp, v_tile, row, dout_tile);
    KX_UNROLL
    for (int c = 0; c < kN / 8; ++c) {
      const auto delta = stats.template LoadVec<8>(stage * 2 * kN + kN + 8 * c + 2 * (lane % 4));
      KX_UNROLL
      for (int e = 0; e < 4; ++e) {
        s[c][e] *= dp[c][e] - KX_MUTANT("fa2_bwd/keys_delta_of_neighbour", delta[e % 2], delta[e / 2]);
      }
    }
    AddWeighted<T, kD>(dk, s, q_tile);
    if (next_member < members) store_stat(KX_MUTANT("fa2_bwd/keys_stat_stage", stage ^ 1, stage), stat);
    stage ^= 1;
    member = next_member;
    n = next_n;
  }
  kx::CpAsyncWait<0>();  // K's and V's copies, where nobody sees these keys.

  const auto dk_out = p.dk + (seq.k_begin * p.lddk + static_cast<int64_t>(kv_head) * head_dim);
  const auto dv_out = p.dv + (seq.k_begin * p.lddv + static_cast<int64_t>(kv_head) * head_dim);
  KX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int j = first + row + lane / 4 + 8 * half;
    if (j >= KX_MUTANT("fa2_bwd/keys_rows_past_end", seq.k_count, seq.k_count + 1)) continue;
    KX_UNROLL
    for (int d = 0; d < kD / 8; ++d) {
      if (8 * d >= head_dim) continue;
      const int column = 8 * d + 2 * (lane % 4);
      StorePair(dk_out, j * p.lddk + column, dk[d][2 * half] * problem.scale,
                dk[d][2 * half + 1] * problem.scale);
      StorePair(dv_out, j * p.lddv + column, dv[d][2 * half], dv[d][2 * half + 1]);
    }
  }
}

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa2BackwardQueriesTile<kHeadDim>::kThreads)
    Fa2BackwardQueries(const BackwardParams<T> p) {
  using Tile = Fa2BackwardQueriesTile<kHeadDim>;
  constexpr int kD = Tile::kD, kN = Tile::kColumns;
  const Problem& problem = p.problem;
  const QueryBlock<Tile> block(problem);
  if (block.IsEmpty()) return;
  const Sequence& seq = block.seq;
  const int head = block.head, kv_head = block.kv_head, first = block.first;

  kx::Smem smem;
  const auto q_tile = smem.template Alloc<T>(Tile::kRows * kD);
  const auto dout_tile = smem.template Alloc<T>(Tile::kRows * kD);
  const auto k_tiles = smem.template Alloc<T>(Tile::kStages * kN * kD);
  const auto v_tiles = smem.template Alloc<T>(Tile::kStages * kN * kD);
  const Tiles keys = block.KeyTiles(problem);
  const int tile_begin = keys.begin, tile_end = keys.end;
  const int lane = kx::LaneId(), row = kx::WarpId() * 16, head_dim = problem.head_dim;
  const float scale_log2 = problem.scale * kLog2e;

  const auto k = p.k + (seq.k_begin * p.ldk + static_cast<int64_t>(kv_head) * head_dim);
  const auto v = p.v + (seq.k_begin * p.ldv + static_cast<int64_t>(kv_head) * head_dim);
  const auto copy_keys = [&](int stage, int n) {
    CopyTile<T, kD, kN, Tile::kThreads>(k_tiles.Slice(stage * kN * kD, kN * kD), k, p.ldk, n * kN,
                                        seq.k_count, head_dim);
    CopyTile<T, kD, kN, Tile::kThreads>(v_tiles.Slice(stage * kN * kD, kN * kD), v, p.ldv, n * kN,
                                        seq.k_count, head_dim);
    kx::CpAsyncCommit();
  };
  const auto q = p.q + (seq.q_begin * p.ldq + static_cast<int64_t>(head) * head_dim);
  const auto dout = p.dout + (seq.q_begin * p.lddo + static_cast<int64_t>(head) * head_dim);
  CopyTile<T, kD, Tile::kRows, Tile::kThreads>(q_tile, q, p.ldq, first, seq.q_count, head_dim);
  CopyTile<T, kD, Tile::kRows, Tile::kThreads>(dout_tile, dout, p.lddo, first, seq.q_count, head_dim);
  kx::CpAsyncCommit();
  if (tile_begin < tile_end) copy_keys(0, tile_begin);

  float lse[2], delta[2];
  KX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = first + row + lane / 4 + 8 * half;
    const int64_t at = seq.lse_at + head * seq.lse_head + i;
    lse[half] = i < seq.q_count ? p.lse.Load(at) * kLog2e : 0.f;
    delta[half] = i < seq.q_count ? p.delta.Load(at) : 0.f;
  }
  float dq[kD / 8][4];
  Clear(dq);
  int stage = 0;
  KX_NO_UNROLL
  for (int n = tile_begin; n < tile_end; ++n) {
    KX_MUTANT("fa2_bwd/queries_no_wait", kx::CpAsyncWait<0>(), (void)0);
    KX_MUTANT("fa2_bwd/queries_no_sync", kx::Sync(),
              (void)0);  // This tile is there; the other buffer is free.
    if (n + 1 < tile_end) copy_keys(stage ^ 1, n + 1);
    const auto k_tile = k_tiles.Slice(stage * kN * kD, kN * kD);
    const auto v_tile = v_tiles.Slice(stage * kN * kD, kN * kD);
    float s[kN / 8][4], dp[kN / 8][4];
    Clear(s);
    Clear(dp);
    TimesRows<T, kD>(s, q_tile, row, k_tile);
    TimesRows<T, kD>(dp, dout_tile, row, v_tile);
    const bool all = seq.AllVisible(problem, first + row, 16, n * kN, kN);
    KX_UNROLL
    for (int c = 0; c < kN / 8; ++c) {
      KX_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int i = first + row + lane / 4 + 8 * (e / 2), j = n * kN + 8 * c + 2 * (lane % 4) + e % 2;
        const bool visible =
            all || KX_MUTANT("fa2_bwd/queries_mask_forgotten", seq.Visible(problem, i, j), true);
        const float probability = visible ? kx::Ex2(s[c][e] * scale_log2 - lse[e / 2]) : 0.f;
        s[c][e] = probability * (dp[c][e] - delta[e / 2]);
      }
    }
    AddWeighted<T, kD>(dq, s, k_tile);
    stage ^= 1;
  }
  kx::CpAsyncWait<0>();  // Q's and dout's copies, where no key was seen.

  const auto dq_out = p.dq + (seq.q_begin * p.lddq + static_cast<int64_t>(head) * head_dim);
  KX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = first + row + lane / 4 + 8 * half;
    if (i >= seq.q_count) continue;
    KX_UNROLL
    for (int d = 0; d < kD / 8; ++d) {
      if (8 * d >= head_dim) continue;
      StorePair(dq_out, i * p.lddq + 8 * d + 2 * (lane % 4), dq[d][2 * half] * problem.scale,
                KX_MUTANT("fa2_bwd/queries_scale_forgotten", dq[d][2 * half + 1] * problem.scale,
                          dq[d][2 * half + 1]));
    }
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA2_BWD_H_
