#include "kernels/cublaslt/cublaslt_gemm.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "common/bfloat16.h"
#include "common/float16.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cublaslt/cublaslt_library.h"
#include "kernels/cublaslt/fake_cublaslt.h"
#include "kernels/reference/reference_ops.h"

namespace strata {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A matrix of `dtype`: rows of `ld` elements, the gaps between them NaN.
struct Matrix {
  Matrix(DType dtype, int64_t rows, int64_t columns, int64_t ld, uint64_t seed) : dtype(dtype), ld(ld) {
    const CounterRandom random(seed, 0);
    bytes.resize(static_cast<size_t>(rows * ld * SizeOf(dtype)));
    for (int64_t i = 0; i < rows * ld; ++i) {
      Set(i, i % ld < columns ? static_cast<float>(random.Uniform(static_cast<uint64_t>(i)) - 0.5) : NAN);
    }
  }
  void Set(int64_t index, float value) {
    if (dtype == DType::kF32) reinterpret_cast<float*>(bytes.data())[index] = value;
    if (dtype == DType::kF16) reinterpret_cast<Float16*>(bytes.data())[index] = ToFloat16(value);
    if (dtype == DType::kBF16) reinterpret_cast<BFloat16*>(bytes.data())[index] = ToBFloat16(value);
  }
  float Get(int64_t index) const {
    if (dtype == DType::kF16) return ToFloat(reinterpret_cast<const Float16*>(bytes.data())[index]);
    if (dtype == DType::kBF16) return ToFloat(reinterpret_cast<const BFloat16*>(bytes.data())[index]);
    return reinterpret_cast<const float*>(bytes.data())[index];
  }
  void* data() { return bytes.data(); }

  DType dtype;
  int64_t ld;
  std::vector<std::byte> bytes;
};

class CublasLtGemmTest : public ::testing::Test {
 protected:
  CublasLtGemm& gemm() {
    if (gemm_ == nullptr) gemm_ = *CublasLtGemm::Create(fake_);
    return *gemm_;
  }
  void TearDown() override {
    gemm_.reset();
    EXPECT_EQ(fake_.objects, 0);
  }
  absl::Status RunSmall(int64_t m = 4, int64_t n = 8, int64_t k = 8, int64_t workspace = 0,
                        int64_t offset = 0) {
    alignas(256) static std::byte memory[3][8192];
    GemmArgs args;
    args.m = m;
    args.n = n;
    args.k = k;
    args.a = memory[0] + offset;
    args.b = memory[1];
    args.c = memory[2];
    args.lda = k;
    args.ldb = n;
    args.ldc = n;
    args.workspace = {memory[0], workspace};
    return gemm().Gemm(nullptr, DType::kBF16, args);
  }

  FakeCublasLt fake_;
  std::unique_ptr<CublasLtGemm> gemm_;
};

TEST_F(CublasLtGemmTest, AgreesWithTheReferenceInEveryFormOfAGemm) {
  constexpr int64_t kM = 5, kN = 7, kK = 11;
  uint64_t seed = 1;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto reference = MakeReferenceOps(dtype);
    for (int form = 0; form < 32; ++form) {
      const bool transpose_a = form & 1, transpose_b = form & 2, c_is_acc = form & 4, accumulate = form & 8,
                 bias = form & 16;
      if (c_is_acc && bias) continue;  // Validate refuses it
      Matrix a(dtype, transpose_a ? kK : kM, transpose_a ? kM : kK, transpose_a ? kM + 1 : kK + 2, ++seed);
      Matrix b(dtype, transpose_b ? kN : kK, transpose_b ? kK : kN, transpose_b ? kK + 3 : kN, ++seed);
      Matrix c(c_is_acc ? DType::kF32 : dtype, kM, kN, kN + 4, ++seed);
      Matrix bias_vector(dtype, 1, kN, kN, ++seed);
      Matrix expected = c;
      GemmArgs args;
      args.m = kM;
      args.n = kN;
      args.k = kK;
      args.a = a.data();
      args.lda = a.ld;
      args.transpose_a = transpose_a;
      args.b = b.data();
      args.ldb = b.ld;
      args.transpose_b = transpose_b;
      args.c = expected.data();
      args.ldc = c.ld;
      args.c_is_acc = c_is_acc;
      args.accumulate = accumulate;
      if (bias) args.bias = bias_vector.data();
      ASSERT_TRUE(reference->Gemm(nullptr, args).ok());
      args.c = c.data();
      ASSERT_TRUE(gemm().Gemm(nullptr, dtype, args).ok());
      const float tolerance = c.dtype == DType::kF32 ? 1e-5f : c.dtype == DType::kF16 ? 2e-3f : 2e-2f;
      for (int64_t i = 0; i < kM * c.ld; ++i) {
        if (i % c.ld >= kN) {
          EXPECT_TRUE(std::isnan(c.Get(i))) << form;  // between the rows
        } else {
          EXPECT_NEAR(c.Get(i), expected.Get(i), tolerance) << Name(dtype) << ", form " << form << ", " << i;
        }
      }
    }
  }
}

