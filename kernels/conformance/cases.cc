#include "kernels/conformance/cases.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/check.h"
#include "common/checked.h"
#include "common/float16.h"
#include "common/status.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/workspace.h"

namespace strata::conformance {
namespace {

template <typename... Parts>
std::string Shape(const Parts&... parts) {
  return absl::StrCat(parts...);
}

// Statistics of rows, and the largest rstd: what rounding errors of x - mean are multiplied with.
struct RowStatistics {
  std::vector<double> mean, rstd;
  double rstd_max = 0;
};
RowStatistics StatisticsOf(const std::vector<double>& x, int64_t rows, int64_t width, bool layer_norm) {
  RowStatistics s{std::vector<double>(rows, 0), std::vector<double>(rows)};
  for (int64_t r = 0; r < rows; ++r) {
    double square = 0;
    for (int64_t i = 0; layer_norm && i < width; ++i) s.mean[r] += x[r * width + i] / width;
    for (int64_t i = 0; i < width; ++i) square += std::pow(x[r * width + i] - s.mean[r], 2);
    s.rstd[r] = 1 / std::sqrt(square / width + 1e-5);
    s.rstd_max = std::max(s.rstd_max, s.rstd[r]);
  }
  return s;
}

}  // namespace

// ---- GEMM

namespace {

Case GemmCaseOf(Draw& draw, GemmShape s, bool weight_gradient, bool fp8) {
  const bool ta = weight_gradient || draw.Bool(), tb = !weight_gradient && draw.Bool();
  const bool c_is_acc = weight_gradient || draw.Bool(), accumulate = draw.Bool();
  const bool bias = !weight_gradient && draw.Int(0, 2) == 0 && !c_is_acc;
  const auto gap = [&] { return fp8 ? draw.Pick({0, 0, 16, 48}) : draw.Pick({0, 0, 1, 3, 32}); };
  const Fp8 a_type = fp8 && draw.Bool() ? Fp8::kE5M2 : Fp8::kE4M3;
  const Fp8 b_type = fp8 && a_type == Fp8::kE4M3 && draw.Bool() ? Fp8::kE5M2 : Fp8::kE4M3;
  const int64_t a_rows = ta ? s.k : s.m, a_cols = ta ? s.m : s.k, b_rows = tb ? s.n : s.k,
                b_cols = tb ? s.k : s.n;
  const int64_t lda = a_cols + gap(), ldb = b_cols + gap(), ldc = s.n + gap();
  Case c;
  c.is_gemm = true;
  c.shape = Shape(fp8 ? "fp8 " : "", "gemm m=", s.m, " n=", s.n, " k=", s.k, " lda=", lda, " ldb=", ldb,
                  " ldc=", ldc, " ta=", ta, " tb=", tb, " c_is_acc=", c_is_acc, " accumulate=", accumulate,
                  " bias=", bias);
  if (fp8)
    c.shape +=
        Shape(" a=", a_type == Fp8::kE5M2 ? "e5m2" : "e4m3", " b=", b_type == Fp8::kE5M2 ? "e5m2" : "e4m3");
  c.tensors = {{"a", Kind::kCompute, a_rows, a_cols, lda, draw.Normals(s.m * s.k)},
               {"b", Kind::kCompute, b_rows, b_cols, ldb, draw.Normals(s.k * s.n)},
               {"c", c_is_acc ? Kind::kAcc : Kind::kCompute, s.m, s.n, ldc, {}, true},
               {"bias", Kind::kCompute, 1, s.n, 0, draw.Normals(s.n)}};
  c.tensors[2].cancelling = std::sqrt(static_cast<double>(s.k));
  if (accumulate) c.tensors[2].values = draw.Normals(s.m * s.n);
  c.workspace_bytes = [=](DType compute) {
    return fp8 ? Fp8GemmWorkspaceBytes(s.m, s.n, s.k) : GemmWorkspaceBytes(compute, s.m, s.n, s.k);
  };
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
    GemmArgs args{
        .m = s.m, .n = s.n, .k = s.k, .a = p[0], .lda = lda, .transpose_a = ta, .b = p[1], .ldb = ldb};
    args.transpose_b = tb;
    args.c = p[2];
    args.ldc = ldc;
    args.c_is_acc = c_is_acc;
    args.accumulate = accumulate;
    args.bias = bias ? p[3] : nullptr;
    args.workspace = workspace;
    args.fp8 = fp8;
    args.a_type = a_type;
    args.b_type = b_type;
    return ops.Gemm(nullptr, args);
  };
  return c;
}

}  // namespace

