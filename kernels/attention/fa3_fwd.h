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

template <int kHeadDim>
struct Fa3ForwardTile {
  static constexpr int kD = kHeadDim;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers), kStages = 2;
  static constexpr int kRows = 64 * kConsumers;
  static constexpr int kColumns = kD <= 128 ? 128 : 64;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  using Q = Slabs<kRows, kD>;
  using KV = Slabs<kColumns, kD>;
  // Q, the rings, then the barriers: Q full, the producer's scratch, and full and empty of K and of V per
  // stage.
  static constexpr int kBarriers = 2 + 4 * kStages;
  static constexpr int kSharedBytes = Q::kBytes + 2 * kStages * KV::kBytes + 8 * kBarriers;
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
  for (int kk = 0; kk < Tile::kD / 16; ++kk) {
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

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa3ForwardTile<kHeadDim>::kThreads, 1)
    Fa3Forward(KX_GRID_CONSTANT kx::TensorMap q_map, KX_GRID_CONSTANT kx::TensorMap k_map,
               KX_GRID_CONSTANT kx::TensorMap v_map, const ForwardParams<T> p) {
  using Tile = Fa3ForwardTile<kHeadDim>;
  using Q = typename Tile::Q;
  using KV = typename Tile::KV;
  constexpr int kD = Tile::kD, kN = Tile::kColumns, kStages = Tile::kStages;
  const Problem& problem = p.problem;
  const int head = static_cast<int>(kx::BlockIdx().y), kv_head = head / (problem.heads / problem.kv_heads);
  const int b = static_cast<int>(kx::BlockIdx().z);
  const Sequence seq = SequenceOf(problem, b);
  const int first = static_cast<int>(kx::GridDim().x - 1 - kx::BlockIdx().x) * Tile::kRows;
  if (first >= seq.q_count) return;

  kx::Smem smem;
  const kx::SharedAddress q_tile = smem.template Alloc<T, 1024>(Q::kElements).Address();
  const auto k_tiles = smem.template Alloc<T, 1024>(kStages * KV::kElements);
  const auto v_tiles = smem.template Alloc<T, 1024>(kStages * KV::kElements);
  const kx::SharedAddress k_ring = k_tiles.Address(), v_ring = v_tiles.Address();
  const kx::SharedAddress q_full = smem.template Alloc<uint64_t, 8>(Tile::kBarriers).Address();
  const kx::SharedAddress scratch = q_full + 8, k_full = scratch + 8, k_empty = k_full + 8 * kStages;
  const kx::SharedAddress v_full = k_empty + 8 * kStages, v_empty = v_full + 8 * kStages;
  const int thread = static_cast<int>(kx::ThreadIdx().x);
  if (thread == 0) {
    kx::MbarInit(q_full, 1);
    kx::MbarInit(scratch, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      kx::MbarInit(k_full + 8 * stage, 1);
      kx::MbarInit(v_full + 8 * stage, 1);
      kx::MbarInit(k_empty + 8 * stage, 4 * Tile::kConsumers);  // One lane of each consumer warp arrives.
      kx::MbarInit(v_empty + 8 * stage, 4 * Tile::kConsumers);
    }
    kx::FenceMbarInit();
  }
  KX_MUTANT("fa3_fwd/no_sync_after_init", kx::Sync(), (void)0);
  const int tile_begin = seq.KeyBegin(problem, first) / kN;
  const int tile_end = (Max(0, seq.KeyEnd(problem, first, Tile::kRows)) + kN - 1) / kN;

  if (thread < 128) {
    kx::SetMaxRegistersDec<Tile::kProducerRegisters>();
    if (thread < 32 && tile_begin < tile_end) {
      const TmaRows q_rows = QueryRows(problem, seq, b), k_rows = KeyRows(problem, seq, b);
      const bool packed = !problem.cu_q.IsNull();
      if (thread == 0) {
        kx::MbarArriveExpectTx(q_full, Q::kBytes);
        Q::Load(q_tile, q_map, q_full, q_rows.row + first, head, q_rows.batch);
      }
      RingPosition<kStages> at;
      int scratch_parity = 0;
      KX_NO_UNROLL
      for (int n = tile_begin; n < tile_end; ++n, at.Next()) {
        const int row = k_rows.row + n * kN, rows = seq.k_count - n * kN;
        KX_MUTANT("fa3_fwd/no_wait_empty_k", kx::MbarWait(k_empty + 8 * at.stage, at.parity ^ 1), (void)0);
        FillTile<KV>(k_tiles.Slice(at.stage * KV::kElements, KV::kElements), k_map, k_full + 8 * at.stage,
                     scratch, scratch_parity, row, kv_head, k_rows.batch, rows, packed);
        kx::MbarWait(v_empty + 8 * at.stage,
                     KX_MUTANT("fa3_fwd/parity_of_empty_v", at.parity ^ 1, at.parity));
        FillTile<KV>(v_tiles.Slice(at.stage * KV::kElements, KV::kElements), v_map, v_full + 8 * at.stage,
                     scratch, scratch_parity, row, kv_head, k_rows.batch, rows, packed);
      }
    }
  } else {
    kx::SetMaxRegistersInc<Tile::kConsumerRegisters>();
    const int group = thread / 128 - 1, lane = kx::LaneId(), row = group * 64 + thread / 32 % 4 * 16;
    const float scale_log2 = problem.scale * kLog2e;
    float o[kD / 2], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f};
    Clear(o);
    if (tile_begin < tile_end) {
      // Turn of a warpgroup at the tensor cores: barrier 1 + group, passed by the other one. The first turn
      // is group 0's.
      const auto pass_turn = [&] { kx::BarArrive(2 - group, 256); };
      const auto take_turn = [&] { kx::BarSync(1 + group, 256); };
      float s[kN / 2], shrink[2];
      uint32_t probabilities[kN / 16][4];
      const auto release = [&](kx::SharedAddress empty) {
        if (lane == 0) kx::MbarArrive(empty);
      };

      RingPosition<kStages> k_at, v_at;
      kx::MbarWait(q_full, 0);
      if (group == 1) pass_turn();
      KX_MUTANT("fa3_fwd/no_wait_full_k", kx::MbarWait(k_full, 0), (void)0);
      take_turn();
      StartScores<T, Tile>(s, q_tile, group, k_ring);
      pass_turn();
      kx::WgmmaWait<0>(s);
      release(k_empty);
      k_at.Next();
      MaskScores(s, problem, seq, first + row, tile_begin * kN);
      Fa3Softmax(s, maximum, sum, shrink, scale_log2);
      ToOperands<T>(probabilities, s);
      KX_NO_UNROLL
      for (int n = tile_begin + 1; n < tile_end; ++n) {
        kx::MbarWait(k_full + 8 * k_at.stage, k_at.parity);
        take_turn();
        StartScores<T, Tile>(s, q_tile, group, k_ring + k_at.stage * KV::kBytes);
        KX_MUTANT("fa3_fwd/no_wait_full_v", kx::MbarWait(v_full + 8 * v_at.stage, v_at.parity), (void)0);
        StartOutput<T, Tile>(o, probabilities, v_ring + v_at.stage * KV::kBytes);
        pass_turn();
        KX_MUTANT("fa3_fwd/no_wait_for_scores", kx::WgmmaWait<1>(s), (void)0);
        release(k_empty + 8 * k_at.stage);
        k_at.Next();
        MaskScores(s, problem, seq, first + row, n * kN);
        Fa3Softmax(s, maximum, sum, shrink, scale_log2);
        const bool early = KX_MUTANT("fa3_fwd/v_released_before_read", false, true);
        if (early) release(v_empty + 8 * v_at.stage);
        kx::WgmmaWait<0>(o);
        if (!early) release(v_empty + 8 * v_at.stage);
        v_at.Next();
        KX_UNROLL
        for (int i = 0; i < kD / 2; ++i) o[i] *= KX_MUTANT("fa3_fwd/no_rescale", shrink[i / 2 % 2], 1.f);
        ToOperands<T>(probabilities, s);
      }
      kx::MbarWait(v_full + 8 * v_at.stage, v_at.parity);
      StartOutput<T, Tile>(o, probabilities, v_ring + v_at.stage * KV::kBytes);
      kx::WgmmaWait<0>(o);
      // The last turn that group 1 passes is taken here, so that every arrival has its wait.
      if (group == 0) take_turn();
    }

    const auto out = p.out + (seq.q_begin * p.ldo + static_cast<int64_t>(head) * problem.head_dim);
    const auto lse = p.lse + (seq.lse_at + head * seq.lse_head);
    KX_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = QuadSum(sum[half]);
      const float inverse = total == 0.f ? 0.f : 1.f / total;
      const int i = first + row + lane / 4 + 8 * half;
      if (i >= seq.q_count) continue;
      KX_UNROLL
      for (int c = 0; c < kD / 8; ++c) {
        if (8 * c >= problem.head_dim) continue;
        StorePair(out, i * p.ldo + 8 * c + 2 * (lane % 4), o[4 * c + 2 * half] * inverse,
                  o[4 * c + 2 * half + 1] * inverse);
      }
      if (lane % 4 == 0) {
        lse.Store(i, total == 0.f ? -INFINITY : (maximum[half] * scale_log2 + kx::Lg2(total)) * kLn2);
      }
    }
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA3_FWD_H_
