// The contract of kernels/ops.h as tests, run on every backend that the test binary names (Backends): values
// against the float64 reference, bits across calls and threads, no access outside what was lent, refusals.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/conformance/cases.h"
#include "kernels/conformance/harness.h"
#include "kernels/workspace.h"

namespace strata::conformance {
namespace {

class OpsConformanceTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    Draw::Seed();
    if (SharedOps(GetParam(), GetParam().settings[0]) == nullptr) {
      GTEST_SKIP() << "this machine cannot run " << GetParam().name;
    }
  }
  const Backend& backend() { return GetParam(); }
  Ops& ops() { return *SharedOps(GetParam(), GetParam().settings[0]); }
};

INSTANTIATE_TEST_SUITE_P(Backends, OpsConformanceTest, ::testing::ValuesIn(Backends()),
                         [](const auto& param) { return param.param.name; });

// ---- GEMM

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
  if (backend().emulated) GTEST_SKIP() << "GEMMs of " << backend().name << " are the reference's";
  Draw draw(2);
  Check(backend(), GemmCase(draw, {draw.Int(257, 300), draw.Int(257, 300), draw.Int(385, 450)}));
  Check(backend(), GemmCase(draw, {draw.Int(1, 8), draw.Int(513, 700), draw.Int(770, 900)}));
}

TEST_P(OpsConformanceTest, GemmOfLongWeightGradients) {
  if (backend().emulated) GTEST_SKIP() << "GEMMs of " << backend().name << " are the reference's";
  Draw draw(17);
  Check(backend(), GemmCase(draw, {draw.Int(64, 90), draw.Int(64, 90), draw.Int(512, 1100)}, true));
  Check(backend(), GemmCase(draw, {draw.Int(1025, 1060), 65, draw.Int(513, 580)}, true));
}

