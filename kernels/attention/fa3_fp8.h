// Attention forward for sm_90a with products of e4m3 (FlashAttention-3, section 3.3): fa3_fwd.h's block of a
// producer warp and two consumer warpgroups, its rings and overlaps, on what fp8_quantise.h leaves.
//
//   scores   s = (codes of Q) . (codes of K) * scale of Q's block * scale of K's block * softmax scale
//   weights  exp2(s - maximum + kWeightBits), rounded to e4m3: from 2^kWeightBits down they use its range;
//            the factor is in their sum as well and cancels
//   output   o / (scale of V's block): the running sum changes its unit with each tile, in the multiplication
//            that the online softmax makes anyway. A tile's product is added to it as float: sums inside the
//            tensor cores are chopped (kx_hopper.h), which thousands of keys would make a visible loss of.
// Weights are summed before they are rounded, as float.
#ifndef KERNELS_ATTENTION_FA3_FP8_H_
#define KERNELS_ATTENTION_FA3_FP8_H_

#include "kernels/attention/fa3_fwd.h"
#include "kernels/attention/fp8_layout.h"

namespace strata::attention {

// Largest weight: 256 of 448.
inline constexpr float kWeightBits = 8.f;

template <class T>
struct Fp8Params {
  ForwardParams<T> forward;  // q, k and v are those of the maps
  kx::Gmem<const float> q_scales, kv_scales;
  int64_t q_rows = 0, k_rows = 0;  // padded, of a head (fp8_layout.h)
};

template <int kHeadDim>
struct Fa3Fp8Tile {
  static constexpr int kD = kHeadDim;
  static constexpr int kConsumers = 2, kThreads = 128 * (1 + kConsumers), kStages = 2;
  static constexpr int kRows = 64 * kConsumers, kColumns = kFp8Block;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kFp8QueryBlock == 64, "a warpgroup has one scale of Q");
  // Columns of the output made at once; whether the next scores and this output are in flight together, the
  // softmax under the latter. What does not fit the registers is hidden by the other warpgroup's products
  // only.
  static constexpr int kPart = kD <= 128 ? kD : 128;
  static constexpr bool kTogether = kD <= 128;
  using Q = Slabs<kRows, kD, 1>;
  using KV = Slabs<kColumns, kD, 1>;  // K; V is transposed
  using V = Slabs<kD, kColumns, 1>;
  static constexpr int kSharedBytes =
      Q::kBytes + kStages * (KV::kBytes + V::kBytes) + 8 * ForwardBarriers<kStages>::kCount;
};

// As Fa3SoftmaxOfRow, the maximum in powers of two: the scores of each tile have a factor of their own.
template <int kHalf, int kCount>
KX_DEVICE void Fp8SoftmaxOfRow(float (&s)[kCount], float& maximum, float& sum, float& shrink, float factor) {
  float top = -INFINITY;
  KX_UNROLL
  for (int x = 0; x < kCount; ++x) {
    if (x / 2 % 2 == kHalf) top = fmaxf(top, s[x]);
  }
  top = fmaxf(maximum, QuadMax(top) * factor);
  const float base = top == -INFINITY ? 0.f : top;
  shrink = kx::Ex2(maximum - base);
  maximum = top;
  const float offset = base - kWeightBits;
  float added = 0.f;
  KX_UNROLL
  for (int x = 0; x < kCount; ++x) {
    if (x / 2 % 2 == kHalf) added += s[x] = kx::Ex2(s[x] * factor - offset);
  }
  sum = sum * shrink + added;
}
template <int kCount>
KX_DEVICE void Fp8Softmax(float (&s)[kCount], float (&maximum)[2], float (&sum)[2], float (&shrink)[2],
                          float factor) {
  Fp8SoftmaxOfRow<0>(s, maximum[0], sum[0], shrink[0], factor);
  Fp8SoftmaxOfRow<1>(s, maximum[1], sum[1], shrink[1], factor);
}

