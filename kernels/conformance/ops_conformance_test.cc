// The contract of kernels/ops.h as tests, run on every backend: values against the float64 reference,
// bits across calls and threads, no access outside what was lent, refusals.
#include <algorithm>
#include <cmath>

#include "common/bfloat16.h"
#include "common/float16.h"
#include "gtest/gtest.h"
#include "kernels/conformance/harness.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/workspace.h"

namespace strata::conformance {
namespace {

Backend Cpu(const char* name, DType compute, CpuIsa isa) {
  return {name, compute, [=](int threads) -> std::unique_ptr<Ops> {
            return DetectCpuIsa() >= isa ? MakeCpuOps(compute, threads, isa) : nullptr;
          }};
}

// A backend is one line here.
std::vector<Backend> Backends() {
  return {
      Cpu("CpuF32Base", DType::kF32, CpuIsa::kBase),
      Cpu("CpuF32Avx2", DType::kF32, CpuIsa::kAvx2),
      Cpu("CpuF32Avx512", DType::kF32, CpuIsa::kAvx512),
      Cpu("CpuBf16Base", DType::kBF16, CpuIsa::kBase),
      Cpu("CpuBf16Avx2", DType::kBF16, CpuIsa::kAvx2),
      Cpu("CpuBf16Avx512", DType::kBF16, CpuIsa::kAvx512),
      Cpu("CpuBf16Avx512Bf16", DType::kBF16, CpuIsa::kAvx512Bf16),
      Cpu("CpuBf16Amx", DType::kBF16, CpuIsa::kAmx),
      Cpu("CpuF16Base", DType::kF16, CpuIsa::kBase),
      Cpu("CpuF16Avx2", DType::kF16, CpuIsa::kAvx2),
      Cpu("CpuF16Avx512", DType::kF16, CpuIsa::kAvx512),
      Cpu("CpuF16Avx512Bf16", DType::kF16, CpuIsa::kAvx512Bf16),
  };
}

class OpsConformanceTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    Draw::Seed();
    if (SharedOps(GetParam(), 1) == nullptr) GTEST_SKIP() << "this machine cannot run " << GetParam().name;
  }
  const Backend& backend() { return GetParam(); }
  Ops& ops() { return *SharedOps(GetParam(), 1); }
};

INSTANTIATE_TEST_SUITE_P(Backends, OpsConformanceTest, ::testing::ValuesIn(Backends()),
                         [](const auto& param) { return param.param.name; });

template <typename... Parts>
std::string Shape(const Parts&... parts) {
  return absl::StrCat(parts...);
}

// ---- GEMM

struct GemmShape {
  int64_t m, n, k;
};

// With `weight_gradient` the flags are those of dW = dY^T X.
Case GemmCase(Draw& draw, GemmShape s, bool weight_gradient = false) {
  const bool ta = weight_gradient || draw.Bool(), tb = !weight_gradient && draw.Bool();
  const bool c_is_acc = weight_gradient || draw.Bool(), accumulate = draw.Bool();
  const bool bias = !weight_gradient && draw.Int(0, 2) == 0;
  const auto gap = [&] { return draw.Pick({0, 0, 1, 3, 32}); };
  const int64_t a_rows = ta ? s.k : s.m, a_cols = ta ? s.m : s.k, b_rows = tb ? s.n : s.k,
                b_cols = tb ? s.k : s.n;
  const int64_t lda = a_cols + gap(), ldb = b_cols + gap(), ldc = s.n + gap();
  Case c;
  c.is_gemm = true;
  c.shape = Shape("gemm m=", s.m, " n=", s.n, " k=", s.k, " lda=", lda, " ldb=", ldb, " ldc=", ldc,
                  " ta=", ta, " tb=", tb, " c_is_acc=", c_is_acc, " accumulate=", accumulate, " bias=", bias);
  c.tensors = {{"a", Kind::kCompute, a_rows, a_cols, lda, draw.Normals(s.m * s.k)},
               {"b", Kind::kCompute, b_rows, b_cols, ldb, draw.Normals(s.k * s.n)},
               {"c", c_is_acc ? Kind::kAcc : Kind::kCompute, s.m, s.n, ldc, {}, true},
               {"bias", Kind::kCompute, 1, s.n, 0, draw.Normals(s.n)}};
  c.tensors[2].cancelling = std::sqrt(static_cast<double>(s.k));
  if (accumulate) c.tensors[2].values = draw.Normals(s.m * s.n);
  c.workspace_bytes = [=](DType compute) { return GemmWorkspaceBytes(compute, s.m, s.n, s.k); };
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
    return ops.Gemm(nullptr, args);
  };
  return c;
}