TEST_F(CublasLtGemmTest, TheHeuristicsAreAskedOncePerShapeAndTheChoiceStays) {
  ASSERT_TRUE(RunSmall().ok());
  fake_.offers = {{.id = 7}};
  ASSERT_TRUE(RunSmall().ok());
  EXPECT_EQ(fake_.heuristics, 1);
  ASSERT_TRUE(RunSmall(8).ok());
  ASSERT_TRUE(RunSmall(4, 8, 8, 4096).ok());
  ASSERT_TRUE(RunSmall(4, 8, 8, 0, /*offset=*/16).ok());  // of another alignment
  EXPECT_EQ(fake_.heuristics, 4);
  EXPECT_THAT(fake_.used, ElementsAre(66, 66, 7, 7, 7));
  const std::vector<GemmChoice> choices = gemm().Choices();
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[0].shape, "bf16 4 x 8 x 8, to bf16");
  EXPECT_THAT(choices[0].algorithm, HasSubstr("algorithm "));
}

TEST_F(CublasLtGemmTest, EachChoiceIsLoggedOnceInItsWords) {
  std::vector<std::string> lines;
  gemm_ = *CublasLtGemm::Create(fake_, [&](const std::string& line) { lines.push_back(line); });
  ASSERT_TRUE(RunSmall().ok());
  ASSERT_TRUE(RunSmall().ok());
  ASSERT_TRUE(RunSmall(4, 8, 8, 0, /*offset=*/16).ok());  // another choice, in the same words
  ASSERT_EQ(gemm().Choices().size(), 2u);
  ASSERT_TRUE(RunSmall(8).ok());
  EXPECT_THAT(lines, ElementsAre(HasSubstr("gemm of bf16 4 x 8 x 8, to bf16: algorithm 66 "),
                                 HasSubstr("gemm of bf16 8 x 8 x 8, to bf16: algorithm 66 ")));
}

