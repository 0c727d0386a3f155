// Attention backward for sm_90a: the two kernels of fa2_bwd.h (whose header says what each computes and why
// the bits are fixed) with TMA, mbarriers, wgmma and specialised warps (FlashAttention-3, Shah et al. 2024).
//
// One producer warp keeps a ring full, two consumer warpgroups own 64 rows each. The last product of a tile
// is still in flight when the first two of the next one start: a tile's buffers are given back one tile
// later.
#ifndef KERNELS_ATTENTION_FA3_BWD_H_
#define KERNELS_ATTENTION_FA3_BWD_H_

#include "kernels/attention/fa3_tiles.h"
#include "kernels/attention/fragments.h"

namespace strata::attention {

// The block's own rows full, the producer's scratch, and full and empty per stage.
template <int kStages>
struct BackwardBarriers {
  static constexpr int kCount = 2 + 2 * kStages;
  kx::SharedAddress own_full, scratch, full, empty;

  KX_DEVICE explicit BackwardBarriers(kx::SharedAddress first)
      : own_full(first), scratch(first + 8), full(first + 16), empty(full + 8 * kStages) {}
  // By one thread, before the block's first Sync. A stage is full after `fills` arrivals; of each consumer
  // warp one lane releases it.
  KX_DEVICE void Init(int fills, int consumer_warps) const {
    kx::MbarInit(own_full, 1);
    kx::MbarInit(scratch, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      kx::MbarInit(full + 8 * stage, fills);
      kx::MbarInit(empty + 8 * stage, consumer_warps);
    }
    kx::FenceMbarInit();
  }
};

template <int kHeadDim>
struct Fa3BackwardTile {
  static constexpr int kD = kHeadDim;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers), kStages = 3;
  static constexpr int kRows = 64 * kConsumers;  // of the block: keys or queries
  static constexpr int kColumns = 64;            // of a walked tile: queries or keys
  static constexpr bool kOverlapTiles = kD <= 96;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  using Own = Slabs<kRows, kD>;
  using Walked = Slabs<kColumns, kD>;
  static constexpr int kMatrixBytes = 2 * Own::kBytes + 2 * kStages * Walked::kBytes;
  using Barriers = BackwardBarriers<kStages>;
  static constexpr int kStats =
      kStages * 2 * kColumns;  // floats: log2(e) * lse, then delta, of a stage's queries
  static constexpr int kKeysSharedBytes = kMatrixBytes + 4 * kStats + 8 * Barriers::kCount;
  static constexpr int kQueriesSharedBytes = kMatrixBytes + 8 * Barriers::kCount;
};

// c = x y^T for the 64 rows of warpgroup `group`, in flight when it returns.
template <class T, class Tile, int kCount>
KX_DEVICE void StartTimesRows(float (&c)[kCount], kx::SharedAddress x, int group, kx::SharedAddress y) {
  kx::WgmmaFence();
  KX_UNROLL
  for (int kk = 0; kk < Tile::kD / 16; ++kk) {
    kx::WgmmaSs<T>(c, Tile::Own::AlongColumns(x, group * 64, kk), Tile::Walked::AlongColumns(y, 0, kk),
                   kk > 0);
  }
  kx::WgmmaCommit();
}

// c += w y, in flight when it returns.
template <class T, class Tile, int kCount, int kSteps>
KX_DEVICE void StartAddWeighted(float (&c)[kCount], const uint32_t (&w)[kSteps][4], kx::SharedAddress y) {
  kx::WgmmaFence();
  KX_UNROLL
  for (int kk = 0; kk < kSteps; ++kk) {
    kx::WgmmaRs<T, kx::Major::kMN>(c, w[kk], Tile::Walked::AlongRows(y, kk), true);
  }
  kx::WgmmaCommit();
}