TEST_P(OpsConformanceTest, GemmOfRandomShapesAndFlags) {
  Draw draw(1);
  for (int i = 0; i < 40; ++i) {
    const auto side = [&] {
      return draw.Pick({1, 2, draw.Int(1, 16), draw.Int(1, 70), draw.Int(1, 150), 64});
    };
    const int64_t m = side(), n = side(), k = side();
    Check(backend(), GemmCase(draw, {m, n, k}));
  }
}

TEST_P(OpsConformanceTest, GemmLargerThanItsBlocks) {
  Draw draw(2);
  Check(backend(), GemmCase(draw, {draw.Int(257, 300), draw.Int(257, 300), draw.Int(385, 450)}));
  Check(backend(), GemmCase(draw, {draw.Int(1, 8), draw.Int(513, 700), draw.Int(770, 900)}));
}

TEST_P(OpsConformanceTest, GemmOfLongWeightGradients) {
  Draw draw(17);
  Check(backend(), GemmCase(draw, {draw.Int(64, 90), draw.Int(64, 90), draw.Int(512, 1100)}, true));
  Check(backend(), GemmCase(draw, {draw.Int(1025, 1060), 65, draw.Int(513, 580)}, true));
}

// The libraries' scratch fits what was promised, at sizes that real jobs have.
TEST_P(OpsConformanceTest, GemmOfAJobFitsItsWorkspace) {
  constexpr int64_t kRows = 1024;
  const std::vector<char> a(2048 * kRows * 4), b(2048 * kRows * 4);
  std::vector<char> c(2048 * kRows * 4);
  std::vector<char> workspace((4 << 20) + 64);
  for (const auto& [in, out] : {std::pair{384, 640}, {384, 2048}, {1024, 384}, {384, 256}, {33, 1000}}) {
    for (int pass = 0; pass < 3; ++pass) {
      GemmArgs g;
      if (pass == 0) g = {.m = kRows, .n = out, .k = in, .lda = in, .ldb = in, .transpose_b = true};
      if (pass == 1) g = {.m = kRows, .n = in, .k = out, .lda = out, .ldb = in};
      if (pass == 2) g = {.m = out, .n = in, .k = kRows, .lda = out, .transpose_a = true, .ldb = in};
      g.c_is_acc = pass == 2;
      g.a = a.data();
      g.b = b.data();
      g.c = c.data();
      g.ldc = g.n;
      const uintptr_t aligned = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64;
      g.workspace = {reinterpret_cast<void*>(aligned), GemmWorkspaceBytes(backend().compute, g.m, g.n, g.k)};
      ASSERT_LE(g.workspace.bytes, 4 << 20);
      for (const int threads : backend().thread_counts) {
        const absl::Status status = SharedOps(backend(), threads)->Gemm(nullptr, g);
        EXPECT_TRUE(status.ok()) << "threads=" << threads << ": " << status;
      }
    }
  }
}

