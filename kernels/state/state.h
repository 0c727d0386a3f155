// Math on model states with the CPU's bits (kernels/optimizer): every operation is rounded once, as written.
#ifndef KERNELS_STATE_STATE_H_
#define KERNELS_STATE_STATE_H_

#include "kernels/gpu/elements.h"
#include "kernels/gpu/math.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/code8.h"

namespace strata::gpu {

// One element, in the order of kernels/optimizer/adamw.h.
struct AdamWElement {
  float master, m, v;
};
KX_DEVICE AdamWElement AdamWUpdate(const AdamWScalars& c, float grad, AdamWElement x) {
  const float g = MulRn(grad, c.grad_scale);
  x.m = Fma(c.beta1, x.m, MulRn(c.one_minus_beta1, g));
  x.v = Fma(c.beta2, x.v,
            KX_MUTANT("fused/adamw/square", MulRn(MulRn(c.one_minus_beta2, g), g),
                      MulRn(c.one_minus_beta2, MulRn(g, g))));
  const float d = Fma(SqrtRn(x.v), c.inv_sqrt_bias2, c.eps);
  x.master = Fma(-c.step_size, DivRn(x.m, d), MulRn(x.master, c.decay));
  return x;
}

// P: the parameters' type. Four elements at a time.
template <class P>
struct AdamWBody {
  static constexpr int kWidth = 4;
  Gmem<const float> grad;
  Gmem<float> master;
  Gmem<float> m;
  Gmem<float> v;
  Gmem<P> params;  // null: none
  AdamWScalars constants;

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    float g[W], x[W], first[W], second[W];
    LoadFloats<W>(grad, i, g);
    LoadFloats<W>(master, i, x);
    LoadFloats<W>(m, i, first);
    LoadFloats<W>(v, i, second);
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      const AdamWElement e = AdamWUpdate(constants, g[k], {x[k], first[k], second[k]});
      x[k] = e.master;
      first[k] = e.m;
      second[k] = e.v;
    }
    StoreFloats<float>(m, i, first);
    StoreFloats<float>(v, i, second);
    StoreFloats<float>(master, i, x);
    if (!params.IsNull()) StoreFloats<P>(params, i, x);
  }
};

// --- eight-bit states: kernels/optimizer/adamw8.h -----------------------------------------------------
template <class P>
struct AdamW8Params {
  Gmem<const float> grad;
  Gmem<float> master;
  Gmem<uint8_t> m;
  Gmem<float> m_scale;
  Gmem<uint8_t> v;
  Gmem<float> v_scale;
  Gmem<P> params;  // null: none
  int64_t n;
  AdamWScalars scalars;
};

inline constexpr int kAdamW8Each = 4;  // neighbouring elements of a lane
inline constexpr int kAdamW8Lanes = kCode8Block / kAdamW8Each;
inline constexpr int kAdamW8Warp = 32 * kAdamW8Each;  // elements

// Over the lanes of one block of states.
KX_DEVICE float LargestOfBlock(float x) {
  KX_UNROLL
  for (int mask = kAdamW8Lanes / 2; mask > 0; mask /= 2) x = AtLeast(x, ShflXor(x, mask));
  return x;
}

// What the block is multiplied by when it is decoded, and was when it was encoded.
struct Code8Factors {
  float scale, inverse;
};
KX_DEVICE Code8Factors FactorsOf(float largest) {
  if (!(largest > 0)) return {0, 0};
  const float bounded = AtMost(AtLeast(largest, kCode8Least), FloatOf(0x7f7fffffu));
  return {MulRn(bounded, kCode8ScaleOfLargest), DivRn(kCode8Largest, bounded)};
}

