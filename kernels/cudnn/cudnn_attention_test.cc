#include "kernels/cudnn/cudnn_attention.h"

#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "common/bfloat16.h"
#include "common/float16.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/attention/ref.h"
#include "kernels/cudnn/cudnn_library.h"
#include "kernels/cudnn/fake_cudnn.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

struct Problem {
  int64_t batch, seq, heads, kv_heads, dim;
  int64_t window = 0;
};

// One call: q, k and v lie beside each other in rows, as the model has them, and so do their gradients.
template <typename T>
struct Case {
  explicit Case(const Problem& problem)
      : p(problem), width((p.heads + 2 * p.kv_heads) * p.dim + 8), out_width(p.heads * p.dim) {
    const CounterRandom random(9, 0);
    uint64_t drawn = 0;
    const auto normal = [&] { return Stored(static_cast<float>(random.Normal(drawn++))); };
    qkv.resize(rows() * width);
    for (T& x : qkv) x = normal();
    dout.resize(rows() * out_width);
    for (T& x : dout) x = normal();
    dqkv.resize(rows() * width, Stored(NAN));
    out.resize(rows() * out_width, Stored(NAN));
    lse.resize(static_cast<size_t>(p.batch * p.seq * p.heads), NAN);
    workspace.resize(1 << 16);
    AttentionArgs& f = args.forward;
    f.batch = p.batch;
    f.seq = p.seq;
    f.heads = p.heads;
    f.kv_heads = p.kv_heads;
    f.head_dim = p.dim;
    f.scale = 1 / std::sqrt(static_cast<double>(p.dim));
    f.q = qkv.data();
    f.k = qkv.data() + KOffset();
    f.v = qkv.data() + VOffset();
    f.ldq = f.ldk = f.ldv = width;
    f.out = out.data();
    f.ldo = args.lddo = out_width;
    f.lse = lse.data();
    f.workspace = {workspace.data(), static_cast<int64_t>(workspace.size())};
    args.dout = dout.data();
    args.dq = dqkv.data();
    args.dk = dqkv.data() + KOffset();
    args.dv = dqkv.data() + VOffset();
    args.lddq = args.lddk = args.lddv = width;
  }
  static T Stored(float x) {
    if constexpr (std::is_same_v<T, BFloat16>) return ToBFloat16(x);
    if constexpr (std::is_same_v<T, Float16>) return ToFloat16(x);
  }
  static constexpr DType kType = std::is_same_v<T, BFloat16> ? DType::kBF16 : DType::kF16;
  size_t rows() const { return static_cast<size_t>(p.batch * p.seq); }
  int64_t KOffset() const { return p.heads * p.dim; }
  int64_t VOffset() const { return (p.heads + p.kv_heads) * p.dim; }

  // `columns` of each row from `offset` on.
  std::vector<double> Part(const std::vector<T>& from, int64_t ld, int64_t offset, int64_t columns) const {
    std::vector<double> part;
    for (size_t r = 0; r < rows(); ++r) {
      for (int64_t c = 0; c < columns; ++c)
        part.push_back(ToFloat(from[r * static_cast<size_t>(ld) + static_cast<size_t>(offset + c)]));
    }
    return part;
  }
  attention::ReferenceResult Expected() const {
    attention::ReferenceInputs in;
    in.shape.batch = static_cast<int32_t>(p.batch);
    in.shape.heads = static_cast<int32_t>(p.heads);
    in.shape.kv_heads = static_cast<int32_t>(p.kv_heads);
    in.shape.head_dim = static_cast<int32_t>(p.dim);
    in.shape.seq_q = in.shape.seq_k = static_cast<int32_t>(p.seq);
    in.shape.total_q = in.shape.total_k = static_cast<int32_t>(rows());
    in.shape.right = 0;
    if (p.window > 0) in.shape.left = static_cast<int32_t>(p.window - 1);
    in.shape.scale = static_cast<float>(args.forward.scale);
    for (int64_t b = 0; b <= p.batch; ++b) in.cu_q.push_back(static_cast<int32_t>(b * p.seq));
    in.cu_k = in.cu_q;
    in.q = Part(qkv, width, 0, p.heads * p.dim);
    in.k = Part(qkv, width, KOffset(), p.kv_heads * p.dim);
    in.v = Part(qkv, width, VOffset(), p.kv_heads * p.dim);
    in.dout = Part(dout, out_width, 0, out_width);
    return attention::ReferenceAttention(in, [](double x) { return x; });
  }

  Problem p;
  int64_t width, out_width;
  std::vector<T> qkv, dqkv, out, dout;
  std::vector<float> lse;
  std::vector<std::byte> workspace;
  AttentionBackwardArgs args;
};

void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance,
                const char* what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << what << " " << i;
  }
}

