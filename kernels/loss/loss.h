// Cross-entropy of rows of logits, the gradient in place: a block per row, one pass with the running maximum
// of online softmax (Milakov and Gimelshein 2018) and one that writes.
#ifndef KERNELS_LOSS_LOSS_H_
#define KERNELS_LOSS_LOSS_H_

#include "kernels/gpu/elements.h"
#include "kernels/gpu/math.h"
#include "kernels/gpu/reduce.h"

namespace strata::gpu {

inline constexpr int kLossThreads = 512;
inline constexpr int64_t kCrossEntropySharedBytes = kWarpsMax * (sizeof(float) + sizeof(double));

template <class T>
struct CrossEntropyParams {
  Gmem<T> logits;  // [rows, vocab]
  Gmem<const int32_t> targets;
  Gmem<double> row_loss;  // [rows]: zero for a masked row
  int64_t vocab;
  bool gradient;
  double gradient_scale;
};

KX_DEVICE float WarpMax(float x) {
  KX_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = ShflXor(x, mask);
    x = other > x ? other : x;
  }
  return x;
}

// e^(x - max).
template <class T>
KX_DEVICE float ExpOfDifference(float x, float max) {
  // All of a row so far may be -infinity.
  return Exp<T>(x - (max == -Infinity() ? 0.0f : max));
}

// Grid: rows. kVector: element 0 of the logits is aligned to 16 bytes.
template <class T, bool kVector>
KX_KERNEL KX_LAUNCH_BOUNDS(kLossThreads) void CrossEntropyKernel(const CrossEntropyParams<T> p) {
  constexpr int kPiece = kVector ? kWide<T> : 1;
  Smem smem;
  const auto maxima = smem.Alloc<float>(kWarpsMax);
  const auto sums = smem.Alloc<double>(kWarpsMax);
  const int64_t row = BlockIdx().x, start = row * p.vocab;
  const auto logits = p.logits + start;
  const bool first_thread = ThreadIdx().x == 0;
  const int32_t target = p.targets.Load(row);
  if (target < 0) {
    if (first_thread) p.row_loss.Store(row, 0.0);
    if (!p.gradient) return;
    ForRow<kPiece>(start, p.vocab, [&](int64_t i, auto width) {
      const float zero[decltype(width)::value] = {};
      StoreFloats<T>(logits, i, zero);
    });
    return;
  }
  const float target_logit = ToFloat(logits.Load(target));

  // Of this thread: the maximum so far, and the sum of e^(x - max).
  float own_max = -Infinity(), own_sum = 0;
  ForRow<kPiece>(start, p.vocab, [&](int64_t i, auto width) {
    constexpr int W = decltype(width)::value;
    float v[W], max = own_max;
    LoadFloats<W>(logits, i, v);
    KX_UNROLL
    for (int k = 0; k < W; ++k) max = v[k] > max ? v[k] : max;
    own_sum *= KX_MUTANT("fused/loss/rescale", ExpOfDifference<T>(own_max, max), 1.0f);
    KX_UNROLL
    for (int k = 0; k < W; ++k) own_sum += ExpOfDifference<T>(v[k], max);
    own_max = max;
  });
  // Over the block: the maximum, then the sums relative to it.
  float max = WarpMax(own_max);
  if (LaneId() == 0) maxima.Store(WarpId(), max);
  KX_MUTANT("fused/loss/sync", Sync(), (void)0);
  max = WarpMax(maxima.Load(LaneId() % (kLossThreads / 32)));
  const double sum = BlockSum(static_cast<double>(own_sum * ExpOfDifference<T>(own_max, max)), sums);
  if (first_thread) {
    p.row_loss.Store(row, static_cast<double>(max) + Log(sum) - static_cast<double>(target_logit));
  }
  if (!p.gradient) return;

  const float scale = static_cast<float>(DivRn(p.gradient_scale, sum));
  ForRow<kPiece>(start, p.vocab, [&](int64_t i, auto width) {
    constexpr int W = decltype(width)::value;
    float v[W];
    LoadFloats<W>(logits, i, v);
    const int64_t to_target = target - i;
    KX_UNROLL
    for (int k = 0; k < W; ++k) {
      const float e = ExpOfDifference<T>(v[k], max);
      v[k] = e * scale;
      // p - 1 from what is not rounded yet.
      if (to_target == k) {
        const double one = KX_MUTANT("fused/loss/onehot", 1.0, 0.0);
        v[k] = static_cast<float>((DivRn(static_cast<double>(e), sum) - one) * p.gradient_scale);
      }
    }
    StoreFloats<T>(logits, i, v);
  });
}

inline constexpr int kLossTreeThreads = 512;

// loss[0] += the pairwise tree over row_loss (which it overwrites), loss[1] += unmasked rows. One block.
KX_KERNEL KX_LAUNCH_BOUNDS(kLossTreeThreads) void LossTree(const Gmem<double> row_loss,
                                                           const Gmem<const int32_t> targets,
                                                           const int64_t rows, const Gmem<double> loss) {
  Smem smem;
  const auto counts = smem.Alloc<int32_t>(kWarpsMax);
  int32_t unmasked = 0;
  for (int64_t r = ThreadIdx().x; r < rows; r += kLossTreeThreads) unmasked += targets.Load(r) >= 0;
  unmasked = BlockSum(unmasked, counts);
  for (int64_t stride = 1; stride < rows; stride *= 2) {
    for (int64_t pair = ThreadIdx().x; pair * 2 * stride + stride < rows; pair += kLossTreeThreads) {
      const int64_t left = pair * 2 * stride;
      row_loss.Store(left, row_loss.Load(left) + row_loss.Load(left + stride));
    }
    KX_MUTANT("fused/loss/tree_sync", Sync(), (void)0);
  }
  if (ThreadIdx().x == 0) {
    loss.Store(0, loss.Load(0) + row_loss.Load(0));
    loss.Store(1, loss.Load(1) + static_cast<double>(unmasked));
  }
}

}  // namespace strata::gpu

#endif  // KERNELS_LOSS_LOSS_H_
