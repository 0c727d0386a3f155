// Attention forward for sm_90a (FlashAttention-3, Shah et al. 2024): TMA, mbarriers, wgmma, specialised
// warps.
//
// A block owns kRows queries of one head. One producer thread keeps two rings (K and V) full; each of the two
// consumer warpgroups owns 64 of the rows. Two overlaps hide the softmax:
//   inside a warpgroup   QK^T of tile n and PV of tile n - 1 are in flight together, and the softmax of n
//   runs under PV; between warpgroups   they take turns at the tensor cores (named barriers, "ping-pong"):
//   one multiplies while the
//                        other exponentiates.
#ifndef KERNELS_ATTENTION_FA3_FWD_H_
#define KERNELS_ATTENTION_FA3_FWD_H_

#include "kernels/attention/fa3_tiles.h"
#include "kernels/attention/fragments.h"

namespace strata::attention {

// Q full, the producer's scratch, and full and empty of K and of V per stage.
template <int kStages>
struct ForwardBarriers {
  static constexpr int kCount = 2 + 4 * kStages;
  kx::SharedAddress q_full, scratch, k_full, k_empty, v_full, v_empty;

  KX_DEVICE explicit ForwardBarriers(kx::SharedAddress first)
      : q_full(first),
        scratch(first + 8),
        k_full(first + 16),
        k_empty(k_full + 8 * kStages),
        v_full(k_empty + 8 * kStages),
        v_empty(v_full + 8 * kStages) {}
  // By one thread, before the block's first Sync. Of each consumer warp one lane releases a stage.
  KX_DEVICE void Init(int consumer_warps) const {
    kx::MbarInit(q_full, 1);
    kx::MbarInit(scratch, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      kx::MbarInit(k_full + 8 * stage, 1);
      kx::MbarInit(v_full + 8 * stage, 1);
      kx::MbarInit(k_empty + 8 * stage, consumer_warps);
      kx::MbarInit(v_empty + 8 * stage, consumer_warps);
    }
    kx::FenceMbarInit();
  }
};

// The turns of two warpgroups at the tensor cores: barrier 1 + group, passed by the other one. The first turn
// is group 0's, which group 1 passes; group 0 takes the last that group 1 passes, so that every arrival has
// its wait.
struct Turns {
  int group;
  KX_DEVICE void Pass() const { kx::BarArrive(2 - group, 256); }
  KX_DEVICE void Take() const { kx::BarSync(1 + group, 256); }
};

template <int kHeadDim>
struct Fa3ForwardTile {
  static constexpr int kD = kHeadDim;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers), kStages = 2;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kColumns = kD <= 128 ? 128 : 64;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  using Q = Slabs<kRows, kD>;
  using KV = Slabs<kColumns, kD>;
  // Q, the rings, then the barriers.
  static constexpr int kSharedBytes =
      Q::kBytes + 2 * kStages * KV::kBytes + 8 * ForwardBarriers<kStages>::kCount;
};

// Scores of one warpgroup's tile, in wgmma's layout, to probabilities relative to the running maximum.
template <int kHalf, int kCount>
KX_DEVICE void Fa3SoftmaxOfRow(float (&s)[kCount], float& maximum, float& sum, float& shrink,
                               float scale_log2) {
  float top = maximum;
  KX_UNROLL
  for (int x = 0; x < kCount; ++x) {
    if (x / 2 % 2 == kHalf) top = fmaxf(top, s[x]);
  }
  top = KX_MUTANT("fa3_fwd/max_of_one_lane", QuadMax(top), top);
  // As in fa2_fwd.h: a row that has seen nothing has its exponents taken relative to 0.
  const float base = top == -INFINITY ? 0.f : top * scale_log2;
  shrink = kx::Ex2(maximum * scale_log2 - base);
  maximum = top;
  float added = 0.f;
  KX_UNROLL
  for (int x = 0; x < kCount; ++x) {
    if (x / 2 % 2 == kHalf) added += s[x] = kx::Ex2(s[x] * scale_log2 - base);
  }
  sum = sum * shrink + added;
}
template <int kCount>
KX_DEVICE void Fa3Softmax(float (&s)[kCount], float (&maximum)[2], float (&sum)[2], float (&shrink)[2],
                          float scale_log2) {
  Fa3SoftmaxOfRow<0>(s, maximum[0], sum[0], shrink[0], scale_log2);
  Fa3SoftmaxOfRow<1>(s, maximum[1], sum[1], shrink[1], scale_log2);
}

// s = Q K^T for the 64 rows of warpgroup `group`, in flight when it returns. Functions, not lambdas, work on
// accumulators: they are inlined before the compiler decides what may live in registers.
template <class T, class Tile, int kCount>
KX_DEVICE void StartScores(float (&s)[kCount], kx::SharedAddress q_tile, int group,
                           kx::SharedAddress k_tile) {
  kx::WgmmaFence();
  KX_UNROLL
  for (int kk = 0; kk < Tile::kD * static_cast<int>(sizeof(T)) / 32; ++kk) {
    kx::WgmmaSs<T>(s, Tile::Q::AlongColumns(q_tile, group * 64, kk), Tile::KV::AlongColumns(k_tile, 0, kk),
                   kk > 0);
  }
  kx::WgmmaCommit();
}