TEST_P(OpsConformanceTest, GemmRefusesBadShapesAndShortWorkspaces) {
  alignas(64) char memory[64] = {};
  GemmArgs args{.m = 4, .n = 4, .k = 4, .a = memory, .lda = 4, .b = memory, .ldb = 4, .c = memory, .ldc = 3};
  args.workspace = {memory, int64_t{1} << 40};
  const absl::Status short_row = ops().Gemm(nullptr, args);
  EXPECT_EQ(short_row.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(short_row.message().find("m=4 n=4 k=4"), absl::string_view::npos) << short_row;
  args.ldc = 4;
  args.workspace = {memory, GemmWorkspaceBytes(backend().compute, 4, 4, 4) - 1};
  EXPECT_EQ(ops().Gemm(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
  args.workspace.bytes += 1;
  args.m = 0;
  EXPECT_EQ(ops().Gemm(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
}

// ---- Norms

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

TEST_P(OpsConformanceTest, Norms) {
  Draw draw(3);
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (int i = 0; i < 8; ++i) {
      const int64_t rows = draw.Pick({1, 2, draw.Int(3, 70), draw.Int(60, 400)});
      const int64_t width = draw.Pick({1, 2, draw.Int(3, 40), 64, draw.Int(65, 400)});
      Check(backend(), NormForwardCase(draw, kind, rows, width));
      Check(backend(), NormBackwardCase(draw, kind, rows, width));
    }
  }
  // More rows than 64 blocks of 32.
  Check(backend(), NormBackwardCase(draw, NormKind::kRmsNorm, 2100, 17));
}

// ---- Rope

TEST_P(OpsConformanceTest, Rope) {
  Draw draw(4);
  for (int i = 0; i < 12; ++i) {
    const int64_t seq = draw.Pick({1, 7, draw.Int(2, 100)}), rows = seq * draw.Int(1, 3),
                  heads = draw.Int(1, 5);
    const int64_t dim = draw.Pick({2, 4, 6, 30, 64, 80, 128}), ld = heads * dim + draw.Pick({0, 1, 64});
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
    Check(backend(), c);
  }
}

// ---- Attention

struct AttentionShape {
  int64_t batch, seq, heads, kv_heads, dim, gap;
  double scale;

  std::string Name() const {
    return Shape("attention batch=", batch, " seq=", seq, " heads=", heads, " kv_heads=", kv_heads,
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

AttentionShape DrawAttention(Draw& draw) {
  AttentionShape s;
  s.kv_heads = draw.Int(1, 3);
  s.heads = s.kv_heads * draw.Int(1, 3);
  s.batch = draw.Int(1, 2);
  s.seq = draw.Pick({1, 2, 63, 64, 65, draw.Int(3, 62), draw.Int(66, 200)});
  s.dim = draw.Pick({1, 8, 16, 33, 64, 64, 80, 128});
  s.gap = draw.Pick({0, 1, 32});
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
  c.tensors[3].cancelling = 1;
  c.tensors[4].cancelling = 4;
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
  EXPECT_TRUE(MakeReferenceOps()
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
  // dS = P (dP - delta): with few keys the difference vanishes, while dP is a sum of `dim` products.
  c.tensors[6].cancelling = c.tensors[7].cancelling = 4 * std::sqrt(static_cast<double>(s.dim)) * s.scale;
  c.tensors[8].cancelling = 2;  // P = e^(score - lse), the difference of two larger numbers
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

TEST_P(OpsConformanceTest, AttentionForward) {
  Draw draw(5);
  for (int i = 0; i < 10; ++i) Check(backend(), AttentionForwardCase(draw, DrawAttention(draw)));
  Check(backend(), AttentionForwardCase(draw, {1, 300, 2, 1, 64, 0, 0.125}));
  // Large scores: the running maximum must keep the exponentials in range.
  Check(backend(), AttentionForwardCase(draw, {1, 130, 1, 1, 32, 0, 4.0}));
}

TEST_P(OpsConformanceTest, AttentionBackward) {
  Draw draw(6);
  for (int i = 0; i < 10; ++i) {
    Check(backend(), AttentionBackwardCase(draw, DrawAttention(draw), backend().compute));
  }
  Check(backend(), AttentionBackwardCase(draw, {1, 300, 2, 1, 64, 0, 0.125}, backend().compute));
  Check(backend(), AttentionBackwardCase(draw, {6, 70, 3, 3, 32, 0, 0.2}, backend().compute));
}

TEST_P(OpsConformanceTest, AttentionRefusesBadShapes) {
  alignas(64) char memory[64] = {};
  AttentionArgs args = AttentionShape{1, 1, 3, 2, 4, 0, 1.0}.Args(memory, memory, memory, memory, memory, 0);
  args.workspace = {memory, int64_t{1} << 40};
  EXPECT_EQ(ops().AttentionForward(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
  args.kv_heads = 1;
  args.scale = 0;
  EXPECT_EQ(ops().AttentionForward(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
  args.scale = 1;
  args.workspace.bytes = AttentionForwardWorkspaceBytes(backend().compute, 1, 1, 3, 1, 4) - 1;
  EXPECT_EQ(ops().AttentionForward(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
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

TEST_P(OpsConformanceTest, GeluAndSwiglu) {
  Draw draw(7);
  for (int i = 0; i < 6; ++i) {
    const int64_t n = draw.Pick({1, 15, 16, 17, draw.Int(18, 300), draw.Int(30000, 50000)});
    for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
      Check(backend(), GeluCase(draw, kind, false, false, n));
      Check(backend(), GeluCase(draw, kind, true, draw.Bool(), n));
    }
    const int64_t rows = draw.Pick({1, 3, draw.Int(4, 90)}), ffn = draw.Pick({1, 7, 64, draw.Int(8, 600)});
    Check(backend(), SwigluCase(draw, false, false, rows, ffn));
    Check(backend(), SwigluCase(draw, true, draw.Bool(), rows, ffn));
  }
}

TEST_P(OpsConformanceTest, GeluAndSwigluAtExtremes) {
  for (const bool backward : {false, true}) {
    for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
      Draw draw(8);
      Case c = GeluCase(draw, kind, backward, false, 19);
      c.tensors[0].values = {0,  1e-30, -1e-30, 1e-4, -1e-4, 0.5, -0.5, 3,   -3,  5,
                             -5, 8,     -8,     10,   -10,   100, -100, 1e9, -1e9};
      c.tensors[1].values.assign(19, 1.0);
      c.elementwise = false;  // products of underflowed factors
      Check(backend(), c);
    }
  }
  Draw draw(9);
  Case c = SwigluCase(draw, false, false, 1, 8);
  c.tensors[0].values = {0, 20, -20, 88, -88, 100, -100, 1e-20, 1, 1, 1, 1, 1, 1, 1, 1};
  c.elementwise = false;
  Check(backend(), c);
}

TEST_P(OpsConformanceTest, NotANumberIsNotHidden) {
  Draw draw(10);
  for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
    Case c = GeluCase(draw, kind, false, false, 21);
    c.tensors[0].values[3] = c.tensors[0].values[20] = std::nan("");
    Check(backend(), c);
  }
  Case c = SwigluCase(draw, true, false, 1, 21);
  c.tensors[0].values[5] = c.tensors[0].values[40] = std::nan("");
  c.tensors[1].values[7] = std::nan("");
  Check(backend(), c);
}

TEST_P(OpsConformanceTest, AddMayWriteOverAnOperand) {
  Draw draw(11);
  for (const int64_t n : {int64_t{1}, int64_t{16}, draw.Int(17, 500), draw.Int(40000, 60000)}) {
    for (int out = 0; out < 3; ++out) {
      Case c;
      c.elementwise = true;
      c.shape = Shape("add n=", n, " out=", out);
      c.tensors = {{"a", Kind::kCompute, 1, n, 0, draw.Normals(n), out == 0},
                   {"b", Kind::kCompute, 1, n, 0, draw.Normals(n), out == 1},
                   {"out", Kind::kCompute, 1, n, 0, {}, out == 2}};
      c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) {
        return ops.Add(nullptr, n, p[0], p[1], p[out]);
      };
      Check(backend(), c);
    }
  }
}

// ---- Sums over rows, embedding

TEST_P(OpsConformanceTest, BiasBackward) {
  Draw draw(12);
  for (int i = 0; i < 8; ++i) {
    const int64_t rows = draw.Pick({1, 31, 33, draw.Int(2, 300), 2100}),
                  n = draw.Pick({1, 17, draw.Int(2, 300)});
    const int64_t ldy = n + draw.Pick({0, 5});
    Case c;
    c.shape = Shape("bias backward rows=", rows, " n=", n, " ldy=", ldy);
    c.tensors = {{"dy", Kind::kCompute, rows, n, ldy, draw.Normals(rows * n)},
                 {"dbias", Kind::kAcc, 1, n, 0, {}, true}};
    c.tensors[1].cancelling = std::sqrt(static_cast<double>(rows));
    c.workspace_bytes = [=](DType compute) { return BiasBackwardWorkspaceBytes(compute, rows, n); };
    c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
      return ops.BiasBackward(nullptr, rows, n, p[0], ldy, p[1], workspace);
    };
    Check(backend(), c);
  }
}

TEST_P(OpsConformanceTest, Embedding) {
  Draw draw(13);
  for (int i = 0; i < 8; ++i) {
    const int64_t seq = draw.Pick({1, draw.Int(2, 40)}), rows = seq * draw.Int(1, 4), vocab = draw.Int(1, 50);
    const int64_t width = draw.Pick({1, 19, 64, draw.Int(2, 300)}), seq_max = seq + draw.Int(0, 5);
    const bool positions = draw.Bool();
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
    Check(backend(), c);
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
    Check(backend(), b);
  }
}

// ---- Cross-entropy

Case CrossEntropyCase(Draw& draw, int64_t rows, int64_t vocab, bool gradient, int masked_percent) {
  Case c;
  c.shape = Shape("cross entropy rows=", rows, " vocab=", vocab, " gradient=", gradient,
                  " masked%=", masked_percent);
  std::vector<double> targets(rows);
  for (double& t : targets)
    t = draw.Int(1, 100) <= masked_percent ? -1 : static_cast<double>(draw.Int(0, vocab - 1));
  c.tensors = {{"logits", Kind::kCompute, rows, vocab, 0, draw.Normals(rows * vocab, 3), gradient},
               {"targets", Kind::kInt32, 1, rows, 0, targets},
               {"loss", Kind::kDouble, 1, 2, 0, {5, 7}, true}};
  c.workspace_bytes = [=](DType compute) { return CrossEntropyWorkspaceBytes(compute, rows, vocab); };
  c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace workspace) {
    CrossEntropyArgs args{
        .rows = rows, .vocab = vocab, .logits = p[0], .targets = static_cast<const int32_t*>(p[1])};
    args.loss = static_cast<double*>(p[2]);
    args.gradient = gradient;
    args.gradient_scale = 0.125;
    args.workspace = workspace;
    return ops.CrossEntropy(nullptr, args);
  };
  return c;
}

TEST_P(OpsConformanceTest, CrossEntropy) {
  Draw draw(14);
  for (int i = 0; i < 12; ++i) {
    const int64_t rows = draw.Pick({1, 2, draw.Int(3, 200)}),
                  vocab = draw.Pick({1, 2, 15, 256, draw.Int(3, 700)});
    Check(backend(),
          CrossEntropyCase(draw, rows, vocab, draw.Bool(), static_cast<int>(draw.Pick({0, 30, 100}))));
  }
  Check(backend(), CrossEntropyCase(draw, 3, 50257, true, 0));
  Check(backend(), CrossEntropyCase(draw, 9, 33, true, 100));  // all masked: the loss stays what it was
}

TEST_P(OpsConformanceTest, CrossEntropySurvivesLargeLogits) {
  Draw draw(16);
  Case c = CrossEntropyCase(draw, 2, 20, true, 0);
  for (int i = 0; i < 20; ++i) c.tensors[0].values[i] = i * 1000.0;
  Check(backend(), c);
}

TEST_P(OpsConformanceTest, ZeroClearsExactlyTheBytes) {
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{600001}}) {
    Case c;
    c.shape = Shape("zero n=", n);
    c.tensors = {{"x", Kind::kInt32, 1, n + 1, 0, std::vector<double>(n + 1, 7), true}};
    c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) { return ops.Zero(nullptr, p[0], n * 4); };
    Check(backend(), c);
  }
}

}  // namespace
}  // namespace strata::conformance