Case GemmCase(Draw& draw, GemmShape s, bool weight_gradient) {
  return GemmCaseOf(draw, s, weight_gradient, /*fp8=*/false);
}

Case Fp8GemmCase(Draw& draw, GemmShape s, bool weight_gradient) {
  return GemmCaseOf(draw, s, weight_gradient, /*fp8=*/true);
}

// ---- Norms

Case NormForwardCase(Draw& draw, NormKind kind, int64_t rows, int64_t width) {
  Case c;
  c.shape = Shape(kind == NormKind::kLayerNorm ? "layer norm" : "rms norm", " rows=", rows, " width=", width);
  std::vector<double> x = draw.Normals(rows * width);
  for (double& v : x) v = 2 * v + 1;
  const bool layer_norm = kind == NormKind::kLayerNorm;
  c.tensors = {{"x", Kind::kCompute, rows, width, 0, x},
               {"weight", Kind::kCompute, 1, width, 0, draw.Normals(width)},
               {"bias", Kind::kCompute, 1, width, 0, draw.Normals(width)},
               {"y", Kind::kCompute, rows, width, 0, {}, true},
               {"rstd", Kind::kAcc, 1, rows, 0, {}, true}};
  if (layer_norm) c.tensors.push_back({"mean", Kind::kAcc, 1, rows, 0, {}, true});
  const double rstd_max = StatisticsOf(x, rows, width, layer_norm).rstd_max;
  c.tensors[3].cancelling = 3 * rstd_max;
  c.tensors[4].cancelling = 3 * rstd_max * rstd_max;
  if (layer_norm) c.tensors[5].cancelling = 3;
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    NormArgs args{.kind = kind, .rows = rows, .width = width, .x = p[0], .weight = p[1]};
    args.bias = layer_norm ? p[2] : nullptr;
    args.y = p[3];
    args.rstd = p[4];
    args.mean = layer_norm ? p[5] : nullptr;
    return ops.NormForward(nullptr, args);
  };
  return c;
}

AddNormCases MakeAddNormCases(Draw& draw, NormKind kind, int64_t rows, int64_t width, int sum) {
  const bool layer_norm = kind == NormKind::kLayerNorm;
  const std::vector<double> x = draw.Normals(rows * width), residual = draw.Normals(rows * width, 2);
  Case c;
  c.shape =
      Shape("add and ", layer_norm ? "layer" : "rms", " norm rows=", rows, " width=", width, " sum=", sum);
  c.tensors = {{"x", Kind::kCompute, rows, width, 0, x, sum == 0},
               {"residual", Kind::kCompute, rows, width, 0, residual, sum == 1},
               {"sum", Kind::kCompute, rows, width, 0, {}, sum == 2},
               {"weight", Kind::kCompute, 1, width, 0, draw.Normals(width)},
               {"bias", Kind::kCompute, 1, width, 0, draw.Normals(width)},
               {"y", Kind::kCompute, rows, width, 0, {}, true},
               {"rstd", Kind::kAcc, 1, rows, 0, {}, true}};
  if (layer_norm) c.tensors.push_back({"mean", Kind::kAcc, 1, rows, 0, {}, true});
  std::vector<double> total(rows * width);
  for (int64_t i = 0; i < rows * width; ++i) total[i] = x[i] + residual[i];
  const double rstd_max = StatisticsOf(total, rows, width, layer_norm).rstd_max;
  c.tensors[sum].cancelling = 3;
  c.tensors[5].cancelling = 3 * rstd_max;
  c.tensors[6].cancelling = 3 * rstd_max * rstd_max;
  if (layer_norm) c.tensors[7].cancelling = 3;
  const auto norm = [=](const std::vector<void*>& p) {
    NormArgs args{.kind = kind, .rows = rows, .width = width, .x = p[0], .weight = p[3]};
    args.bias = layer_norm ? p[4] : nullptr;
    args.y = p[5];
    args.rstd = p[6];
    args.mean = layer_norm ? p[7] : nullptr;
    return args;
  };
  AddNormCases cases = {c, c};
  cases.fused.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    NormArgs args = norm(p);
    args.residual = p[1];
    args.sum = p[sum];
    return ops.NormForward(nullptr, args);
  };
  cases.separate.shape += " apart";
  cases.separate.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    STRATA_RETURN_IF_ERROR(ops.Add(nullptr, rows * width, p[0], p[1], p[sum]));
    NormArgs args = norm(p);
    args.x = p[sum];
    return ops.NormForward(nullptr, args);
  };
  return cases;
}

