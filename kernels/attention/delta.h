// delta[i] = sum over d of dout[i, d] * out[i, d]: the term every row's softmax gradient shares
// (FlashAttention-2, Dao 2023, algorithm 2, line 4). Before both backward kernels, on any architecture.
#ifndef KERNELS_ATTENTION_DELTA_H_
#define KERNELS_ATTENTION_DELTA_H_

#include "kernels/attention/params.h"

namespace strata::attention {

inline constexpr int kDeltaThreads = 128;
inline constexpr int kDeltaLanes = 16;  // per row: 16 bytes each cover a head of 128
inline constexpr int kDeltaRows = kDeltaThreads / kDeltaLanes;

template <class T>
KX_KERNEL void KX_LAUNCH_BOUNDS(kDeltaThreads) AttentionDelta(const BackwardParams<T> p) {
  const Problem& problem = p.problem;
  const Sequence seq = SequenceOf(problem, static_cast<int>(kx::BlockIdx().z));
  const int head = static_cast<int>(kx::BlockIdx().y), thread = static_cast<int>(kx::ThreadIdx().x);
  const int lane = thread % kDeltaLanes;
  const int row = static_cast<int>(kx::BlockIdx().x) * kDeltaRows + thread / kDeltaLanes;
  float sum = 0.f;
  if (row < seq.q_count) {
    const int64_t at = seq.q_begin + row;
    const auto out = p.out + (at * p.ldo + static_cast<int64_t>(head) * problem.head_dim);
    const auto dout = p.dout + (at * p.lddo + static_cast<int64_t>(head) * problem.head_dim);
    for (int d = lane * 8; d < problem.head_dim; d += kDeltaLanes * 8) {
      const auto x = out.LoadVec(d), y = dout.LoadVec(d);
      KX_UNROLL
      for (int i = 0; i < 8; ++i) sum += kx::ToFloat(x[i]) * kx::ToFloat(y[i]);
    }
  }
  KX_UNROLL
  for (int mask = kDeltaLanes / 2; mask > 0; mask /= 2) sum += kx::ShflXor(sum, mask);
  if (row < seq.q_count && lane == 0) p.delta.Store(seq.lse_at + head * seq.lse_head + row, sum);
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_DELTA_H_
