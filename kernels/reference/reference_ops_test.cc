// The reference is the truth of the conformance suite, so it is itself held against something simpler:
// every backward pass against central differences of its forward pass in float64, and forward passes
// against values computed by hand.
#include "kernels/reference/reference_ops.h"

#include <cmath>
#include <functional>
#include <vector>

#include "common/random.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using Vector = std::vector<double>;

class ReferenceOpsTest : public ::testing::Test {
 protected:
  Vector Random(int64_t n) {
    CounterRandom random(20261129, ++stream_);
    Vector values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = random.Normal(i);
    return values;
  }

  // `gradient` must be d(sum(weights * forward(x)))/dx.
  void ExpectGradient(const std::function<Vector(const Vector&)>& forward, Vector x, const Vector& weights,
                      const Vector& gradient, const char* what) {
    ASSERT_EQ(x.size(), gradient.size());
    const double step = 1e-5;
    for (size_t i = 0; i < x.size(); ++i) {
      const double at = x[i];
      x[i] = at + step;
      const Vector up = forward(x);
      x[i] = at - step;
      const Vector down = forward(x);
      x[i] = at;
      double slope = 0;
      for (size_t j = 0; j < weights.size(); ++j) slope += weights[j] * (up[j] - down[j]) / (2 * step);
      ASSERT_NEAR(gradient[i], slope, 2e-7 * (1 + std::abs(slope))) << what << "[" << i << "]";
    }
  }

  std::unique_ptr<Ops> ops_ = MakeReferenceOps();

 private:
  uint64_t stream_ = 0;
};

TEST_F(ReferenceOpsTest, GemmMultipliesTransposedStridedMatrices) {
  // A = [[1,2],[3,4],[5,6]] stored transposed with a gap; B = [[1,0],[2,1]].
  const Vector a = {1, 3, 5, -1, 2, 4, 6, -1}, b = {1, 0, 2, 1}, bias = {10, 20};
  Vector c = {1, 1, -9, 1, 1, -9, 1, 1, -9};
  GemmArgs args{
      .m = 3, .n = 2, .k = 2, .a = a.data(), .lda = 4, .transpose_a = true, .b = b.data(), .ldb = 2};
  args.c = c.data();
  args.ldc = 3;
  args.accumulate = true;
  args.bias = bias.data();
  ASSERT_TRUE(ops_->Gemm(nullptr, args).ok());
  EXPECT_EQ(c, (Vector{16, 23, -9, 22, 25, -9, 28, 27, -9}));
}

TEST_F(ReferenceOpsTest, NormBackwardIsTheGradient) {
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    const int64_t rows = 3, width = 5;
    const Vector x = Random(rows * width), w = Random(width), bias = Random(width), dy = Random(rows * width);
    Vector mean(rows), rstd(rows);
    auto run = [&](const Vector& x_in, const Vector& w_in, const Vector& bias_in) {
      Vector y(rows * width);
      NormArgs args{.kind = kind, .rows = rows, .width = width, .x = x_in.data(), .weight = w_in.data()};
      args.bias = bias_in.data();
      args.y = y.data();
      args.mean = mean.data();
      args.rstd = rstd.data();
      EXPECT_TRUE(ops_->NormForward(nullptr, args).ok());
      return y;
    };
    run(x, w, bias);
    const Vector before = Random(rows * width);
    Vector dx = before, dw(width), db(width);
    NormBackwardArgs args{.kind = kind, .rows = rows, .width = width, .x = x.data(), .weight = w.data()};
    args.dy = dy.data();
    args.mean = mean.data();
    args.rstd = rstd.data();
    args.dx = dx.data();
    args.dweight = dw.data();
    args.dbias = db.data();
    ASSERT_TRUE(ops_->NormBackward(nullptr, args).ok());
    for (size_t i = 0; i < dx.size(); ++i) dx[i] -= before[i];
    ExpectGradient([&](const Vector& v) { return run(v, w, bias); }, x, dy, dx, "dx");
    ExpectGradient([&](const Vector& v) { return run(x, v, bias); }, w, dy, dw, "dweight");
    if (kind == NormKind::kLayerNorm) {
      ExpectGradient([&](const Vector& v) { return run(x, w, v); }, bias, dy, db, "dbias");
    }
  }
}