TEST_F(CublasLtGemmTest, AlgorithmsThatSplitTheSumOrNeedMoreWorkspaceAreNotTaken) {
  fake_.offers = {{.id = 1, .split_k = 4},
                  {.id = 2, .workspace_bytes = 4097},
                  {.id = 3, .state = cublaslt::kNotSupported},
                  {.id = 4, .workspace_bytes = 4096}};
  ASSERT_TRUE(RunSmall(4, 8, 8, 4096).ok());
  EXPECT_THAT(fake_.used, ElementsAre(4));
  EXPECT_EQ(fake_.reduction_mask, cublaslt::kReductionNone);
  const absl::Status none = RunSmall(4, 8, 8, 4095);
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(none.message(),
              HasSubstr("no deterministic algorithm for bf16 4 x 8 x 8, to bf16 with 4095 bytes"));
  EXPECT_THAT(none.message(), HasSubstr("it offered 4"));
  fake_.offers = {};
  EXPECT_EQ(RunSmall(12).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(CublasLtGemmTest, EachCallThatFailsIsAnErrorAndNothingLeaks) {
  int64_t failed = 0;
  for (int64_t nth = 1;; ++nth) {
    fake_ = FakeCublasLt();
    fake_.fail_call = nth;
    const absl::Status status = RunSmall();
    const bool fired = fake_.calls > nth;
    gemm_.reset();
    EXPECT_EQ(fake_.objects, 0) << nth;
    if (!fired) {
      EXPECT_TRUE(status.ok());
      break;
    }
    ++failed;
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << nth << status;
    EXPECT_THAT(status.message(), HasSubstr("CUBLAS_STATUS_EXECUTION_FAILED (13)"));
  }
  EXPECT_GT(failed, 8);
}

TEST_F(CublasLtGemmTest, WithoutADriverItDoesNotStart) {
  fake_.started = false;
  const absl::Status status = CublasLtGemm::Create(fake_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("cuBLASLt does not start: CUBLAS_STATUS_NOT_INITIALIZED"));
}

TEST_F(CublasLtGemmTest, Fp8HasOneScalePerTensor) {
  constexpr int64_t kM = 3, kN = 16, kK = 32;
  alignas(256) uint8_t a[kM * kK], b[kN * kK];
  alignas(256) float c[kM * kN];
  const CounterRandom random(3, 0);
  for (int i = 0; i < kM * kK; ++i) a[i] = static_cast<uint8_t>(random.Below(i, 0x70));
  for (int i = 0; i < kN * kK; ++i) b[i] = static_cast<uint8_t>(0x80 | random.Below(1000 + i, 0x60));
  const float a_scale = 0.25f, b_scale = 3;
  Fp8GemmArgs args;
  args.m = kM;
  args.n = kN;
  args.k = kK;
  args.a = a;
  args.lda = kK;
  args.a_scale = &a_scale;
  args.b = b;
  args.ldb = kK;
  args.b_type = Fp8::kE5M2;
  args.b_scale = &b_scale;
  args.c = c;
  args.ldc = kN;
  args.c_type = DType::kF32;
  ASSERT_TRUE(gemm().Fp8Gemm(nullptr, args).ok());
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double expected = 0;
      for (int64_t l = 0; l < kK; ++l) {
        expected += double{DecodeFp8(cublaslt::kR8FE4M3, a[i * kK + l])} *
                    DecodeFp8(cublaslt::kR8FE5M2, b[j * kK + l]);
      }
      expected *= a_scale * b_scale;
      EXPECT_NEAR(c[i * kN + j], expected, 1e-4 * std::abs(expected)) << i << " " << j;
    }
  }
  EXPECT_EQ(gemm().Choices()[0].shape, "fp8 e4m3 and fp8 e5m2 3 x 16 x 32, b transposed, to fp32");
  const float once = c[5];
  args.accumulate = true;
  ASSERT_TRUE(gemm().Fp8Gemm(nullptr, args).ok());
  EXPECT_NEAR(c[5], 2 * once, 1e-4 * std::abs(once));

  const auto refused = [&](auto change) {
    Fp8GemmArgs wrong = args;
    change(wrong);
    const absl::Status status = gemm().Fp8Gemm(nullptr, wrong);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  refused([](Fp8GemmArgs& w) { w.k = 24; });
  refused([](Fp8GemmArgs& w) { w.n = 8; });
  refused([](Fp8GemmArgs& w) { w.m = 0; });
  refused([](Fp8GemmArgs& w) { w.ldb = 40; });
  refused([](Fp8GemmArgs& w) { w.a_scale = nullptr; });
  refused([](Fp8GemmArgs& w) { w.a_type = Fp8::kE5M2; });
  refused([&](Fp8GemmArgs& w) { w.bias = c; });
  refused([](Fp8GemmArgs& w) { w.a = static_cast<const uint8_t*>(w.a) + 1; });
}

TEST(DecodeFp8Test, KnowsTheFormats) {
  EXPECT_EQ(DecodeFp8(cublaslt::kR8FE4M3, 0x38), 1.0f);
  EXPECT_EQ(DecodeFp8(cublaslt::kR8FE4M3, 0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(DecodeFp8(cublaslt::kR8FE4M3, 0x7f)));
  EXPECT_EQ(DecodeFp8(cublaslt::kR8FE4M3, 0x81), -std::ldexp(1.0f, -9));
  EXPECT_EQ(DecodeFp8(cublaslt::kR8FE5M2, 0x3c), 1.0f);
  EXPECT_EQ(DecodeFp8(cublaslt::kR8FE5M2, 0x7b), 57344.0f);
  EXPECT_TRUE(std::isinf(DecodeFp8(cublaslt::kR8FE5M2, 0x7c)));
}

TEST(LoadCublasLtTest, AMissingLibraryIsNamedWithTheRemedy) {
  const absl::Status missing = LoadCublasLt({"libnot_cublas_lt.so.1"}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("libnot_cublas_lt.so.1"));
  EXPECT_THAT(missing.message(), HasSubstr("install cuBLAS 13"));
  // A library that is there and is another one.
  EXPECT_THAT(LoadCublasLt({"libm.so.6"}).status().message(), HasSubstr("has no cublasLtGetVersion"));
}

// The real library, where it is. Last: once it is loaded, it is what every load gives.
TEST(RealCublasLtTest, HasEverySymbolAndNeedsADriverToStart) {
  const auto library = LoadCublasLt();
  if (!library.ok()) GTEST_SKIP() << library.status();
  std::printf("cuBLASLt %zu\n", (*library)->GetVersion());
  EXPECT_GE((*library)->GetVersion(), 130000u);
  if (access("/dev/nvidiactl", F_OK) == 0) GTEST_SKIP() << "there is a driver; tests/gpu runs on it";
  EXPECT_EQ(CublasLtGemm::Create(**library).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace strata