Case NormBackwardCase(Draw& draw, NormKind kind, int64_t rows, int64_t width) {
  Case c;
  c.shape = Shape(kind == NormKind::kLayerNorm ? "layer norm" : "rms norm", " backward rows=", rows,
                  " width=", width);
  const std::vector<double> x = draw.Normals(rows * width);
  const bool layer_norm = kind == NormKind::kLayerNorm;
  const RowStatistics statistics = StatisticsOf(x, rows, width, layer_norm);
  c.tensors = {{"x", Kind::kCompute, rows, width, 0, x},
               {"weight", Kind::kCompute, 1, width, 0, draw.Normals(width)},
               {"dy", Kind::kCompute, rows, width, 0, draw.Normals(rows * width)},
               {"mean", Kind::kAcc, 1, rows, 0, statistics.mean},
               {"rstd", Kind::kAcc, 1, rows, 0, statistics.rstd},
               {"dx", Kind::kCompute, rows, width, 0, draw.Normals(rows * width), true},
               {"dweight", Kind::kAcc, 1, width, 0, {}, true}};
  if (layer_norm) c.tensors.push_back({"dbias", Kind::kAcc, 1, width, 0, {}, true});
  const double root = std::sqrt(static_cast<double>(rows));
  c.tensors[5].cancelling = 3 * statistics.rstd_max * statistics.rstd_max;
  c.tensors[6].cancelling = root * (1 + statistics.rstd_max);
  if (layer_norm) c.tensors[7].cancelling = root;
  c.workspace_bytes = [=](DType compute) { return NormBackwardWorkspaceBytes(compute, rows, width); };
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
    NormBackwardArgs args{.kind = kind, .rows = rows, .width = width, .x = p[0], .weight = p[1], .dy = p[2]};
    args.mean = layer_norm ? p[3] : nullptr;
    args.rstd = p[4];
    args.dx = p[5];
    args.dweight = p[6];
    args.dbias = layer_norm ? p[7] : nullptr;
    args.workspace = workspace;
    return ops.NormBackward(nullptr, args);
  };
  return c;
}

// ---- Rope

Case RopeCase(Draw& draw, int64_t rows, int64_t seq, int64_t heads, int64_t dim, int64_t gap) {
  const int64_t ld = heads * dim + gap;
  const bool inverse = draw.Bool();
  const double theta = draw.Bool() ? 10000 : 500000;
  Case c;
  c.shape = Shape("rope rows=", rows, " seq=", seq, " heads=", heads, " dim=", dim, " ld=", ld,
                  " inverse=", inverse);
  c.tensors = {{"x", Kind::kCompute, rows, heads * dim, ld, draw.Normals(rows * heads * dim), true}};
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    RopeArgs args{
        .rows = rows, .seq = seq, .heads = heads, .head_dim = dim, .ld = ld, .theta = theta, .x = p[0]};
    args.inverse = inverse;
    return ops.Rope(nullptr, args);
  };
  return c;
}

// ---- Attention

AttentionShape DrawAttention(Draw& draw, int64_t unit) {
  AttentionShape s;
  s.kv_heads = draw.Int(1, 3);
  s.heads = s.kv_heads * draw.Int(1, 3);
  s.batch = draw.Int(1, 2);
  s.seq = draw.Pick({1, 2, 63, 64, 65, draw.Int(3, 62), draw.Int(66, 200)});
  s.dim = RoundUp<int64_t>(draw.Pick({1, 8, 16, 33, 64, 64, 80, 128}), unit);
  s.gap = RoundUp<int64_t>(draw.Pick({0, 1, 32}), unit);
  s.scale = draw.Bool() ? 1 / std::sqrt(static_cast<double>(s.dim)) : 0.5;
  return s;
}