// Stores factor * d as rows `row` (of this lane) and `row` + 8 of out, rows below `end` only.
template <class T, int kCount>
KX_DEVICE void StoreRows(kx::Gmem<T> out, int64_t ld, int row, int end, int head_dim,
                         const float (&d)[kCount], float factor) {
  const int column = 2 * (kx::LaneId() % 4);
  KX_UNROLL
  for (int c = 0; c < kCount / 4; ++c) {
    if (8 * c >= head_dim) continue;
    if (row < end) StorePair(out, row * ld + 8 * c + column, d[4 * c] * factor, d[4 * c + 1] * factor);
    if (row + 8 < end)
      StorePair(out, (row + 8) * ld + 8 * c + column, d[4 * c + 2] * factor, d[4 * c + 3] * factor);
  }
}

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa3BackwardTile<kHeadDim>::kThreads, 1)
    Fa3BackwardKeys(KX_GRID_CONSTANT kx::TensorMap q_map, KX_GRID_CONSTANT kx::TensorMap k_map,
                    KX_GRID_CONSTANT kx::TensorMap v_map, KX_GRID_CONSTANT kx::TensorMap dout_map,
                    const BackwardParams<T> p) {
  using Tile = Fa3BackwardTile<kHeadDim>;
  using Own = typename Tile::Own;
  using Walked = typename Tile::Walked;
  constexpr int kD = Tile::kD, kN = Tile::kColumns, kStages = Tile::kStages;
  const Problem& problem = p.problem;
  const KeyBlock<Tile> block(problem);
  if (block.IsEmpty()) return;
  const Sequence& seq = block.seq;
  const int kv_head = block.kv_head, members = block.members, first = block.first;

  kx::Smem smem;
  const kx::SharedAddress k_tile = smem.template Alloc<T, 1024>(Own::kElements).Address();
  const kx::SharedAddress v_tile = smem.template Alloc<T, 1024>(Own::kElements).Address();
  const auto q_tiles = smem.template Alloc<T, 1024>(kStages * Walked::kElements);
  const auto dout_tiles = smem.template Alloc<T, 1024>(kStages * Walked::kElements);
  const kx::SharedAddress q_ring = q_tiles.Address(), dout_ring = dout_tiles.Address();
  const auto stats = smem.template Alloc<float>(Tile::kStats);
  const typename Tile::Barriers bars(smem.template Alloc<uint64_t, 8>(Tile::Barriers::kCount).Address());
  const int thread = static_cast<int>(kx::ThreadIdx().x), lane = kx::LaneId();
  // The 32 lanes that bring the statistics, and once for each matrix.
  if (thread == 0) bars.Init(34, 4 * Tile::kConsumers);
  kx::Sync();
  const Tiles queries = block.QueryTiles(problem);
  const int tile_begin = queries.begin, tile_end = queries.end;
  const int tiles = tile_begin < tile_end ? members * (tile_end - tile_begin) : 0;

  if (thread < 128) {
    kx::SetMaxRegistersDec<Tile::kProducerRegisters>();
    if (thread < 32 && tiles > 0) {
      const TmaRows q_rows = QueryRows(problem, seq, block.batch),
                    k_rows = KeyRows(problem, seq, block.batch);
      if (lane == 0) {
        kx::MbarArriveExpectTx(bars.own_full, 2 * Own::kBytes);
        Own::Load(k_tile, k_map, bars.own_full, k_rows.row + first, kv_head, k_rows.batch);
        Own::Load(v_tile, v_map, bars.own_full, k_rows.row + first, kv_head, k_rows.batch);
      }
      RingPosition<kStages> at;
      const bool packed = !problem.cu_q.IsNull();
      int head = kv_head * members, n = tile_begin, scratch_parity = 0;
      KX_NO_UNROLL
      for (int tile = 0; tile < tiles; ++tile, at.Next()) {
        KX_MUTANT("fa3_bwd/keys_no_wait_empty", kx::MbarWait(bars.empty + 8 * at.stage, at.parity ^ 1),
                  (void)0);
        const int at_row = q_rows.row + n * kN, rows = seq.q_count - n * kN;
        FillTile<Walked>(q_tiles.Slice(at.stage * Walked::kElements, Walked::kElements), q_map,
                         bars.full + 8 * at.stage, bars.scratch, scratch_parity, at_row, head, q_rows.batch,
                         rows, packed);
        FillTile<Walked>(dout_tiles.Slice(at.stage * Walked::kElements, Walked::kElements), dout_map,
                         bars.full + 8 * at.stage, bars.scratch, scratch_parity, at_row, head, q_rows.batch,
                         rows, packed);
        for (int i = lane; i < kN; i += 32) {
          const bool exists = n * kN + i < seq.q_count;
          const int64_t from = seq.lse_at + head * seq.lse_head + n * kN + i;
          stats.Store(at.stage * 2 * kN + i, exists ? p.lse.Load(from) * kLog2e : 0.f);
          stats.Store(at.stage * 2 * kN + kN + i, exists ? p.delta.Load(from) : 0.f);
        }
        kx::MbarArrive(bars.full + 8 * at.stage);
        if (++n == tile_end) {
          n = tile_begin;
          ++head;
        }
      }
    }
  } else {
    kx::SetMaxRegistersInc<Tile::kConsumerRegisters>();
    const int group = thread / 128 - 1, row = first + group * 64 + thread / 32 % 4 * 16;
    const float scale_log2 = problem.scale * kLog2e;
    float dk[kD / 2], dv[kD / 2];
    Clear(dk);
    Clear(dv);
    if (tiles > 0) {
      float s[kN / 2], dp[kN / 2];
      uint32_t weights[kN / 16][4], gradients[kN / 16][4];
      RingPosition<kStages> at;
      int n = tile_begin, stage_before = -1;
      kx::MbarWait(bars.own_full, 0);
      KX_NO_UNROLL
      for (int tile = 0; tile < tiles; ++tile) {
        const kx::SharedAddress q_tile = q_ring + at.stage * Walked::kBytes;
        const kx::SharedAddress dout_tile = dout_ring + at.stage * Walked::kBytes;
        KX_MUTANT("fa3_bwd/keys_no_wait_full", kx::MbarWait(bars.full + 8 * at.stage, at.parity), (void)0);
        StartTimesRows<T, Tile>(s, k_tile, group, q_tile);
        StartTimesRows<T, Tile>(dp, v_tile, group, dout_tile);
        kx::WgmmaWait<1>(s);  // And with it everything of the tile before.
        const int done = KX_MUTANT("fa3_bwd/keys_released_too_early", stage_before, at.stage);
        // The other lanes have read the statistics of that tile: their reads come before the arrival.
        KX_MUTANT("fa3_bwd/keys_no_syncwarp", kx::Syncwarp(), (void)0);
        if (lane == 0 && done >= 0) kx::MbarArrive(bars.empty + 8 * done);
        const bool all = seq.AllVisible(problem, n * kN, kN, row, 16);
        KX_UNROLL
        for (int c = 0; c < kN / 8; ++c) {
          const auto lse = stats.template LoadVec<8>(at.stage * 2 * kN + 8 * c + 2 * (lane % 4));
          KX_UNROLL
          for (int e = 0; e < 4; ++e) {
            const int i = n * kN + 8 * c + 2 * (lane % 4) + e % 2, j = row + lane / 4 + 8 * (e / 2);
            const bool visible =
                all || KX_MUTANT("fa3_bwd/keys_mask_forgotten", seq.Visible(problem, i, j), true);
            s[4 * c + e] = visible ? kx::Ex2(s[4 * c + e] * scale_log2 - lse[e % 2]) : 0.f;
          }
        }
        ToOperands<T>(weights, s);
        StartAddWeighted<T, Tile>(dv, weights, dout_tile);
        KX_MUTANT("fa3_bwd/keys_no_wait_for_dp", kx::WgmmaWait<1>(dp), (void)0);
        KX_UNROLL
        for (int c = 0; c < kN / 8; ++c) {
          const auto delta = stats.template LoadVec<8>(at.stage * 2 * kN + kN + 8 * c + 2 * (lane % 4));
          KX_UNROLL
          for (int e = 0; e < 4; ++e) {
            s[4 * c + e] *=
                dp[4 * c + e] - KX_MUTANT("fa3_bwd/keys_delta_of_neighbour", delta[e % 2], delta[e / 2]);
          }
        }
        ToOperands<T>(gradients, s);
        StartAddWeighted<T, Tile>(dk, gradients, q_tile);
        if constexpr (!Tile::kOverlapTiles) kx::WgmmaWait<0>(dk, dv);
        stage_before = at.stage;
        at.Next();
        if (++n == tile_end) n = tile_begin;
      }
      kx::WgmmaWait<0>(dk, dv);
    }
    const int64_t column = static_cast<int64_t>(kv_head) * problem.head_dim;
    StoreRows(p.dk + (seq.k_begin * p.lddk + column), p.lddk, row + lane / 4, seq.k_count, problem.head_dim,
              dk, KX_MUTANT("fa3_bwd/keys_scale_forgotten", problem.scale, 1.f));
    StoreRows(p.dv + (seq.k_begin * p.lddv + column), p.lddv, row + lane / 4, seq.k_count, problem.head_dim,
              dv, 1.f);
  }
}

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa3BackwardTile<kHeadDim>::kThreads, 1)
    Fa3BackwardQueries(KX_GRID_CONSTANT kx::TensorMap q_map, KX_GRID_CONSTANT kx::TensorMap k_map,
                       KX_GRID_CONSTANT kx::TensorMap v_map, KX_GRID_CONSTANT kx::TensorMap dout_map,
                       const BackwardParams<T> p) {
  using Tile = Fa3BackwardTile<kHeadDim>;
  using Own = typename Tile::Own;
  using Walked = typename Tile::Walked;
  constexpr int kD = Tile::kD, kN = Tile::kColumns, kStages = Tile::kStages;
  const Problem& problem = p.problem;
  const QueryBlock<Tile> block(problem);
  if (block.IsEmpty()) return;
  const Sequence& seq = block.seq;
  const int head = block.head, kv_head = block.kv_head, first = block.first;

  kx::Smem smem;
  const kx::SharedAddress q_tile = smem.template Alloc<T, 1024>(Own::kElements).Address();
  const kx::SharedAddress dout_tile = smem.template Alloc<T, 1024>(Own::kElements).Address();
  const auto k_tiles = smem.template Alloc<T, 1024>(kStages * Walked::kElements);
  const auto v_tiles = smem.template Alloc<T, 1024>(kStages * Walked::kElements);
  const kx::SharedAddress k_ring = k_tiles.Address(), v_ring = v_tiles.Address();
  const typename Tile::Barriers bars(smem.template Alloc<uint64_t, 8>(Tile::Barriers::kCount).Address());
  const int thread = static_cast<int>(kx::ThreadIdx().x), lane = kx::LaneId();
  if (thread == 0) bars.Init(2, 4 * Tile::kConsumers);  // K and V
  kx::Sync();
  const Tiles keys = block.KeyTiles(problem);
  const int tile_begin = keys.begin, tile_end = keys.end;

  if (thread < 128) {
    kx::SetMaxRegistersDec<Tile::kProducerRegisters>();
    if (thread < 32 && tile_begin < tile_end) {
      const TmaRows q_rows = QueryRows(problem, seq, block.batch),
                    k_rows = KeyRows(problem, seq, block.batch);
      const bool packed = !problem.cu_q.IsNull();
      if (thread == 0) {
        kx::MbarArriveExpectTx(bars.own_full, 2 * Own::kBytes);
        Own::Load(q_tile, q_map, bars.own_full, q_rows.row + first, head, q_rows.batch);
        Own::Load(dout_tile, dout_map, bars.own_full, q_rows.row + first, head, q_rows.batch);
      }
      RingPosition<kStages> at;
      int scratch_parity = 0;
      KX_NO_UNROLL
      for (int n = tile_begin; n < tile_end; ++n, at.Next()) {
        const int at_row = k_rows.row + n * kN, rows = seq.k_count - n * kN;
        kx::MbarWait(bars.empty + 8 * at.stage,
                     KX_MUTANT("fa3_bwd/queries_parity_of_empty", at.parity ^ 1, at.parity));
        FillTile<Walked>(k_tiles.Slice(at.stage * Walked::kElements, Walked::kElements), k_map,
                         bars.full + 8 * at.stage, bars.scratch, scratch_parity, at_row, kv_head,
                         k_rows.batch, rows, packed);
        FillTile<Walked>(v_tiles.Slice(at.stage * Walked::kElements, Walked::kElements), v_map,
                         bars.full + 8 * at.stage, bars.scratch, scratch_parity, at_row, kv_head,
                         k_rows.batch, rows, packed);
      }
    }
  } else {
    kx::SetMaxRegistersInc<Tile::kConsumerRegisters>();
    const int group = thread / 128 - 1, row = first + group * 64 + thread / 32 % 4 * 16;
    const float scale_log2 = problem.scale * kLog2e;
    float dq[kD / 2], lse[2], delta[2];
    Clear(dq);
    KX_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = row + lane / 4 + 8 * half;
      const int64_t from = seq.lse_at + head * seq.lse_head + i;
      lse[half] = i < seq.q_count ? p.lse.Load(from) * kLog2e : 0.f;
      delta[half] = i < seq.q_count ? p.delta.Load(from) : 0.f;
    }
    if (tile_begin < tile_end) {
      float s[kN / 2], dp[kN / 2];
      uint32_t gradients[kN / 16][4];
      RingPosition<kStages> at;
      int stage_before = -1;
      kx::MbarWait(bars.own_full, 0);
      KX_NO_UNROLL
      for (int n = tile_begin; n < tile_end; ++n) {
        KX_MUTANT("fa3_bwd/queries_no_wait_full", kx::MbarWait(bars.full + 8 * at.stage, at.parity), (void)0);
        StartTimesRows<T, Tile>(s, q_tile, group, k_ring + at.stage * Walked::kBytes);
        StartTimesRows<T, Tile>(dp, dout_tile, group, v_ring + at.stage * Walked::kBytes);
        kx::WgmmaWait<1>(s);  // And with it everything of the tile before.
        if (lane == 0 && stage_before >= 0) kx::MbarArrive(bars.empty + 8 * stage_before);
        const bool all = seq.AllVisible(problem, row, 16, n * kN, kN);
        KX_UNROLL
        for (int x = 0; x < kN / 2; ++x) {
          const int half = x / 2 % 2;
          const int i = row + lane / 4 + 8 * half, j = n * kN + 8 * (x / 4) + 2 * (lane % 4) + x % 2;
          const bool visible =
              all || KX_MUTANT("fa3_bwd/queries_mask_forgotten", seq.Visible(problem, i, j), true);
          s[x] = visible ? kx::Ex2(s[x] * scale_log2 - lse[half]) : 0.f;
        }
        KX_MUTANT("fa3_bwd/queries_no_wait_for_dp", kx::WgmmaWait<0>(dp), (void)0);
        KX_UNROLL
        for (int x = 0; x < kN / 2; ++x) s[x] *= dp[x] - delta[x / 2 % 2];
        ToOperands<T>(gradients, s);
        StartAddWeighted<T, Tile>(dq, gradients, k_ring + at.stage * Walked::kBytes);
        stage_before = at.stage;
        at.Next();
      }
      kx::WgmmaWait<0>(dq);
    }
    StoreRows(p.dq + (seq.q_begin * p.lddq + static_cast<int64_t>(head) * problem.head_dim), p.lddq,
              row + lane / 4, KX_MUTANT("fa3_bwd/queries_rows_past_end", seq.q_count, seq.q_count + 1),
              problem.head_dim, dq, problem.scale);
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA3_BWD_H_