// Weights to A operands. Register r of step kk holds four keys of row r % 2 (of 8 and 8), which lie in two
// neighbouring groups of eight columns: V's keys stand in that order (Fp8KeyAt).
template <int kSteps, int kCount>
KX_DEVICE void ToFp8Operands(uint32_t (&a)[kSteps][4], const float (&s)[kCount]) {
  static_assert(16 * kSteps == kCount);
  KX_UNROLL
  for (int kk = 0; kk < kSteps; ++kk) {
    KX_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int at = 16 * kk + 8 * (r / 2) + 2 * (r % 2);
      a[kk][r] = kx::PackFour<kx::e4m3>(s[at], s[at + 1], s[KX_MUTANT("fa3_fp8/same_keys_twice", at + 4, at)],
                                        s[at + 5]);
    }
  }
}

// t = P V of one tile, columns of the kPart-th t, in flight when it returns.
template <class Tile, int kPart, int kCount, int kSteps>
KX_DEVICE void StartFp8Output(float (&t)[kCount], const uint32_t (&weights)[kSteps][4],
                              kx::SharedAddress v_tile) {
  kx::WgmmaFence();
  KX_UNROLL
  for (int kk = 0; kk < kSteps; ++kk) {
    kx::WgmmaRs<kx::e4m3>(t, weights[kk], Tile::V::AlongColumns(v_tile, kPart * 2 * kCount, kk), kk > 0);
  }
  kx::WgmmaCommit();
}

// The same columns of o: what there was, times keep, and t.
template <int kPart, int kAll, int kCount>
KX_DEVICE void AddOutput(float (&o)[kAll], const float (&t)[kCount], const float (&keep)[2]) {
  KX_UNROLL
  for (int x = 0; x < kCount; ++x) {
    float& sum = o[kPart * kCount + x];
    sum = kx::Fma(sum, KX_MUTANT("fa3_fp8/no_rescale", keep[x / 2 % 2], 1.f), t[x]);
  }
}

// One of two arrays.
template <bool kSecond, class First, class Second>
KX_DEVICE auto& Part(First& first, Second& second) {
  if constexpr (kSecond) {
    return second;
  } else {
    return first;
  }
}

// Both of a head of 256, one after the other, and their sums.
template <class Tile, int kAll, int kCount, int kSteps>
KX_DEVICE void AddOutputInParts(float (&o)[kAll], float (&t)[kCount], const uint32_t (&weights)[kSteps][4],
                                kx::SharedAddress v_tile, const float (&keep)[2]) {
  StartFp8Output<Tile, 0>(t, weights, v_tile);
  kx::WgmmaWait<0>(t);
  AddOutput<0>(o, t, keep);
  if constexpr (kAll > kCount) {
    StartFp8Output<Tile, 1>(t, weights, v_tile);
    kx::WgmmaWait<0>(t);
    AddOutput<1>(o, t, keep);
  }
}