Case AttentionForwardCase(Draw& draw, const AttentionShape& s) {
  Case c;
  c.shape = s.Name();
  c.tensors = {
      {"q", Kind::kCompute, s.rows(), s.width(), s.width() + s.gap, draw.Normals(s.rows() * s.width())},
      {"k", Kind::kCompute, s.rows(), s.kv_width(), s.kv_width() + s.gap,
       draw.Normals(s.rows() * s.kv_width())},
      {"v", Kind::kCompute, s.rows(), s.kv_width(), s.kv_width() + s.gap,
       draw.Normals(s.rows() * s.kv_width())},
      {"out", Kind::kCompute, s.rows(), s.width(), s.width() + s.gap, {}, true},
      {"lse", Kind::kAcc, 1, s.rows() * s.heads, 0, {}, true}};
  // A score is a sum of `dim` products in any order; its error is that of the logarithm of its weight.
  const double score = std::max(1.0, std::sqrt(static_cast<double>(s.dim)) * s.scale);
  c.tensors[3].cancelling = score;
  c.tensors[4].cancelling = 4 * score;
  c.workspace_bytes = [=](DType compute) {
    return AttentionForwardWorkspaceBytes(compute, s.batch, s.seq, s.heads, s.kv_heads, s.dim);
  };
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
    AttentionArgs args = s.Args(p[0], p[1], p[2], p[3], p[4], s.gap);
    args.workspace = workspace;
    return ops.AttentionForward(nullptr, args);
  };
  return c;
}

Case AttentionBackwardCase(Draw& draw, const AttentionShape& s, DType compute) {
  const auto rounded = [&](std::vector<double> v) {
    for (double& x : v) {
      const float rounded = static_cast<float>(x);
      x = compute == DType::kBF16  ? ToFloat(ToBFloat16(rounded))
          : compute == DType::kF16 ? ToFloat(ToFloat16(rounded))
                                   : rounded;
    }
    return v;
  };
  std::vector<double> q = rounded(draw.Normals(s.rows() * s.width())),
                      k = rounded(draw.Normals(s.rows() * s.kv_width()));
  std::vector<double> v = rounded(draw.Normals(s.rows() * s.kv_width())), out(q.size()),
                      lse(s.rows() * s.heads);
  STRATA_CHECK(
      MakeReferenceOps()
          ->AttentionForward(nullptr, s.Args(q.data(), k.data(), v.data(), out.data(), lse.data(), 0))
          .ok());
  Case c;
  c.shape = s.Name() + " backward";
  const int64_t ld = s.width() + s.gap, ld_kv = s.kv_width() + s.gap;
  c.tensors = {{"q", Kind::kCompute, s.rows(), s.width(), ld, q},
               {"k", Kind::kCompute, s.rows(), s.kv_width(), ld_kv, k},
               {"v", Kind::kCompute, s.rows(), s.kv_width(), ld_kv, v},
               {"out", Kind::kCompute, s.rows(), s.width(), ld, out},
               {"lse", Kind::kAcc, 1, s.rows() * s.heads, 0, lse},
               {"dout", Kind::kCompute, s.rows(), s.width(), ld, draw.Normals(s.rows() * s.width())},
               {"dq", Kind::kCompute, s.rows(), s.width(), ld, {}, true},
               {"dk", Kind::kCompute, s.rows(), s.kv_width(), ld_kv, {}, true},
               {"dv", Kind::kCompute, s.rows(), s.kv_width(), ld_kv, {}, true}};
  // dS = P (dP - delta): with few keys the difference vanishes, while dP is a sum of `dim` products, added up
  // in any order, and its error is multiplied with an element of q or k.
  c.tensors[6].cancelling = c.tensors[7].cancelling = 12 * std::sqrt(static_cast<double>(s.dim)) * s.scale;
  // P = e^(score - lse), the difference of two larger numbers
  c.tensors[8].cancelling = std::max(2.0, std::sqrt(static_cast<double>(s.dim)) * s.scale);
  c.workspace_bytes = [=](DType type) {
    return AttentionBackwardWorkspaceBytes(type, s.batch, s.seq, s.heads, s.kv_heads, s.dim);
  };
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
    AttentionBackwardArgs args;
    args.forward = s.Args(p[0], p[1], p[2], p[3], p[4], s.gap);
    args.forward.workspace = workspace;
    args.dout = p[5];
    args.dq = p[6];
    args.dk = p[7];
    args.dv = p[8];
    args.lddo = args.lddq = ld;
    args.lddk = args.lddv = ld_kv;
    return ops.AttentionBackward(nullptr, args);
  };
  return c;
}