// o += P V, in flight when it returns.
template <class T, class Tile, int kCount, int kSteps>
KX_DEVICE void StartOutput(float (&o)[kCount], const uint32_t (&probabilities)[kSteps][4],
                           kx::SharedAddress v_tile) {
  kx::WgmmaFence();
  KX_UNROLL
  for (int kk = 0; kk < kSteps; ++kk) {
    kx::WgmmaRs<T, kx::Major::kMN>(o, probabilities[kk], Tile::KV::AlongRows(v_tile, kk), true);
  }
  kx::WgmmaCommit();
}

// Hides from the 16 rows of this warp, queries i0 and on, the keys from j0 on that they do not see.
template <int kCount>
KX_DEVICE void MaskScores(float (&s)[kCount], const Problem& p, const Sequence& seq, int i0, int j0) {
  if (KX_MUTANT("fa3_fwd/mask_forgotten", seq.AllVisible(p, i0, 16, j0, 2 * kCount), true)) return;
  const int lane = kx::LaneId(), i = i0 + lane / 4 + seq.shift;
  const int low[2] = {i - p.left, i + 8 - p.left};
  const int high[2] = {Min(seq.k_count - 1, i + p.right), Min(seq.k_count - 1, i + 8 + p.right)};
  KX_UNROLL
  for (int x = 0; x < kCount; ++x) {
    const int j = j0 + 8 * (x / 4) + 2 * (lane % 4) + x % 2, half = x / 2 % 2;
    if (j < low[half] || j > high[half]) s[x] = -INFINITY;
  }
}