class CudnnAttentionTest : public ::testing::Test {
 protected:
  CudnnAttention& attention() {
    if (attention_ == nullptr) attention_ = *CudnnAttention::Create(fake_);
    return *attention_;
  }
  void TearDown() override {
    attention_.reset();
    EXPECT_EQ(fake_.objects, 0);
  }
  // Forward, then backward from what it left, both beside the definition.
  template <typename T>
  void ExpectBothPasses(const Problem& problem, bool deterministic, double tolerance) {
    SCOPED_TRACE(absl::StrCat(Name(Case<T>::kType), " ", problem.batch, " x ", problem.seq, ", ",
                              problem.heads, "/", problem.kv_heads, " of ", problem.dim, ", window ",
                              problem.window));
    Case<T> c(problem);
    const attention::ReferenceResult expected = c.Expected();
    const CudnnAttentionOptions options{.window = problem.window, .deterministic = deterministic};
    absl::Status ran = attention().Forward(reinterpret_cast<Stream*>(7), c.kType, c.args.forward, options);
    ASSERT_TRUE(ran.ok()) << ran;
    EXPECT_EQ(fake_.stream, reinterpret_cast<void*>(7));
    ExpectNear(c.Part(c.out, c.out_width, 0, c.out_width), expected.out, tolerance, "out");
    ExpectNear({c.lse.begin(), c.lse.end()}, expected.lse, 1e-4, "lse");
    if (problem.seq == 1) return;
    ran = attention().Backward(reinterpret_cast<Stream*>(8), c.kType, c.args, options);
    ASSERT_TRUE(ran.ok()) << ran;
    EXPECT_EQ(fake_.stream, reinterpret_cast<void*>(8));
    ExpectNear(c.Part(c.dqkv, c.width, 0, problem.heads * problem.dim), expected.dq, tolerance, "dq");
    ExpectNear(c.Part(c.dqkv, c.width, c.KOffset(), problem.kv_heads * problem.dim), expected.dk, tolerance,
               "dk");
    ExpectNear(c.Part(c.dqkv, c.width, c.VOffset(), problem.kv_heads * problem.dim), expected.dv, tolerance,
               "dv");
    // Nothing is written between the rows.
    EXPECT_TRUE(std::isnan(ToFloat(c.dqkv[static_cast<size_t>(c.width - 1)])));
  }

  FakeCudnn fake_;
  std::unique_ptr<CudnnAttention> attention_;
};

using Bf16 = Case<BFloat16>;

TEST_F(CudnnAttentionTest, TheGraphsComputeCausalAttentionAndItsGradients) {
  for (const Problem& problem :
       {Problem{2, 7, 4, 2, 8}, Problem{1, 1, 1, 1, 16}, Problem{2, 13, 6, 1, 8}, Problem{1, 20, 2, 2, 24},
        Problem{2, 9, 4, 2, 8, 3}, Problem{1, 12, 2, 2, 8, 1}, Problem{1, 6, 2, 1, 8, 20}}) {
    for (const bool deterministic : {true, false}) {
      ExpectBothPasses<BFloat16>(problem, deterministic, 3e-2);
      ExpectBothPasses<Float16>(problem, deterministic, 4e-3);
    }
  }
}

TEST_F(CudnnAttentionTest, APlanIsBuiltOncePerShapeAndPass) {
  Bf16 one({1, 4, 2, 1, 8}), other({1, 5, 2, 1, 8});
  const auto forward = [&](Bf16& c) { return attention().Forward(nullptr, DType::kBF16, c.args.forward); };
  const auto backward = [&](Bf16& c, const CudnnAttentionOptions& options) {
    return attention().Backward(nullptr, DType::kBF16, c.args, options);
  };
  ASSERT_TRUE(forward(one).ok());
  ASSERT_TRUE(forward(one).ok());
  EXPECT_EQ(fake_.plans, 1);
  ASSERT_TRUE(forward(other).ok());
  EXPECT_EQ(fake_.plans, 2);
  ASSERT_TRUE(backward(one, {}).ok());
  ASSERT_TRUE(backward(one, {}).ok());
  EXPECT_EQ(fake_.plans, 3);
  ASSERT_TRUE(backward(one, {.deterministic = false}).ok());
  ASSERT_TRUE(backward(one, {.window = 2}).ok());
  EXPECT_EQ(fake_.plans, 5);
}

TEST_F(CudnnAttentionTest, WhatItCannotDoIsUnimplementedWithTheReason) {
  Bf16 some({1, 4, 2, 1, 8});
  EXPECT_EQ(attention().Forward(nullptr, DType::kF32, some.args.forward).code(),
            absl::StatusCode::kUnimplemented);
  fake_.workspace_bytes = 1 << 20;
  EXPECT_THAT(attention().Forward(nullptr, DType::kBF16, some.args.forward).message(),
              HasSubstr("needs 1048576 bytes of workspace, there are 65536"));
  fake_.supported = false;
  Bf16 other({1, 5, 2, 1, 8});
  const absl::Status none = attention().Backward(nullptr, DType::kBF16, other.args);
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(none.message(),
              HasSubstr("none of 3 engine configurations takes attention backward of bf16, 1 x 5, "
                        "2/1 heads of 8, deterministic: d > 64"));
}