// The libraries' scratch fits what was promised, at sizes that real jobs have.
TEST_P(OpsConformanceTest, GemmOfAJobFitsItsWorkspace) {
  if (backend().emulated) GTEST_SKIP() << "GEMMs of " << backend().name << " are the reference's";
  constexpr int64_t kRows = 1024;
  constexpr int64_t kMatrixBytes = 2048 * kRows * 4, kWorkspaceBytes = 4 << 20;
  Memory& memory = *backend().memory;
  const auto lend = [&](int64_t bytes) {
    std::shared_ptr<void> data(memory.Allocate(bytes), [&](void* p) { memory.Free(p); });
    memory.CopyIn(data.get(), std::vector<char>(bytes).data(), bytes);
    return data;
  };
  const auto a = lend(kMatrixBytes), b = lend(kMatrixBytes), c = lend(kMatrixBytes),
             workspace = lend(kWorkspaceBytes);
  for (const auto& [in, out] : {std::pair{384, 640}, {384, 2048}, {1024, 384}, {384, 256}, {33, 1000}}) {
    for (int pass = 0; pass < 3; ++pass) {
      GemmArgs g;
      if (pass == 0) g = {.m = kRows, .n = out, .k = in, .lda = in, .ldb = in, .transpose_b = true};
      if (pass == 1) g = {.m = kRows, .n = in, .k = out, .lda = out, .ldb = in};
      if (pass == 2) g = {.m = out, .n = in, .k = kRows, .lda = out, .transpose_a = true, .ldb = in};
      g.c_is_acc = pass == 2;
      g.a = a.get();
      g.b = b.get();
      g.c = c.get();
      g.ldc = g.n;
      g.workspace = {workspace.get(), GemmWorkspaceBytes(backend().compute, g.m, g.n, g.k)};
      ASSERT_LE(g.workspace.bytes, kWorkspaceBytes);
      for (const int threads : backend().settings) {
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
  args.c_is_acc = true;
  args.bias = memory;
  const absl::Status bias = ops().Gemm(nullptr, args);
  EXPECT_EQ(bias.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(bias.message().find("c_is_acc goes without bias"), absl::string_view::npos) << bias;
  args.bias = nullptr;
  args.m = 0;
  EXPECT_EQ(ops().Gemm(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(OpsConformanceTest, Fp8GemmRoundsItsOperandsToCodes) {
  if (backend().compute != DType::kBF16) return;  // refused, below
  if (backend().no_fp8 != nullptr) GTEST_SKIP() << backend().no_fp8;
  Draw draw(25);
  for (int i = 0; i < 8; ++i) {
    const auto side = [&] {
      return 16 * draw.Pick({1, 2, draw.Int(1, 6), draw.Int(1, backend().emulated ? 6 : 20)});
    };
    const int64_t m = side(), n = side(), k = side();
    Check(backend(), Fp8GemmCase(draw, {m, n, k}));
    Check(backend(), Fp8GemmCase(draw, {m, n, k}, true));
  }
  if (backend().emulated) return;
  Check(backend(), Fp8GemmCase(draw, {272, 288, 400}));
  Check(backend(), Fp8GemmCase(draw, {64, 80, 1040}, true));
}

// Elements of very different sizes, zeros among them, and whole matrices that are tiny, huge or zero: the
// scale is found, what is too small for it becomes zero or a multiple of the smallest step.
TEST_P(OpsConformanceTest, Fp8GemmOfAnyScale) {
  if (backend().compute != DType::kBF16) return;  // refused, below
  if (backend().no_fp8 != nullptr) GTEST_SKIP() << backend().no_fp8;
  Draw draw(26);
  for (const double size : {1.0, 1e-30, 1e-12, 1e15, 0.0}) {
    Case c = Fp8GemmCase(draw, {32, 16, 48});
    for (double& x : c.tensors[0].values) x *= size * std::ldexp(1.0, static_cast<int>(draw.Int(-20, 0)));
    for (double& x : c.tensors[1].values) x = draw.Int(0, 3) == 0 ? 0 : x;
    c.tensors[2].cancelling *= size;
    Check(backend(), c);
  }
}

TEST_P(OpsConformanceTest, Fp8GemmHidesNothingThatIsNotFinite) {
  if (backend().compute != DType::kBF16) return;  // refused, below
  if (backend().no_fp8 != nullptr) GTEST_SKIP() << backend().no_fp8;
  Draw draw(27);
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    Case c = Fp8GemmCase(draw, {16, 16, 32});
    c.tensors[0].values[37] = bad;
    c.elementwise = true;  // a NaN of the truth has to be one
    Check(backend(), c);
  }
}

TEST_P(OpsConformanceTest, Fp8GemmRefusesWhatItCannotTake) {
  alignas(64) char memory[64] = {};
  GemmArgs good{
      .m = 16, .n = 16, .k = 16, .a = memory, .lda = 16, .b = memory, .ldb = 16, .c = memory, .ldc = 16};
  good.workspace = {memory, int64_t{1} << 40};
  good.fp8 = true;
  const auto refused = [&](const GemmArgs& args, const char* what) {
    const absl::Status status = ops().Gemm(nullptr, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find(what), absl::string_view::npos) << status;
  };
  if (backend().compute != DType::kBF16) return refused(good, "operands in bf16");
  GemmArgs args = good;
  args.k = args.lda = args.ldb = 24;
  refused(args, "multiples of 16");
  args = good;
  args.a_type = args.b_type = Fp8::kE5M2;
  refused(args, "at most one operand is e5m2");
  args = good;
  args.a = memory + 2;
  refused(args, "aligned to 16 bytes");
  args = good;
  args.workspace.bytes = Fp8GemmWorkspaceBytes(16, 16, 16) - 1;
  refused(args, "workspace of");
}

// ---- Norms

TEST_P(OpsConformanceTest, Norms) {
  Draw draw(3);
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (int i = 0; i < 8; ++i) {
      const int64_t rows =
          draw.Pick({1, 2, draw.Int(3, 70), backend().emulated ? draw.Int(60, 100) : draw.Int(60, 400)});
      const int64_t width = draw.Pick({1, 2, draw.Int(3, 40), 64, draw.Int(65, 400)});
      Check(backend(), NormForwardCase(draw, kind, rows, width));
      Check(backend(), NormBackwardCase(draw, kind, rows, width));
    }
  }
  // More rows than 64 blocks of 32.
  Check(backend(), NormBackwardCase(draw, NormKind::kRmsNorm, 2100, 17));
}

// Wide and ragged rows, and such as stay in a GPU's registers.
TEST_P(OpsConformanceTest, AddNormHasTheBitsOfAnAdditionAndANorm) {
  Draw draw(18);
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    for (int sum = 0; sum < 3; ++sum) {
      const int64_t rows = draw.Pick({1, 2, draw.Int(3, backend().emulated ? 5 : 300)});
      for (const int64_t width : {draw.Pick({1, 67, draw.Int(2, 400)}), draw.Pick({8, 64, 520, 1032})}) {
        const AddNormCases cases = MakeAddNormCases(draw, kind, rows, width, sum);
        Check(backend(), cases.fused);
        CheckSameBits(backend(), cases.fused, cases.separate);
      }
    }
  }
}

TEST_P(OpsConformanceTest, AddNormRefusesAResidualWithoutAPlaceForTheSum) {
  alignas(64) char memory[64] = {};
  NormArgs args{.rows = 1, .width = 4, .x = memory, .weight = memory, .y = memory, .rstd = memory};
  args.residual = memory;
  EXPECT_EQ(ops().NormForward(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
  args.residual = nullptr;
  args.sum = memory;
  EXPECT_EQ(ops().NormForward(nullptr, args).code(), absl::StatusCode::kInvalidArgument);
}

// ---- Rope

TEST_P(OpsConformanceTest, Rope) {
  Draw draw(4);
  for (int i = 0; i < 12; ++i) {
    const int64_t seq = draw.Pick({1, 7, draw.Int(2, 100)}), rows = seq * draw.Int(1, 3),
                  heads = draw.Int(1, 5);
    const int64_t dim = draw.Pick({2, 4, 6, 30, 64, 80, 128});
    Check(backend(), RopeCase(draw, rows, seq, heads, dim, draw.Pick({0, 1, 64})));
  }
}

// ---- Attention

TEST_P(OpsConformanceTest, AttentionForward) {
  if (backend().no_attention != nullptr) GTEST_SKIP() << backend().no_attention;
  Draw draw(5);
  for (int i = 0; i < (backend().emulated ? 2 : 10); ++i)
    Check(backend(), AttentionForwardCase(draw, DrawAttention(draw, backend().attention_unit)));
  if (backend().emulated) return;
  Check(backend(), AttentionForwardCase(draw, {1, 300, 2, 1, 64, 0, 0.125}));
  Check(backend(), AttentionForwardCase(draw, {2, 270, 2, 1, 96, 8, 0.1}));
  Check(backend(), AttentionForwardCase(draw, {1, 300, 4, 2, 128, 0, 0.09}));
  // Large scores: the running maximum must keep the exponentials in range.
  Check(backend(), AttentionForwardCase(draw, {1, 130, 1, 1, 32, 0, 4.0}));
}

TEST_P(OpsConformanceTest, AttentionBackward) {
  if (backend().no_attention != nullptr) GTEST_SKIP() << backend().no_attention;
  Draw draw(6);
  for (int i = 0; i < (backend().emulated ? 2 : 10); ++i) {
    Check(backend(),
          AttentionBackwardCase(draw, DrawAttention(draw, backend().attention_unit), backend().compute));
  }
  if (backend().emulated) return;
  Check(backend(), AttentionBackwardCase(draw, {1, 300, 2, 1, 64, 0, 0.125}, backend().compute));
  Check(backend(), AttentionBackwardCase(draw, {2, 270, 2, 1, 96, 8, 0.1}, backend().compute));
  Check(backend(), AttentionBackwardCase(draw, {1, 300, 4, 2, 128, 0, 0.09}, backend().compute));
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
    for (int out = 0; out < 3; ++out) Check(backend(), AddCase(draw, n, out));
  }
}

TEST_P(OpsConformanceTest, DropoutHasTheBitsOfItsDefinition) {
  Draw draw(19);
  for (const double drop : {0.0, 0.1, 0.75, 1 - 0x1p-40}) {
    for (const bool in_place : {false, true}) {
      const int64_t n =
          draw.Pick({1, 8, draw.Int(2, 100), draw.Int(2000, 2100), backend().emulated ? 300 : 70000});
      const int64_t first = draw.Pick({0, 4, draw.Int(1, 50), (int64_t{1} << 35) + 3});
      Check(backend(), DropoutCase(draw, n, first, drop, in_place));
    }
  }
  // The block's number grows into its second word, at each place of a vector.
  for (int64_t before = 1; before < 300; before += 23) {
    Check(backend(), DropoutCase(draw, 600, (int64_t{1} << 34) - before, 0.4, false));
  }
}

TEST_P(OpsConformanceTest, DropoutOfPiecesIsThatOfTheWhole) {
  for (uint64_t i = 0; i < 4; ++i) {
    Draw draw(20 + i), again(20 + i);
    const int64_t n = 999 + 37 * i;
    for (const int64_t cut : {int64_t{1}, int64_t{64}, int64_t{333}, n - 1}) {
      CheckSameBits(backend(), DropoutCase(draw, n, 3 * i, 0.3, i % 2 == 0),
                    DropoutCase(again, n, 3 * i, 0.3, i % 2 == 0, cut));
    }
  }
}

TEST_P(OpsConformanceTest, DropoutRefusesWhatCannotBe) {
  alignas(64) char memory[64] = {};
  const DropoutArgs good{.n = 4, .drop = 0.5, .x = memory, .out = memory};
  const auto refused = [&](const DropoutArgs& args) {
    const absl::Status status = ops().Dropout(nullptr, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(status.message().find("dropout n="), absl::string_view::npos) << status;
  };
  for (const double drop : {1.0, -0.1, std::nan("")}) {
    DropoutArgs args = good;
    args.drop = drop;
    refused(args);
  }
  DropoutArgs args = good;
  args.n = 0;
  refused(args);
  args = good;
  args.first = -1;
  refused(args);
  args = good;
  args.out = nullptr;
  refused(args);
}

// ---- Sums over rows, embedding

TEST_P(OpsConformanceTest, BiasBackward) {
  Draw draw(12);
  for (int i = 0; i < 8; ++i) {
    const int64_t rows = draw.Pick({1, 31, 33, draw.Int(2, 300), 2100}),
                  n = draw.Pick({1, 17, draw.Int(2, 300)});
    Check(backend(), BiasBackwardCase(draw, rows, n, draw.Pick({0, 5})));
  }
}

TEST_P(OpsConformanceTest, Embedding) {
  Draw draw(13);
  for (int i = 0; i < 8; ++i) {
    const int64_t seq = draw.Pick({1, draw.Int(2, 40)}), rows = seq * draw.Int(1, 4), vocab = draw.Int(1, 50);
    const int64_t width = draw.Pick({1, 19, 64, draw.Int(2, 300)}), seq_max = seq + draw.Int(0, 5);
    for (const Case& c : EmbeddingCases(draw, rows, seq, vocab, width, seq_max, draw.Bool()))
      Check(backend(), c);
  }
}

// ---- Cross-entropy

TEST_P(OpsConformanceTest, CrossEntropy) {
  Draw draw(14);
  for (int i = 0; i < 12; ++i) {
    const int64_t rows = draw.Pick({1, 2, draw.Int(3, backend().emulated ? 40 : 200)}),
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
    c.shape = absl::StrCat("zero n=", n);
    c.tensors = {{"x", Kind::kInt32, 1, n + 1, 0, std::vector<double>(n + 1, 7), true}};
    c.call = [=](Ops& ops, const std::vector<void*>& p, Workspace) { return ops.Zero(nullptr, p[0], n * 4); };
    Check(backend(), c);
  }
}

}  // namespace
}  // namespace strata::conformance