// Stores the results of this warp's 16 rows, queries i0 and on: o times factor, and lse, each by the half of
// the accumulators they belong to.
template <class T, int kCount>
KX_DEVICE void StoreForward(const ForwardParams<T>& p, const Sequence& seq, int head, int i0,
                            const float (&o)[kCount], const float (&factor)[2], const float (&lse)[2]) {
  const int lane = kx::LaneId();
  const auto out = p.out + (seq.q_begin * p.ldo + static_cast<int64_t>(head) * p.problem.head_dim);
  KX_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = i0 + lane / 4 + 8 * half;
    if (i >= seq.q_count) continue;
    KX_UNROLL
    for (int c = 0; c < kCount / 4; ++c) {
      if (8 * c >= p.problem.head_dim) continue;
      StorePair(out, i * p.ldo + 8 * c + 2 * (lane % 4), o[4 * c + 2 * half] * factor[half],
                o[4 * c + 2 * half + 1] * factor[half]);
    }
    if (lane % 4 == 0) p.lse.Store(seq.lse_at + head * seq.lse_head + i, lse[half]);
  }
}

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa3ForwardTile<kHeadDim>::kThreads, 1)
    Fa3Forward(KX_GRID_CONSTANT kx::TensorMap q_map, KX_GRID_CONSTANT kx::TensorMap k_map,
               KX_GRID_CONSTANT kx::TensorMap v_map, const ForwardParams<T> p) {
  using Tile = Fa3ForwardTile<kHeadDim>;
  using Q = typename Tile::Q;
  using KV = typename Tile::KV;
  constexpr int kD = Tile::kD, kN = Tile::kColumns, kStages = Tile::kStages;
  const Problem& problem = p.problem;
  const QueryBlock<Tile> block(problem);
  if (block.IsEmpty()) return;
  const Sequence& seq = block.seq;
  const int head = block.head, kv_head = block.kv_head, first = block.first;

  kx::Smem smem;
  const kx::SharedAddress q_tile = smem.template Alloc<T, 1024>(Q::kElements).Address();
  const auto k_tiles = smem.template Alloc<T, 1024>(kStages * KV::kElements);
  const auto v_tiles = smem.template Alloc<T, 1024>(kStages * KV::kElements);
  const kx::SharedAddress k_ring = k_tiles.Address(), v_ring = v_tiles.Address();
  const ForwardBarriers<kStages> bars(
      smem.template Alloc<uint64_t, 8>(ForwardBarriers<kStages>::kCount).Address());
  const int thread = static_cast<int>(kx::ThreadIdx().x);
  if (thread == 0) bars.Init(4 * Tile::kConsumers);
  KX_MUTANT("fa3_fwd/no_sync_after_init", kx::Sync(), (void)0);
  const Tiles keys = block.KeyTiles(problem);
  const int tile_begin = keys.begin, tile_end = keys.end;

  if (thread < 128) {
    kx::SetMaxRegistersDec<Tile::kProducerRegisters>();
    if (thread < 32 && tile_begin < tile_end) {
      const TmaRows q_rows = QueryRows(problem, seq, block.batch),
                    k_rows = KeyRows(problem, seq, block.batch);
      const bool packed = !problem.cu_q.IsNull();
      if (thread == 0) {
        kx::MbarArriveExpectTx(bars.q_full, Q::kBytes);
        Q::Load(q_tile, q_map, bars.q_full, q_rows.row + first, head, q_rows.batch);
      }
      RingPosition<kStages> at;
      int scratch_parity = 0;
      KX_NO_UNROLL
      for (int n = tile_begin; n < tile_end; ++n, at.Next()) {
        const int row = k_rows.row + n * kN, rows = seq.k_count - n * kN;
        KX_MUTANT("fa3_fwd/no_wait_empty_k", kx::MbarWait(bars.k_empty + 8 * at.stage, at.parity ^ 1),
                  (void)0);
        FillTile<KV>(k_tiles.Slice(at.stage * KV::kElements, KV::kElements), k_map,
                     bars.k_full + 8 * at.stage, bars.scratch, scratch_parity, row, kv_head, k_rows.batch,
                     rows, packed);
        kx::MbarWait(bars.v_empty + 8 * at.stage,
                     KX_MUTANT("fa3_fwd/parity_of_empty_v", at.parity ^ 1, at.parity));
        FillTile<KV>(v_tiles.Slice(at.stage * KV::kElements, KV::kElements), v_map,
                     bars.v_full + 8 * at.stage, bars.scratch, scratch_parity, row, kv_head, k_rows.batch,
                     rows, packed);
      }
    }
  } else {
    kx::SetMaxRegistersInc<Tile::kConsumerRegisters>();
    const int group = thread / 128 - 1, lane = kx::LaneId(), row = group * 64 + thread / 32 % 4 * 16;
    const float scale_log2 = problem.scale * kLog2e;
    float o[kD / 2], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
    Clear(o);
    if (tile_begin < tile_end) {
      const Turns turns{group};
      float s[kN / 2], shrink[2];
      uint32_t probabilities[kN / 16][4];
      const auto release = [&](kx::SharedAddress empty) {
        if (lane == 0) kx::MbarArrive(empty);
      };

      RingPosition<kStages> k_at, v_at;
      kx::MbarWait(bars.q_full, 0);
      if (group == 1) turns.Pass();
      KX_MUTANT("fa3_fwd/no_wait_full_k", kx::MbarWait(bars.k_full, 0), (void)0);
      turns.Take();
      StartScores<T, Tile>(s, q_tile, group, k_ring);
      turns.Pass();
      kx::WgmmaWait<0>(s);
      release(bars.k_empty);
      k_at.Next();
      MaskScores(s, problem, seq, first + row, tile_begin * kN);
      Fa3Softmax(s, maximum, sum, shrink, scale_log2);
      ToOperands<T>(probabilities, s);
      KX_NO_UNROLL
      for (int n = tile_begin + 1; n < tile_end; ++n) {
        kx::MbarWait(bars.k_full + 8 * k_at.stage, k_at.parity);
        turns.Take();
        StartScores<T, Tile>(s, q_tile, group, k_ring + k_at.stage * KV::kBytes);
        KX_MUTANT("fa3_fwd/no_wait_full_v", kx::MbarWait(bars.v_full + 8 * v_at.stage, v_at.parity), (void)0);
        StartOutput<T, Tile>(o, probabilities, v_ring + v_at.stage * KV::kBytes);
        turns.Pass();
        KX_MUTANT("fa3_fwd/no_wait_for_scores", kx::WgmmaWait<1>(s), (void)0);
        release(bars.k_empty + 8 * k_at.stage);
        k_at.Next();
        MaskScores(s, problem, seq, first + row, n * kN);
        Fa3Softmax(s, maximum, sum, shrink, scale_log2);
        const bool early = KX_MUTANT("fa3_fwd/v_released_before_read", false, true);
        if (early) release(bars.v_empty + 8 * v_at.stage);
        kx::WgmmaWait<0>(o);
        if (!early) release(bars.v_empty + 8 * v_at.stage);
        v_at.Next();
        KX_UNROLL
        for (int i = 0; i < kD / 2; ++i) o[i] *= KX_MUTANT("fa3_fwd/no_rescale", shrink[i / 2 % 2], 1.f);
        ToOperands<T>(probabilities, s);
      }
      kx::MbarWait(bars.v_full + 8 * v_at.stage, v_at.parity);
      StartOutput<T, Tile>(o, probabilities, v_ring + v_at.stage * KV::kBytes);
      kx::WgmmaWait<0>(o);
      if (group == 0) turns.Take();
    }

    float inverse[2], lse[2];
    KX_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = QuadSum(sum[half]);
      inverse[half] = total == 0.f ? 0.f : 1.f / total;
      lse[half] = total == 0.f ? -INFINITY : (maximum[half] * scale_log2 + kx::Lg2(total)) * kLn2;
    }
    StoreForward(p, seq, head, first + row, o, inverse, lse);
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA3_FWD_H_