// Grid: x over kBlockThreads / 32 * kAdamW8Warp elements.
template <class P, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void AdamW8Kernel(const AdamW8Params<P> p) {
  constexpr int kEach = kAdamW8Each;
  const int64_t warp = static_cast<int64_t>(BlockIdx().x) * (kBlockThreads / 32) + WarpId();
  if (warp * kAdamW8Warp >= p.n) return;
  const int64_t first = warp * kAdamW8Warp + LaneId() * kEach;
  const int64_t block = first / kCode8Block;
  const bool any = block * kCode8Block < p.n;  // of the warp's last blocks there may be nothing
  const int count = p.n - first >= kEach ? kEach : p.n > first ? static_cast<int>(p.n - first) : 0;
  const bool whole = kVector && count == kEach;
  Vec<uint8_t, kEach> m_codes = {}, v_codes = {};
  float grad[kEach] = {}, master[kEach] = {}, m[kEach], v[kEach];
  if (whole) {
    m_codes = p.m.template LoadVec<kEach>(first);
    v_codes = p.v.template LoadVec<kEach>(first);
    LoadFloats<kEach>(p.grad, first, grad);
    LoadFloats<kEach>(p.master, first, master);
  } else {
    KX_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if (k >= count) continue;
      m_codes[k] = p.m.Load(first + k);
      v_codes[k] = p.v.Load(first + k);
      grad[k] = p.grad.Load(first + k);
      master[k] = p.master.Load(first + k);
    }
  }
  const float m_scale = any ? p.m_scale.Load(block) : 0, v_scale = any ? p.v_scale.Load(block) : 0;
  float m_max = 0, v_max = 0;
  KX_UNROLL
  for (int k = 0; k < kEach; ++k) {
    const AdamWElement e = AdamWUpdate(
        p.scalars, grad[k],
        {master[k], MulRn(m_scale, DecodeSigned(m_codes[k])), MulRn(v_scale, DecodeUnsigned(v_codes[k]))});
    master[k] = e.master;
    m[k] = e.m;
    v[k] = e.v;
    // Lanes behind the end hold zeros: they are never the largest.
    if (k >= count) continue;
    m_max = AtLeast(m_max, e.m < 0 ? -e.m : e.m);
    v_max = AtLeast(v_max, e.v);
  }
  const Code8Factors m_factors = FactorsOf(LargestOfBlock(m_max));
  const Code8Factors v_factors = FactorsOf(KX_MUTANT("fused/adamw8/largest", LargestOfBlock(v_max), v_max));
  KX_UNROLL
  for (int k = 0; k < kEach; ++k) {
    m_codes[k] = EncodeSigned(MulRn(m[k], m_factors.inverse));
    v_codes[k] = EncodeUnsigned(MulRn(v[k], v_factors.inverse));
  }
  if (whole) {
    p.m.StoreVec(first, m_codes);
    p.v.StoreVec(first, v_codes);
    StoreFloats<float>(p.master, first, master);
    if (!p.params.IsNull()) StoreFloats<P>(p.params, first, master);
  } else {
    KX_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if (k >= count) continue;
      p.m.Store(first + k, m_codes[k]);
      p.v.Store(first + k, v_codes[k]);
      p.master.Store(first + k, master[k]);
      if (!p.params.IsNull()) p.params.Store(first + k, FromFloat<P>(master[k]));
    }
  }
  // Every lane has read the old scales.
  KX_MUTANT("fused/adamw8/scale_sync", Syncwarp(), (void)0);
  if (any && LaneId() % kAdamW8Lanes == 0) {
    p.m_scale.Store(block, m_factors.scale);
    p.v_scale.Store(block, v_factors.scale);
  }
}

// to[i] = from[i], rounded to P.
template <class P>
struct CastBody {
  static constexpr int kWidth = 4;
  Gmem<const float> from;
  Gmem<P> to;

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    float x[W];
    LoadFloats<W>(from, i, x);
    StoreFloats<P>(to, i, x);
  }
};

// acc[i] += x[i].
struct AccumulateBody {
  static constexpr int kWidth = 4;
  Gmem<float> acc;
  Gmem<const float> x;

  template <int W>
  KX_DEVICE void Run(int64_t, int64_t i) const {
    float a[W], b[W];
    LoadFloats<W>(acc, i, a);
    LoadFloats<W>(x, i, b);
    KX_UNROLL
    for (int k = 0; k < W; ++k) a[k] = AddRn(a[k], b[k]);
    StoreFloats<float>(acc, i, a);
  }
};

// --- sum of squares: the tree of kernels/optimizer/reduce.h ---------------------------------------------
inline constexpr int kLeaf = 4096;          // elements of a leaf
inline constexpr int kLeavesPerBlock = 32;  // four per warp, eight threads each
inline constexpr int kTreeThreads = 1024;   // and at most so many blocks in a batch

// What lies in the scratch memory, in this order.
inline constexpr int kSubtrees = 63;
struct SumScratch {
  Gmem<double> block_sums;   // [kTreeThreads]
  Gmem<double> partial;      // [kSubtrees]: of 2^b batches, complete, where bit b of their number is set
  Gmem<uint64_t> first_bad;  // [1]: all ones for none
};

// The halving tree over `count` <= 1024 values, one per thread: value[t] += value[t + stride] for t a
// multiple of 2 stride, stride = 1, 2, 4, ... The result is in values[0] after a barrier.
KX_DEVICE void JoinTree(SmemArray<double> values, int count) {
  for (int stride = 1; stride < count; stride *= 2) {
    const int left = static_cast<int>(ThreadIdx().x) * 2 * stride;
    if (left + stride < count) values.Store(left, AddRn(values.Load(left), values.Load(left + stride)));
    KX_MUTANT("fused/sum/tree_sync", Sync(), (void)0);
  }
}

