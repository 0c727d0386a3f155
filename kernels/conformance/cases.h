// One call of an op as a Case, by shape; values and flags that the shape does not name are drawn.
#ifndef KERNELS_CONFORMANCE_CASES_H_
#define KERNELS_CONFORMANCE_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/conformance/harness.h"

namespace strata::conformance {

struct GemmShape {
  int64_t m, n, k;
};
// With `weight_gradient` the flags are those of dW = dY^T X.
Case GemmCase(Draw& draw, GemmShape s, bool weight_gradient = false);
// Sizes are multiples of 16; types of the operands are drawn.
Case Fp8GemmCase(Draw& draw, GemmShape s, bool weight_gradient = false);

Case NormForwardCase(Draw& draw, NormKind kind, int64_t rows, int64_t width);
// sum = x + residual and its norm: as one call, and as an addition and a norm. `sum`: as `out` of AddCase.
struct AddNormCases {
  Case fused, separate;
};
AddNormCases MakeAddNormCases(Draw& draw, NormKind kind, int64_t rows, int64_t width, int sum);
Case NormBackwardCase(Draw& draw, NormKind kind, int64_t rows, int64_t width);

// `gap` elements lie between rows.
Case RopeCase(Draw& draw, int64_t rows, int64_t seq, int64_t heads, int64_t dim, int64_t gap);

struct AttentionShape {
  int64_t batch, seq, heads, kv_heads, dim, gap;
  double scale;

  std::string Name() const {
    return absl::StrCat("attention batch=", batch, " seq=", seq, " heads=", heads, " kv_heads=", kv_heads,
                        " dim=", dim, " gap=", gap, " scale=", scale);
  }
  int64_t rows() const { return batch * seq; }
  int64_t width() const { return heads * dim; }
  int64_t kv_width() const { return kv_heads * dim; }
  AttentionArgs Args(void* q, void* k, void* v, void* out, void* lse, int64_t gap_used) const {
    AttentionArgs a{.batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads, .head_dim = dim};
    a.scale = scale;
    a.q = q;
    a.k = k;
    a.v = v;
    a.out = out;
    a.lse = lse;
    a.ldq = a.ldo = width() + gap_used;
    a.ldk = a.ldv = kv_width() + gap_used;
    return a;
  }
};
// Head dimension and gap are multiples of `unit`.
AttentionShape DrawAttention(Draw& draw, int64_t unit = 1);
Case AttentionForwardCase(Draw& draw, const AttentionShape& s);
Case AttentionBackwardCase(Draw& draw, const AttentionShape& s, DType compute);

Case GeluCase(Draw& draw, GeluKind kind, bool backward, bool in_place, int64_t n);
Case SwigluCase(Draw& draw, bool backward, bool in_place, int64_t rows, int64_t ffn);
// `out`: 0 over the first operand, 1 over the second, 2 elsewhere.
Case AddCase(Draw& draw, int64_t n, int out);
// Elements [first, first + n) of a tensor; with `cut` > 0 in two calls, of which the first has `cut`
// elements.
Case DropoutCase(Draw& draw, int64_t n, int64_t first, double drop, bool in_place, int64_t cut = 0);

Case BiasBackwardCase(Draw& draw, int64_t rows, int64_t n, int64_t gap);
// Forward and backward.
std::vector<Case> EmbeddingCases(Draw& draw, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                 int64_t seq_max, bool positions);

Case CrossEntropyCase(Draw& draw, int64_t rows, int64_t vocab, bool gradient, int masked_percent);

}  // namespace strata::conformance

#endif  // KERNELS_CONFORMANCE_CASES_H_