TEST_F(CudnnAttentionTest, TheBackwardPassesScratchIsPartOfWhatItAsksOfTheWorkspace) {
  Bf16 some({2, 6, 4, 2, 8});
  fake_.workspace_bytes = 1000;
  // Row sums: 2 * 4 * 6 floats, rounded up to 256; sums of dQ: 8 times as many.
  EXPECT_EQ(*attention().BackwardWorkspaceBytes(DType::kBF16, some.args), 256 + 1000);
  const CudnnAttentionOptions any_order{.deterministic = false};
  EXPECT_EQ(*attention().BackwardWorkspaceBytes(DType::kBF16, some.args, any_order), 256 + 1536 + 1000);
  some.args.forward.workspace.bytes = 256 + 1536 + 1000;
  EXPECT_TRUE(attention().Backward(nullptr, DType::kBF16, some.args, any_order).ok());
  --some.args.forward.workspace.bytes;
  EXPECT_EQ(attention().Backward(nullptr, DType::kBF16, some.args, any_order).code(),
            absl::StatusCode::kUnimplemented);
}

TEST_F(CudnnAttentionTest, FaultsOfOldVersionsAreNotMet) {
  Bf16 odd({1, 100, 1, 1, 8}), even({1, 128, 1, 1, 8}), one({1, 1, 1, 1, 8});
  const auto backward = [&](size_t version, Bf16& c) {
    fake_.version = version;
    attention_.reset();
    return attention().BackwardWorkspaceBytes(DType::kBF16, c.args).status();
  };
  EXPECT_THAT(backward(91000, even).message(), HasSubstr("install 9.10.2 or newer"));
  EXPECT_TRUE(backward(91002, even).ok());
  EXPECT_THAT(backward(91500, odd).message(), HasSubstr("multiples of 128 tokens, not of 100; install 9.16"));
  EXPECT_TRUE(backward(91600, odd).ok());
  EXPECT_THAT(backward(91900, one).message(), HasSubstr("one token"));
  EXPECT_EQ(backward(91900, one).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(CudnnAttentionTest, NumbersAreBoundAsTheVersionWantsThem) {
  for (const auto& [version, hidden] : {std::pair<size_t, float>{90800, std::numeric_limits<float>::lowest()},
                                        {90900, std::numeric_limits<float>::lowest()},
                                        {91000, -std::numeric_limits<float>::infinity()},
                                        {91900, -std::numeric_limits<float>::infinity()}}) {
    fake_.version = version;
    Bf16 c({1, 9, 2, 1, 8});
    ASSERT_TRUE(attention().Forward(nullptr, DType::kBF16, c.args.forward, {.window = 3}).ok());
    EXPECT_EQ(fake_.numbers[kCudnnHidden], hidden) << version;
    EXPECT_EQ(fake_.numbers[kCudnnWindow], 3) << version;
  }
}

TEST_F(CudnnAttentionTest, EachCallThatFailsIsAnErrorAndNothingLeaks) {
  for (const bool backward : {false, true}) {
    int64_t failed = 0;
    for (int64_t nth = 1;; ++nth) {
      fake_ = FakeCudnn();
      fake_.fail_call = nth;
      Bf16 some({1, 2, 2, 1, 8});
      const absl::Status status = backward ? attention().Backward(nullptr, DType::kBF16, some.args,
                                                                  {.window = 1, .deterministic = false})
                                           : attention().Forward(nullptr, DType::kBF16, some.args.forward);
      const bool fired = fake_.calls > nth;
      attention_.reset();
      EXPECT_EQ(fake_.objects, 0) << nth;
      if (!fired) {
        EXPECT_TRUE(status.ok()) << status;
        break;
      }
      ++failed;
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << nth << status;
      EXPECT_THAT(status.message(), HasSubstr("a reason"));
    }
    EXPECT_GT(failed, backward ? 300 : 100);
  }
}

TEST_F(CudnnAttentionTest, WithoutADriverItDoesNotStart) {
  fake_.started = false;
  EXPECT_EQ(CudnnAttention::Create(fake_).status().code(), absl::StatusCode::kFailedPrecondition);
}

CudnnAttentionShape ShapeOf(DType dtype, int64_t dim, bool backward) {
  return {.dtype = dtype,
          .batch = 2,
          .seq = 4096,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = dim,
          .ldq = 48 * dim,
          .ldk = 48 * dim,
          .ldv = 48 * dim,
          .ldo = 32 * dim,
          .backward = backward,
          .lddo = 32 * dim,
          .lddq = 48 * dim,
          .lddk = 48 * dim,
          .lddv = 48 * dim};
}

TEST_F(CudnnAttentionTest, SupportIsWhatAnyEngineTakes) {
  EXPECT_TRUE(CheckCudnnSupport(fake_, 90, ShapeOf(DType::kBF16, 128, false)).ok());
  EXPECT_EQ(CheckCudnnSupport(fake_, 90, ShapeOf(DType::kF32, 128, false)).code(),
            absl::StatusCode::kUnimplemented);
  fake_.supported = false;
  const absl::Status none = CheckCudnnSupport(fake_, 80, ShapeOf(DType::kBF16, 128, false));
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(none.message(),
              HasSubstr("compute capability 8.0: cuDNN 91900: none of 3 engine configurations "
                        "takes attention forward of bf16, 2 x 4096, 32/8 heads of 128: d > 64"));
}

TEST_F(CudnnAttentionTest, WithoutADriverSupportIsWhatEnginesKnowByItsPattern) {
  fake_.driver = false;
  EXPECT_TRUE(CheckCudnnSupport(fake_, 90, ShapeOf(DType::kBF16, 128, true)).ok());
}

TEST(LoadCudnnTest, AMissingLibraryIsNamedWithTheRemedy) {
  const absl::Status missing = LoadCudnn("libnot_cudnn.so.9").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("install cuDNN 9.8"));
  EXPECT_THAT(LoadCudnn("libm.so.6").status().message(), HasSubstr("has no cudnnGetVersion"));
}

// The real library, where it is, on devices that are not there. With the toolkit's stub of the driver engines
// build their kernels, and see every limit.
class RealCudnnTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef STRATA_SANITIZE
    GTEST_SKIP() << "the library keeps memory to the end of the process, which a sanitizer calls a leak";
#endif
    const char* const stub = std::getenv("STRATA_CUDA_DRIVER_STUB");
    driver_ = dlopen("libcuda.so.1", RTLD_NOW) != nullptr ||
              (stub != nullptr && dlopen(stub, RTLD_NOW | RTLD_GLOBAL) != nullptr);
    const auto cudnn = LoadCudnn();
    if (!cudnn.ok()) GTEST_SKIP() << cudnn.status();
    cudnn_ = *cudnn;
    std::printf("cuDNN %zu, %s\n", cudnn_->GetVersion(), driver_ ? "kernels are built" : "no driver or stub");
  }

  bool driver_ = false;
  CudnnApi* cudnn_ = nullptr;
};