// block_sums[block] = the tree over this block's leaves. Element i of a leaf belongs to lane i % 32 of the
// leaf; a thread holds four neighbouring lanes and adds their elements in order. x + first is where the batch
// starts; n counts from there. Grid: x over leaves of the batch.
template <bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kBlockThreads) void SumSquaresLeaves(const Gmem<const float> x,
                                                                const int64_t first, const int64_t n,
                                                                const SumScratch scratch) {
  Smem smem;
  const auto leaves = smem.Alloc<double>(kLeavesPerBlock);
  const int lane = LaneId(), leaf = WarpId() * 4 + lane / 8, column = lane % 8 * 4;
  const int64_t begin = (static_cast<int64_t>(BlockIdx().x) * kLeavesPerBlock + leaf) * kLeaf;
  const int64_t left = n - begin < 0 ? 0 : n - begin < kLeaf ? n - begin : kLeaf;
  const auto values = x + (first + begin);
  double sums[4] = {};
  int64_t i = column;
  if constexpr (kVector) {
    for (; i + 4 <= left; i += 32) {
      float v[4];
      LoadFloats<4>(values, i, v);
      KX_UNROLL
      for (int k = 0; k < 4; ++k) {
        const double value = v[k];
        sums[k] = Fma(value, value, sums[k]);
      }
    }
  }
  for (; i < left; i += 32) {
    KX_UNROLL
    for (int k = 0; k < 4; ++k) {
      if (i + k >= left) continue;
      const double value = values.Load(i + k);
      sums[k] = Fma(value, value, sums[k]);
    }
  }
  // Lane j += lane j + 16, + 8, + 4 (other threads), + 2, + 1 (this thread).
  KX_UNROLL
  for (int k = 0; k < 4; ++k) {
    KX_UNROLL
    for (int delta = 4; delta > 0; delta /= 2) sums[k] = AddRn(sums[k], ShflDown(sums[k], delta));
  }
  const double sum = AddRn(AddRn(sums[0], sums[2]), AddRn(sums[1], sums[3]));
  const bool heads = lane % 8 == 0;
  if (heads) leaves.Store(leaf, sum);
  // Squares of finite floats cannot overflow a double: only a leaf that has a bad element is looked at again.
  if (heads && !(sum - sum == 0)) {
    for (int64_t j = 0; j < left; ++j) {
      if ((BitsOf(values.Load(j)) & 0x7f800000u) != 0x7f800000u) continue;
      AtomicMin(scratch.first_bad, 0, static_cast<uint64_t>(first + begin + j));
      break;
    }
  }
  Sync();
  const int64_t all = (n + kLeaf - 1) / kLeaf - static_cast<int64_t>(BlockIdx().x) * kLeavesPerBlock;
  JoinTree(leaves, static_cast<int>(all < kLeavesPerBlock ? all : kLeavesPerBlock));
  if (ThreadIdx().x == 0) scratch.block_sums.Store(BlockIdx().x, leaves.Load(0));
}

// Adds batch number `batch` (of `blocks` block sums) to the tree and, after the last, writes the results. One
// block. A thread of one launch comes after all of the launch before it.
KX_KERNEL KX_LAUNCH_BOUNDS(kTreeThreads) void SumSquaresTree(const SumScratch scratch, const int blocks,
                                                             const int64_t batch, const bool last,
                                                             const Gmem<double> sum,
                                                             const Gmem<int64_t> first_bad) {
  Smem smem;
  const auto values = smem.Alloc<double>(kTreeThreads);
  const int thread = static_cast<int>(ThreadIdx().x);
  if (thread < blocks) values.Store(thread, scratch.block_sums.Load(thread));
  Sync();
  JoinTree(values, blocks);
  if (thread != 0) return;
  // Like adding one to a binary number: a carry joins two complete subtrees of equal size. After the last
  // batch the subtrees are joined from the smallest up, complete or not.
  double total = values.Load(0);
  for (int bit = 0; bit < kSubtrees; ++bit) {
    if ((batch >> bit & 1) != 0) {
      total = AddRn(scratch.partial.Load(bit), total);
    } else if (!last) {
      scratch.partial.Store(bit, total);
      return;
    }
  }
  sum.Store(0, total);
  first_bad.Store(0, static_cast<int64_t>(scratch.first_bad.Load(0)));
}

// Before the first batch.
KX_KERNEL void SumSquaresBegin(const SumScratch scratch) {
  if (ThreadIdx().x == 0) scratch.first_bad.Store(0, ~uint64_t{0});
}

}  // namespace strata::gpu

#endif  // KERNELS_STATE_STATE_H_