TEST_F(ReferenceOpsTest, RopeRotatesByThePositionAndBack) {
  const Vector x = Random(2 * 3 * 4);
  Vector y = x;
  RopeArgs args{.rows = 6, .seq = 3, .heads = 1, .head_dim = 4, .ld = 4, .theta = 100, .x = y.data()};
  ASSERT_TRUE(ops_->Rope(nullptr, args).ok());
  EXPECT_EQ(y[0], x[0]);  // position 0
  // Position 2 (row 5), pair (1, 3): the angle is 2 * 100^(-2/4) = 0.2.
  EXPECT_NEAR(y[21], x[21] * std::cos(0.2) - x[23] * std::sin(0.2), 1e-15);
  EXPECT_NEAR(y[23], x[23] * std::cos(0.2) + x[21] * std::sin(0.2), 1e-15);
  args.inverse = true;
  ASSERT_TRUE(ops_->Rope(nullptr, args).ok());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-15);
}

TEST_F(ReferenceOpsTest, AttentionBackwardIsTheGradient) {
  const int64_t batch = 2, seq = 4, heads = 4, kv_heads = 2, dim = 3, rows = batch * seq;
  const Vector q = Random(rows * heads * dim), k = Random(rows * kv_heads * dim),
               v = Random(rows * kv_heads * dim);
  const Vector dout = Random(rows * heads * dim);
  Vector out(q.size()), lse(rows * heads);
  AttentionBackwardArgs args;
  auto run = [&](const Vector& q_in, const Vector& k_in, const Vector& v_in) {
    args.forward = {.batch = batch, .seq = seq, .heads = heads, .kv_heads = kv_heads, .head_dim = dim};
    AttentionArgs& f = args.forward;
    f.scale = 0.7;
    f.q = q_in.data();
    f.k = k_in.data();
    f.v = v_in.data();
    f.out = out.data();
    f.lse = lse.data();
    f.ldq = f.ldo = heads * dim;
    f.ldk = f.ldv = kv_heads * dim;
    EXPECT_TRUE(ops_->AttentionForward(nullptr, f).ok());
    return out;
  };
  run(q, k, v);
  // The first query sees the first key only.
  for (int64_t d = 0; d < dim; ++d) EXPECT_NEAR(out[d], v[d], 1e-15);
  Vector dq(q.size()), dk(k.size()), dv(v.size());
  args.dout = dout.data();
  args.dq = dq.data();
  args.dk = dk.data();
  args.dv = dv.data();
  args.lddo = args.lddq = heads * dim;
  args.lddk = args.lddv = kv_heads * dim;
  ASSERT_TRUE(ops_->AttentionBackward(nullptr, args).ok());
  ExpectGradient([&](const Vector& x) { return run(x, k, v); }, q, dout, dq, "dq");
  ExpectGradient([&](const Vector& x) { return run(q, x, v); }, k, dout, dk, "dk");
  ExpectGradient([&](const Vector& x) { return run(q, k, x); }, v, dout, dv, "dv");
}

TEST_F(ReferenceOpsTest, GeluAndSwigluBackwardAreTheGradients) {
  const Vector x = Random(10), dy = Random(10), half_dy = Random(5);
  for (const GeluKind kind : {GeluKind::kTanh, GeluKind::kErf}) {
    auto run = [&](const Vector& v) {
      Vector y(v.size());
      EXPECT_TRUE(ops_->GeluForward(nullptr, kind, v.size(), v.data(), y.data()).ok());
      return y;
    };
    Vector dx(10);
    ASSERT_TRUE(ops_->GeluBackward(nullptr, kind, 10, x.data(), dy.data(), dx.data()).ok());
    ExpectGradient(run, x, dy, dx, "gelu dx");
    EXPECT_NEAR(run({1.0})[0], kind == GeluKind::kErf ? 0.841344746068543 : 0.841191990608276, 1e-14);
  }
  auto run = [&](const Vector& v) {
    Vector y(5);
    EXPECT_TRUE(ops_->SwigluForward(nullptr, 1, 5, v.data(), y.data()).ok());
    return y;
  };
  Vector dx(10);
  ASSERT_TRUE(ops_->SwigluBackward(nullptr, 1, 5, x.data(), half_dy.data(), dx.data()).ok());
  ExpectGradient(run, x, half_dy, dx, "swiglu dx");
}