// ---- Elementwise

Case GeluCase(Draw& draw, GeluKind kind, bool backward, bool in_place, int64_t n) {
  Case c;
  c.elementwise = true;
  c.shape = Shape("gelu ", kind == GeluKind::kErf ? "erf" : "tanh", " backward=", backward,
                  " in_place=", in_place, " n=", n);
  std::vector<double> x = draw.Normals(n, draw.Bool() ? 1 : 4);
  c.tensors = {{"x", Kind::kCompute, 1, n, 0, x},
               {"dy", Kind::kCompute, 1, n, 0, draw.Normals(n), backward && in_place},
               {"out", Kind::kCompute, 1, n, 0, {}, !(backward && in_place)}};
  // The slope is a sum of two terms that cancel near its zero.
  if (backward) c.tensors[1].cancelling = c.tensors[2].cancelling = 4;
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    if (!backward) return ops.GeluForward(nullptr, kind, n, p[0], p[2]);
    return ops.GeluBackward(nullptr, kind, n, p[0], p[1], in_place ? p[1] : p[2]);
  };
  return c;
}

Case SwigluCase(Draw& draw, bool backward, bool in_place, int64_t rows, int64_t ffn) {
  Case c;
  c.elementwise = true;
  c.shape = Shape("swiglu rows=", rows, " ffn=", ffn, " backward=", backward, " in_place=", in_place);
  c.tensors = {{"x", Kind::kCompute, rows, 2 * ffn, 0, draw.Normals(rows * 2 * ffn, 2), backward && in_place},
               {"dy", Kind::kCompute, rows, ffn, 0, draw.Normals(rows * ffn)},
               {"out", Kind::kCompute, rows, backward ? 2 * ffn : ffn, 0, {}, !(backward && in_place)}};
  if (backward) c.tensors[0].cancelling = c.tensors[2].cancelling = 16;
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    if (!backward) return ops.SwigluForward(nullptr, rows, ffn, p[0], p[2]);
    return ops.SwigluBackward(nullptr, rows, ffn, p[0], p[1], in_place ? p[0] : p[2]);
  };
  return c;
}

Case AddCase(Draw& draw, int64_t n, int out) {
  Case c;
  c.elementwise = true;
  c.shape = Shape("add n=", n, " out=", out);
  c.tensors = {{"a", Kind::kCompute, 1, n, 0, draw.Normals(n), out == 0},
               {"b", Kind::kCompute, 1, n, 0, draw.Normals(n), out == 1},
               {"out", Kind::kCompute, 1, n, 0, {}, out == 2}};
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    return ops.Add(nullptr, n, p[0], p[1], p[out]);
  };
  return c;
}

Case DropoutCase(Draw& draw, int64_t n, int64_t first, double drop, bool in_place, int64_t cut) {
  Case c;
  c.elementwise = c.exact = true;
  c.shape = Shape("dropout n=", n, " first=", first, " drop=", drop, " in_place=", in_place, " cut=", cut);
  c.tensors = {{"x", Kind::kCompute, 1, n, 0, draw.Normals(n), in_place},
               {"out", Kind::kCompute, 1, n, 0, {}, !in_place}};
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    DropoutArgs args{.drop = drop, .seed = 0x123456789abcdef0u, .step = 77, .tensor = 5};
    for (const auto& [begin, end] : {std::pair(int64_t{0}, cut), std::pair(cut, n)}) {
      if (begin == end) continue;
      const int64_t at = begin * SizeOf(ops.compute_dtype());
      args.n = end - begin;
      args.first = first + begin;
      args.x = static_cast<char*>(p[0]) + at;
      args.out = static_cast<char*>(p[in_place ? 0 : 1]) + at;
      STRATA_RETURN_IF_ERROR(ops.Dropout(nullptr, args));
    }
    return absl::OkStatus();
  };
  return c;
}

