// Attention by its definition, in double, for tests: no tiles, no online softmax. With rounding after every
// step to bf16 or f16 it is what a framework without a fused kernel computes, the yardstick of the
// two-reference tolerance.
#ifndef KERNELS_ATTENTION_REF_H_
#define KERNELS_ATTENTION_REF_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/attention/launch.h"

namespace strata::attention {

// Dense matrices: q, out, dout, dq [total_q, heads * head_dim]; k, v, dk, dv [total_k, kv_heads * head_dim];
// lse as the kernels have it.
struct ReferenceInputs {
  Shape shape;
  std::vector<int32_t> cu_q, cu_k;  // batch + 1 each, also when batched
  bool packed = false;
  std::vector<double> q, k, v, dout;
};
struct ReferenceResult {
  std::vector<double> out, lse, dq, dk, dv;
};

// `round` is applied to scores, probabilities, their gradients and the results, `round_weight`, where it is
// given, to the weights exp(score - largest score) before they are divided by their sum as it was. Without
// dout there is no backward.
inline ReferenceResult ReferenceAttention(const ReferenceInputs& in,
                                          const std::function<double(double)>& round,
                                          const std::function<double(double)>& round_weight = nullptr) {
  const Shape& s = in.shape;
  const int d = s.head_dim, group = s.heads / s.kv_heads;
  const int64_t q_width = static_cast<int64_t>(s.heads) * d, k_width = static_cast<int64_t>(s.kv_heads) * d;
  const bool backward = !in.dout.empty();
  ReferenceResult r;
  r.out.assign(in.q.size(), 0);
  r.lse.assign(static_cast<size_t>(s.total_q) * s.heads, -std::numeric_limits<double>::infinity());
  if (backward) {
    r.dq.assign(in.q.size(), 0);
    r.dk.assign(in.k.size(), 0);
    r.dv.assign(in.v.size(), 0);
  }
  std::vector<double> p, ds;
  for (int b = 0; b < s.batch; ++b) {
    const int nq = in.cu_q[b + 1] - in.cu_q[b], nk = in.cu_k[b + 1] - in.cu_k[b];
    for (int h = 0; h < s.heads; ++h) {
      for (int i = 0; i < nq; ++i) {
        const int64_t row = in.cu_q[b] + i;
        const double* q = &in.q[row * q_width + h * d];
        const int64_t begin = std::max<int64_t>(0, static_cast<int64_t>(i) + nk - nq - s.left);
        const int64_t end = std::min<int64_t>(nk, static_cast<int64_t>(i) + nk - nq + s.right + 1);
        if (begin >= end) continue;
        const auto at = [&](int64_t j) { return (in.cu_k[b] + j) * k_width + h / group * d; };
        p.assign(static_cast<size_t>(end - begin), 0);
        double top = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t j = begin; j < end; ++j) {
          double dot = 0;
          for (int c = 0; c < d; ++c) dot += q[c] * in.k[at(j) + c];
          p[j - begin] = round(dot * s.scale);
          top = std::max(top, p[j - begin]);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (double& x : p) x = round_weight != nullptr ? round_weight(x) : x;
        for (double& x : p) x = round(x / sum);
        r.lse[in.packed ? static_cast<int64_t>(h) * s.total_q + row
                        : (static_cast<int64_t>(b) * s.heads + h) * s.seq_q + i] = top + std::log(sum);
        for (int c = 0; c < d; ++c) {
          double o = 0;
          for (int64_t j = begin; j < end; ++j) o += p[j - begin] * in.v[at(j) + c];
          r.out[row * q_width + h * d + c] = round(o);
        }
        if (!backward) continue;
        const double* dout = &in.dout[row * q_width + h * d];
        ds.assign(p.size(), 0);
        for (int64_t j = begin; j < end; ++j) {
          double dot = 0;
          for (int c = 0; c < d; ++c) dot += dout[c] * in.v[at(j) + c];
          ds[j - begin] = round(dot);
        }
        // The sum of ds * p over the keys, from the result as it was stored.
        double delta = 0;
        for (int c = 0; c < d; ++c) delta += dout[c] * r.out[row * q_width + h * d + c];
        for (int64_t j = begin; j < end; ++j) {
          const double w = round(p[j - begin] * (ds[j - begin] - delta)) * s.scale;
          for (int c = 0; c < d; ++c) {
            r.dq[row * q_width + h * d + c] += w * in.k[at(j) + c];
            r.dk[at(j) + c] += w * q[c];
            r.dv[at(j) + c] += p[j - begin] * dout[c];
          }
        }
      }
    }
  }
  for (auto* m : {&r.dq, &r.dk, &r.dv}) {
    for (double& x : *m) x = round(x);
  }
  return r;
}

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_REF_H_