TEST_F(ReferenceOpsTest, CrossEntropyGradientIsTheGradientAndMaskedRowsCountNothing) {
  const int64_t rows = 3, vocab = 4;
  const Vector logits = Random(rows * vocab);
  const std::vector<int32_t> targets = {2, -1, 0};
  auto run = [&](const Vector& x, bool gradient, Vector* out) {
    Vector copy = x, loss(2, 0);
    CrossEntropyArgs args{.rows = rows, .vocab = vocab, .logits = copy.data(), .targets = targets.data()};
    args.loss = loss.data();
    args.gradient = gradient;
    args.gradient_scale = 0.5;
    EXPECT_TRUE(ops_->CrossEntropy(nullptr, args).ok());
    EXPECT_EQ(loss[1], 2);
    if (out) *out = copy;
    return Vector{loss[0]};
  };
  Vector dlogits;
  run(logits, true, &dlogits);
  ExpectGradient([&](const Vector& x) { return run(x, false, nullptr); }, logits, {0.5}, dlogits, "dlogits");
  for (int64_t i = 0; i < vocab; ++i) EXPECT_EQ(dlogits[vocab + i], 0);
}

TEST_F(ReferenceOpsTest, EmbeddingAndBiasBackwardSumRows) {
  const std::vector<int32_t> tokens = {1, 0, 1, 1};
  const Vector wte = {1, 2, 3, 4}, wpe = {10, 20, 30, 40};
  Vector out(8), dwte(4), dwpe(6), dbias(2);
  ASSERT_TRUE(
      ops_->EmbeddingForward(nullptr, 4, 2, 2, 2, tokens.data(), wte.data(), wpe.data(), out.data()).ok());
  EXPECT_EQ(out, (Vector{13, 24, 31, 42, 13, 24, 33, 44}));
  ASSERT_TRUE(
      ops_->EmbeddingBackward(nullptr, 4, 2, 2, 2, tokens.data(), out.data(), dwte.data(), dwpe.data(), 3)
          .ok());
  EXPECT_EQ(dwte, (Vector{31, 42, 59, 92}));
  EXPECT_EQ(dwpe, (Vector{26, 48, 64, 86, 0, 0}));
  ASSERT_TRUE(ops_->BiasBackward(nullptr, 4, 2, out.data(), 2, dbias.data(), {}).ok());
  EXPECT_EQ(dbias, (Vector{90, 134}));
}

// The definition, by its own words; that as many are dropped as should be; and that steps and tensors draw
// anew.
TEST_F(ReferenceOpsTest, DropoutKeepsByThePhiloxWordOfThePosition) {
  constexpr int64_t kN = 1 << 16;
  const Vector ones(kN, 1.0);
  DropoutArgs args{
      .n = kN, .seed = 0x0123456789abcdefu, .step = 7, .tensor = 3, .first = 5, .x = ones.data()};
  const auto draw = [&](double drop, uint32_t step, uint32_t tensor) {
    Vector out(kN);
    args.drop = drop;
    args.step = step;
    args.tensor = tensor;
    args.out = out.data();
    EXPECT_TRUE(ops_->Dropout(nullptr, args).ok());
    return out;
  };
  for (const double drop : {0.1, 0.5}) {
    const Vector out = draw(drop, 7, 3);
    int64_t dropped = 0;
    for (int64_t i = 0; i < kN; ++i) {
      const uint32_t position = static_cast<uint32_t>(5 + i);
      const uint32_t word = Philox4x32({position / 4, 0, 3, 7}, {0x89abcdefu, 0x01234567u})[position % 4];
      ASSERT_EQ(out[i], word < (1 - drop) * 0x1p32 ? 1 / (1 - drop) : 0) << i;
      dropped += out[i] == 0;
    }
    // Five standard deviations.
    EXPECT_NEAR(static_cast<double>(dropped) / kN, drop, 5 * std::sqrt(drop * (1 - drop) / kN));
  }
  const Vector half = draw(0.5, 7, 3);
  for (const Vector& other : {draw(0.5, 8, 3), draw(0.5, 7, 4)}) {
    int64_t same = 0;
    for (int64_t i = 0; i < kN; ++i) same += other[i] == half[i];
    EXPECT_NEAR(static_cast<double>(same) / kN, 0.5, 5 * 0.5 / std::sqrt(kN));
  }
}

TEST_F(ReferenceOpsTest, BadShapesAreRefusedByName) {
  const double one = 1;
  double c = 0;
  GemmArgs args{.m = 2, .n = 1, .k = 3, .a = &one, .lda = 2, .b = &one, .ldb = 1, .c = &c, .ldc = 1};
  const absl::Status status = ops_->Gemm(nullptr, args);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("m=2 n=1 k=3 lda=2"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace strata
