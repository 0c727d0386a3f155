#include "kernels/cudnn/attention_graph.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace strata {

using namespace cudnn;  // NOLINT: the constants

namespace {

using Tensor = CudnnGraph::Tensor;
using Four = CudnnGraph::Four;

// The dimensions that both passes write.
struct Sizes {
  explicit Sizes(const CudnnAttentionShape& s)
      : type(s.dtype == DType::kF16 ? kHalf : kBFloat16),
        square{s.batch, s.heads, s.seq, s.seq},
        column{s.batch, s.heads, s.seq, 1},
        rows{s.batch, s.heads, s.seq, s.head_dim},
        kv_rows{s.batch, s.kv_heads, s.seq, s.head_dim} {}

  int type;
  Four square, column, rows, kv_rows;
};

// Rows of a matrix with leading dimension `ld`, heads side by side: [batch, heads, seq, dim].
Four Strides(const CudnnAttentionShape& s, int64_t ld) { return {s.seq * ld, s.head_dim, ld, 1}; }

Tensor RowMajor(CudnnGraph& g, int64_t id, int type, const Four& d) {
  return g.Bound(id, type, d, {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1});
}

// k or v transposed by its strides: [batch, kv_heads, dim, seq].
Tensor Transposed(CudnnGraph& g, int64_t id, int type, const CudnnAttentionShape& s, int64_t ld) {
  return g.Bound(id, type, {s.batch, s.kv_heads, s.head_dim, s.seq}, {s.seq * ld, s.head_dim, 1, ld});
}

// Row r sees columns 0 .. r, of them the last `window`.
Tensor Mask(CudnnGraph& g, const CudnnAttentionShape& s, Tensor scores) {
  const Sizes sizes(s);
  const Tensor hidden = g.Scalar(kCudnnHidden, kFloat);
  const auto index = [&](int64_t axis) {
    return g.Pointwise(kGenerateIndex, scores, nullptr, g.Virtual(kInt32, sizes.square),
                       {.precision = kInt32, .axis = axis});
  };
  const auto keep_where = [&](int compare, Tensor x, Tensor b) {
    const Tensor holds =
        g.Pointwise(compare, x, b, g.Virtual(kBoolean, sizes.square), {.precision = kBoolean});
    scores = g.Pointwise(kBinarySelect, scores, hidden, g.Virtual(kFloat, sizes.square), {.select = holds});
  };
  const Tensor row = index(2), column = index(3);
  keep_where(kCompareGe, row, column);
  if (s.window > 0) {
    const Tensor end = g.Pointwise(kAdd, column, g.Scalar(kCudnnWindow, kInt32),
                                   g.Virtual(kInt32, sizes.square), {.precision = kInt32});
    keep_where(kCompareGt, end, row);
  }
  return scores;
}

void Forward(CudnnGraph& g, const CudnnAttentionShape& s) {
  const Sizes sizes(s);
  const Tensor q = g.Bound(kCudnnQ, sizes.type, sizes.rows, Strides(s, s.ldq));
  const Tensor k = Transposed(g, kCudnnK, sizes.type, s, s.ldk);
  const Tensor v = g.Bound(kCudnnV, sizes.type, sizes.kv_rows, Strides(s, s.ldv));
  const Tensor o = g.Bound(kCudnnO, sizes.type, sizes.rows, Strides(s, s.ldo));
  const Tensor stats = RowMajor(g, kCudnnStats, kFloat, sizes.column);
  const Tensor scale = g.Scalar(kCudnnScale, kFloat);
  const auto square = [&] { return g.Virtual(kFloat, sizes.square); };
  const auto column = [&] { return g.Virtual(kFloat, sizes.column); };

  const Tensor scores = Mask(g, s, g.Pointwise(kMul, g.Matmul(q, k, square()), scale, square()));
  const Tensor max = g.Reduce(kReduceMax, scores, column());
  const Tensor power = g.Pointwise(kExp, g.Pointwise(kSub, scores, max, square()), nullptr, square());
  const Tensor sum = g.Reduce(kReduceAdd, power, column());
  g.Pointwise(kAdd, max, g.Pointwise(kLog, sum, nullptr, column()), stats);
  const Tensor weights = g.Pointwise(kDiv, power, sum, g.Virtual(sizes.type, sizes.square));
  g.Matmul(weights, v, o);
}

void Backward(CudnnGraph& g, const CudnnAttentionShape& s) {
  const Sizes sizes(s);
  const Tensor q = g.Bound(kCudnnQ, sizes.type, sizes.rows, Strides(s, s.ldq));
  const Tensor k = Transposed(g, kCudnnK, sizes.type, s, s.ldk);
  const Tensor v = Transposed(g, kCudnnV, sizes.type, s, s.ldv);
  const Tensor o = g.Bound(kCudnnO, sizes.type, sizes.rows, Strides(s, s.ldo));
  const Tensor d_o = g.Bound(kCudnnDO, sizes.type, sizes.rows, Strides(s, s.lddo));
  const Tensor dq = g.Bound(kCudnnDQ, sizes.type, sizes.rows, Strides(s, s.lddq));
  const Tensor dk = g.Bound(kCudnnDK, sizes.type, sizes.kv_rows, Strides(s, s.lddk));
  const Tensor dv = g.Bound(kCudnnDV, sizes.type, sizes.kv_rows, Strides(s, s.lddv));
  const Tensor stats = RowMajor(g, kCudnnStats, kFloat, sizes.column);
  const Tensor scale = g.Scalar(kCudnnScale, kFloat);
  const auto square = [&] { return g.Virtual(kFloat, sizes.square); };
  const auto transpose = [&](Tensor x) {
    return g.Reshape(x, sizes.type, sizes.square, {sizes.square[1] * s.seq * s.seq, s.seq * s.seq, 1, s.seq});
  };
  // a^T b, into a tensor of kv heads.
  const auto matmul_to_kv = [&](Tensor a, Tensor b, Tensor c) {
    if (s.heads == s.kv_heads) {
      g.Matmul(transpose(a), b, c);
    } else {
      g.Reduce(kReduceAdd, g.Matmul(transpose(a), b, g.Virtual(sizes.type, sizes.rows)), c);
    }
  };

  // The engines know the product with one as that with what dropout keeps.
  const Tensor row_sums =
      g.Pointwise(kMul,
                  g.Reduce(kReduceAdd, g.Pointwise(kMul, d_o, o, g.Virtual(kFloat, sizes.rows)),
                           g.Virtual(kFloat, sizes.column)),
                  g.Scalar(kCudnnOne, kFloat), RowMajor(g, kCudnnRowSums, kFloat, sizes.column));

  const Tensor scores = g.Pointwise(kMul, g.Matmul(q, k, square()), scale, square());
  const Tensor p =
      g.Pointwise(kExp, Mask(g, s, g.Pointwise(kSub, scores, stats, square())), nullptr, square());
  matmul_to_kv(p, d_o, dv);

  const Tensor dp = g.Matmul(d_o, v, square());
  const Tensor ds = g.Pointwise(
      kMul, g.Pointwise(kMul, g.Pointwise(kSub, dp, row_sums, square()), p, square()), scale, square());
  matmul_to_kv(ds, q, dk);

  const Tensor k_rows = g.Reshape(k, sizes.type, sizes.kv_rows, Strides(s, s.ldk));
  if (s.deterministic) {
    g.Matmul(ds, k_rows, dq);
  } else {
    g.Pointwise(kIdentity, g.Matmul(ds, k_rows, RowMajor(g, kCudnnDQSums, kFloat, sizes.rows)), nullptr, dq);
  }
}

}  // namespace

std::string ToText(const CudnnAttentionShape& s) {
  return absl::StrCat("attention ", s.backward ? "backward" : "forward", " of ", Name(s.dtype), ", ", s.batch,
                      " x ", s.seq, ", ", s.heads, "/", s.kv_heads, " heads of ", s.head_dim,
                      s.window > 0 ? absl::StrCat(", a window of ", s.window) : "",
                      s.backward ? s.deterministic ? ", deterministic" : ", sums in any order" : "");
}

float HiddenScore(size_t version) {
  using Limits = std::numeric_limits<float>;
  return version < 91000 ? Limits::lowest() : -Limits::infinity();
}

absl::Status BuildCudnnAttention(const CudnnAttentionShape& shape, CudnnGraph& graph) {
  shape.backward ? Backward(graph, shape) : Forward(graph, shape);
  return graph.Finalize();
}

}  // namespace strata