// ---- Sums over rows, embedding

Case BiasBackwardCase(Draw& draw, int64_t rows, int64_t n, int64_t gap) {
  const int64_t ldy = n + gap;
  Case c;
  c.shape = Shape("bias backward rows=", rows, " n=", n, " ldy=", ldy);
  c.tensors = {{"dy", Kind::kCompute, rows, n, ldy, draw.Normals(rows * n)},
               {"dbias", Kind::kAcc, 1, n, 0, {}, true}};
  c.tensors[1].cancelling = std::sqrt(static_cast<double>(rows));
  c.workspace_bytes = [=](DType compute) { return BiasBackwardWorkspaceBytes(compute, rows, n); };
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
    return ops.BiasBackward(nullptr, rows, n, p[0], ldy, p[1], workspace);
  };
  return c;
}

std::vector<Case> EmbeddingCases(Draw& draw, int64_t rows, int64_t seq, int64_t vocab, int64_t width,
                                 int64_t seq_max, bool positions) {
  std::vector<double> tokens(rows);
  for (double& t : tokens) t = static_cast<double>(draw.Int(0, vocab - 1));
  Case c;
  c.shape =
      Shape("embedding rows=", rows, " seq=", seq, " vocab=", vocab, " width=", width, " wpe=", positions);
  c.tensors = {{"tokens", Kind::kInt32, 1, rows, 0, tokens},
               {"wte", Kind::kCompute, vocab, width, 0, draw.Normals(vocab * width)},
               {"wpe", Kind::kCompute, seq_max, width, 0, draw.Normals(seq_max * width)},
               {"out", Kind::kCompute, rows, width, 0, {}, true}};
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    return ops.EmbeddingForward(nullptr, rows, seq, vocab, width, static_cast<const int32_t*>(p[0]), p[1],
                                positions ? p[2] : nullptr, p[3]);
  };
  Case b;
  b.shape = c.shape + " backward";
  b.tensors = {{"tokens", Kind::kInt32, 1, rows, 0, tokens},
               {"dout", Kind::kCompute, rows, width, 0, draw.Normals(rows * width)},
               {"dwte", Kind::kAcc, vocab, width, 0, {}, true}};
  if (positions) b.tensors.push_back({"dwpe", Kind::kAcc, seq_max, width, 0, {}, true});
  for (size_t t = 2; t < b.tensors.size(); ++t)
    b.tensors[t].cancelling = std::sqrt(static_cast<double>(rows));
  b.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
    return ops.EmbeddingBackward(nullptr, rows, seq, vocab, width, static_cast<const int32_t*>(p[0]), p[1],
                                 p[2], positions ? p[3] : nullptr, seq_max);
  };
  return {c, b};
}

// ---- Cross-entropy

Case CrossEntropyCase(Draw& draw, int64_t rows, int64_t vocab, bool gradient, int masked_percent) {
  Case c;
  c.shape = Shape("cross entropy rows=", rows, " vocab=", vocab, " gradient=", gradient,
                  " masked%=", masked_percent);
  std::vector<double> targets(rows);
  for (double& t : targets)
    t = draw.Int(1, 100) <= masked_percent ? -1 : static_cast<double>(draw.Int(0, vocab - 1));
  constexpr double kGradientScale = 0.125;
  // A target's probability less one cancels where it is near one.
  c.tensors = {
      {"logits", Kind::kCompute, rows, vocab, 0, draw.Normals(rows * vocab, 3), gradient, kGradientScale},
      {"targets", Kind::kInt32, 1, rows, 0, targets},
      {"loss", Kind::kDouble, 1, 2, 0, {5, 7}, true}};
  c.workspace_bytes = [=](DType compute) { return CrossEntropyWorkspaceBytes(compute, rows, vocab); };
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
    CrossEntropyArgs args{
        .rows = rows, .vocab = vocab, .logits = p[0], .targets = static_cast<const int32_t*>(p[1])};
    args.loss = static_cast<double*>(p[2]);
    args.gradient = gradient;
    args.gradient_scale = kGradientScale;
    args.workspace = workspace;
    return ops.CrossEntropy(nullptr, args);
  };
  return c;
}

}  // namespace strata::conformance