template <class T, int kHeadDim>
KX_KERNEL void KX_LAUNCH_BOUNDS(Fa3Fp8Tile<kHeadDim>::kThreads, 1)
    Fa3Fp8Forward(KX_GRID_CONSTANT kx::TensorMap q_map, KX_GRID_CONSTANT kx::TensorMap k_map,
                  KX_GRID_CONSTANT kx::TensorMap v_map, const Fp8Params<T> p) {
  using Tile = Fa3Fp8Tile<kHeadDim>;
  using Q = typename Tile::Q;
  using K = typename Tile::KV;
  using V = typename Tile::V;
  constexpr int kD = Tile::kD, kN = Tile::kColumns, kStages = Tile::kStages;
  const Problem& problem = p.forward.problem;
  const QueryBlock<Tile> block(problem);
  if (block.IsEmpty()) return;
  const Sequence& seq = block.seq;
  const int head = block.head, kv_head = block.kv_head, first = block.first;

  kx::Smem smem;
  const kx::SharedAddress q_tile = smem.template Alloc<kx::e4m3, 1024>(Q::kElements).Address();
  const kx::SharedAddress k_ring = smem.template Alloc<kx::e4m3, 1024>(kStages * K::kElements).Address();
  const kx::SharedAddress v_ring = smem.template Alloc<kx::e4m3, 1024>(kStages * V::kElements).Address();
  const ForwardBarriers<kStages> bars(
      smem.template Alloc<uint64_t, 8>(ForwardBarriers<kStages>::kCount).Address());
  const int thread = static_cast<int>(kx::ThreadIdx().x);
  if (thread == 0) bars.Init(4 * Tile::kConsumers);
  KX_MUTANT("fa3_fp8/no_sync_after_init", kx::Sync(), (void)0);
  const Tiles keys = block.KeyTiles(problem);
  const int tile_begin = keys.begin, tile_end = keys.end;
  const bool packed = !problem.cu_q.IsNull();
  const int64_t q_row = Fp8RowOf(packed, block.batch, problem.seq_q, seq.q_begin) + first;
  const int64_t k_row = Fp8RowOf(packed, block.batch, problem.seq_k, seq.k_begin);

  if (thread < 128) {
    kx::SetMaxRegistersDec<Tile::kProducerRegisters>();
    if (thread == 0 && tile_begin < tile_end) {
      kx::MbarArriveExpectTx(bars.q_full, Q::kBytes);
      Q::Load(q_tile, q_map, bars.q_full, static_cast<int>(q_row), head, 0);
      RingPosition<kStages> at;
      KX_NO_UNROLL
      for (int n = tile_begin; n < tile_end; ++n, at.Next()) {
        const int key = static_cast<int>(k_row) + n * kN;
        KX_MUTANT("fa3_fp8/no_wait_empty_k", kx::MbarWait(bars.k_empty + 8 * at.stage, at.parity ^ 1),
                  (void)0);
        kx::MbarArriveExpectTx(bars.k_full + 8 * at.stage, K::kBytes);
        K::Load(k_ring + at.stage * K::kBytes, k_map, bars.k_full + 8 * at.stage, key, kv_head, 0);
        KX_MUTANT("fa3_fp8/no_wait_empty_v", kx::MbarWait(bars.v_empty + 8 * at.stage, at.parity ^ 1),
                  (void)0);
        kx::MbarArriveExpectTx(bars.v_full + 8 * at.stage,
                               KX_MUTANT("fa3_fp8/half_the_bytes", V::kBytes, V::kBytes / 2));
        V::Load(v_ring + at.stage * V::kBytes, v_map, bars.v_full + 8 * at.stage, 0, kv_head, 0, key);
      }
    }
  } else {
    kx::SetMaxRegistersInc<Tile::kConsumerRegisters>();
    const int group = thread / 128 - 1, lane = kx::LaneId(), row = group * 64 + thread / 32 % 4 * 16;
    float o[kD / 2], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0.f, 0.f}, v_unit = 1.f;
    Clear(o);
    if (tile_begin < tile_end) {
      const Turns turns{group};
      float s[kN / 2], t[Tile::kPart / 2], shrink[2];
      // The scores' registers are free once they are weights.
      auto& part = Part<Tile::kTogether>(s, t);
      uint32_t weights[kN / 32][4];
      const auto release = [&](kx::SharedAddress empty) {
        if (lane == 0) kx::MbarArrive(empty);
      };
      // Of the i-th tile at 2 i: K's, V's.
      const auto scales = p.kv_scales + ((kv_head * p.k_rows + k_row) / kFp8Block + tile_begin) * 2;
      const int64_t q_block = (head * p.q_rows + q_row) / kFp8QueryBlock;
      const float q_factor = p.q_scales.Load(q_block + KX_MUTANT("fa3_fp8/scale_of_first_group", group, 0)) *
                             problem.scale * kLog2e;
      // Not 0, by which a hidden score, minus infinity, would become a NaN.
      const auto factor_of = [&](float k_scale) { return fmaxf(q_factor * k_scale, 0x1p-126f); };

      // Of the i-th tile.
      const auto stage = [](int i) { return i % kStages; };
      const auto parity = [](int i) { return i / kStages % 2; };
      const int tiles = tile_end - tile_begin, key = tile_begin * kN;
      kx::Vec<float, 8> scale = scales.template LoadVec<8>(0);
      v_unit = scale[1];
      kx::MbarWait(bars.q_full, 0);
      if (group == 1) turns.Pass();
      KX_MUTANT("fa3_fp8/no_wait_full_k", kx::MbarWait(bars.k_full, 0), (void)0);
      turns.Take();
      StartScores<kx::e4m3, Tile>(s, q_tile, group, k_ring);
      turns.Pass();
      kx::WgmmaWait<0>(s);
      release(bars.k_empty);
      MaskScores(s, problem, seq, first + row, key);
      Fp8Softmax(s, maximum, sum, shrink, factor_of(scale[0]));
      ToFp8Operands(weights, s);
      KX_NO_UNROLL
      for (int i = 1; i < tiles; ++i) {
        const float keep[2] = {shrink[0], shrink[1]};
        scale = scales.template LoadVec<8>(2 * KX_MUTANT("fa3_fp8/scales_of_last_tile", i, i - 1));
        kx::MbarWait(bars.k_full + 8 * stage(i), parity(i));
        turns.Take();
        KX_MUTANT("fa3_fp8/no_wait_full_v", kx::MbarWait(bars.v_full + 8 * stage(i - 1), parity(i - 1)),
                  (void)0);
        const kx::SharedAddress v_tile = v_ring + stage(i - 1) * V::kBytes;
        if constexpr (!Tile::kTogether) AddOutputInParts<Tile>(o, part, weights, v_tile, keep);
        StartScores<kx::e4m3, Tile>(s, q_tile, group, k_ring + stage(i) * K::kBytes);
        if constexpr (Tile::kTogether) StartFp8Output<Tile, 0>(t, weights, v_tile);
        turns.Pass();
        KX_MUTANT("fa3_fp8/no_wait_for_scores", kx::WgmmaWait < Tile::kTogether ? 1 : 0 > (s), (void)0);
        release(bars.k_empty + 8 * stage(i));
        MaskScores(s, problem, seq, first + row, key + i * kN);
        Fp8Softmax(s, maximum, sum, shrink, factor_of(scale[0]));
        if constexpr (Tile::kTogether) {
          kx::WgmmaWait<0>(t);
          AddOutput<0>(o, t, keep);
        }
        release(bars.v_empty + 8 * stage(i - 1));
        const float unit = KX_MUTANT("fa3_fp8/unit_of_v_kept", v_unit * kx::Rcp(scale[1]), 1.f);
        v_unit = scale[1];
        shrink[0] *= unit;
        shrink[1] *= unit;
        ToFp8Operands(weights, s);
      }
      kx::MbarWait(bars.v_full + 8 * stage(tiles - 1), parity(tiles - 1));
      AddOutputInParts<Tile>(o, part, weights, v_ring + stage(tiles - 1) * V::kBytes, shrink);
      if (group == 0) turns.Take();
    }

    float inverse[2], lse[2];
    KX_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float total = QuadSum(sum[half]);
      inverse[half] = total == 0.f ? 0.f : v_unit / total;
      lse[half] =
          total == 0.f
              ? -INFINITY
              : (maximum[half] - KX_MUTANT("fa3_fp8/bits_stay_in_lse", kWeightBits, 0.f) + kx::Lg2(total)) *
                    kLn2;
    }
    StoreForward(p.forward, seq, head, first + row, o, inverse, lse);
  }
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_FA3_FP8_H_