TEST_F(RealCudnnTest, ItsEnginesTakeTheGraphs) {
  for (const int arch : {80, 90}) {
    for (const bool backward : {false, true}) {
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        for (const int64_t dim : {64, 96, 128}) {
          const absl::Status supported = CheckCudnnSupport(*cudnn_, arch, ShapeOf(dtype, dim, backward));
          EXPECT_TRUE(supported.ok()) << arch << ": " << supported;
        }
      }
    }
    CudnnAttentionShape other = ShapeOf(DType::kBF16, 128, true);
    other.deterministic = false;
    EXPECT_TRUE(CheckCudnnSupport(*cudnn_, arch, other).ok());
    other.window = 512;
    EXPECT_TRUE(CheckCudnnSupport(*cudnn_, arch, other).ok());
    other.kv_heads = other.heads;
    EXPECT_TRUE(CheckCudnnSupport(*cudnn_, arch, other).ok());
    other.backward = false;
    EXPECT_TRUE(CheckCudnnSupport(*cudnn_, arch, other).ok());
  }
}

TEST_F(RealCudnnTest, ItsLimitsComeWithItsReasons) {
  if (!driver_) GTEST_SKIP() << "engines see limits after they have loaded a driver or its stub";
  EXPECT_TRUE(CheckCudnnSupport(*cudnn_, 90, ShapeOf(DType::kBF16, 256, true)).ok());
  EXPECT_THAT(CheckCudnnSupport(*cudnn_, 80, ShapeOf(DType::kBF16, 256, true)).message(),
              HasSubstr("d_qk > 128"));
  EXPECT_THAT(CheckCudnnSupport(*cudnn_, 90, ShapeOf(DType::kBF16, 264, true)).message(),
              HasSubstr("d_qk > 256"));
  EXPECT_THAT(CheckCudnnSupport(*cudnn_, 90, ShapeOf(DType::kBF16, 100, true)).message(),
              HasSubstr("d_qk % 8 != 0"));
  EXPECT_EQ(CheckCudnnSupport(*cudnn_, 75, ShapeOf(DType::kF16, 128, true)).code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace strata
