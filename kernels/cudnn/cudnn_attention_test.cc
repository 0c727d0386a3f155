#include "kernels/cudnn/cudnn_attention.h"

#include <cmath>
#include <cstdio>
#include <tuple>
#include <vector>

#include "common/bfloat16.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cudnn/cudnn_library.h"
#include "kernels/cudnn/fake_cudnn.h"
#include "kernels/reference/reference_ops.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

// One call, in bf16: q, k and v lie beside each other in rows, as the model has them.
struct Case {
  Case(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t dim) {
    const int64_t width = (heads + 2 * kv_heads) * dim + 8;
    const CounterRandom random(9, 0);
    qkv.resize(static_cast<size_t>(batch * seq * width));
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = ToBFloat16(static_cast<float>(random.Normal(i)));
    out.resize(static_cast<size_t>(batch * seq * heads * dim), ToBFloat16(NAN));
    lse.resize(static_cast<size_t>(batch * seq * heads), NAN);
    workspace.resize(1024);
    args.batch = batch;
    args.seq = seq;
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.head_dim = dim;
    args.scale = 1 / std::sqrt(static_cast<double>(dim));
    args.q = qkv.data();
    args.k = qkv.data() + heads * dim;
    args.v = qkv.data() + (heads + kv_heads) * dim;
    args.ldq = args.ldk = args.ldv = width;
    args.out = out.data();
    args.ldo = heads * dim;
    args.lse = lse.data();
    args.workspace = {workspace.data(), static_cast<int64_t>(workspace.size())};
  }

  std::vector<BFloat16> qkv, out;
  std::vector<float> lse;
  std::vector<std::byte> workspace;
  AttentionArgs args;
};

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

  FakeCudnn fake_;
  std::unique_ptr<CudnnAttention> attention_;
};

TEST_F(CudnnAttentionTest, TheGraphComputesCausalAttention) {
  for (const auto& [batch, seq, heads, kv_heads, dim] :
       {std::tuple(2, 7, 4, 2, 8), std::tuple(1, 1, 1, 1, 16), std::tuple(2, 13, 6, 1, 8),
        std::tuple(1, 20, 2, 2, 24)}) {
    Case actual(batch, seq, heads, kv_heads, dim), expected(batch, seq, heads, kv_heads, dim);
    ASSERT_TRUE(MakeReferenceOps(DType::kBF16)->AttentionForward(nullptr, expected.args).ok());
    const absl::Status ran = attention().Forward(reinterpret_cast<Stream*>(7), DType::kBF16, actual.args);
    ASSERT_TRUE(ran.ok()) << ran;
    EXPECT_EQ(fake_.stream, reinterpret_cast<void*>(7));
    for (size_t i = 0; i < actual.out.size(); ++i)
      EXPECT_NEAR(ToFloat(actual.out[i]), ToFloat(expected.out[i]), 3e-2) << seq << ", " << i;
    for (size_t i = 0; i < actual.lse.size(); ++i) EXPECT_NEAR(actual.lse[i], expected.lse[i], 1e-4) << i;
  }
  EXPECT_EQ(fake_.plans, 4);
}

TEST_F(CudnnAttentionTest, APlanIsBuiltOncePerShape) {
  Case one(1, 4, 2, 1, 8), other(1, 5, 2, 1, 8);
  ASSERT_TRUE(attention().Forward(nullptr, DType::kBF16, one.args).ok());
  ASSERT_TRUE(attention().Forward(nullptr, DType::kBF16, one.args).ok());
  EXPECT_EQ(fake_.plans, 1);
  ASSERT_TRUE(attention().Forward(nullptr, DType::kBF16, other.args).ok());
  EXPECT_EQ(fake_.plans, 2);
}

TEST_F(CudnnAttentionTest, WhatItCannotDoIsUnimplementedWithTheReason) {
  Case some(1, 4, 2, 1, 8);
  EXPECT_EQ(attention().Forward(nullptr, DType::kF32, some.args).code(), absl::StatusCode::kUnimplemented);
  fake_.workspace_bytes = 4096;
  EXPECT_THAT(attention().Forward(nullptr, DType::kBF16, some.args).message(),
              HasSubstr("needs 4096 bytes of workspace, there are 1024"));
  fake_.supported = false;
  Case other(1, 5, 2, 1, 8);
  EXPECT_THAT(attention().Forward(nullptr, DType::kBF16, other.args).message(), HasSubstr("has no engine"));
}

TEST_F(CudnnAttentionTest, EachCallThatFailsIsAnErrorAndNothingLeaks) {
  int64_t failed = 0;
  for (int64_t nth = 1;; ++nth) {
    fake_ = FakeCudnn();
    fake_.fail_call = nth;
    Case some(1, 2, 2, 1, 8);
    const absl::Status status = attention().Forward(nullptr, DType::kBF16, some.args);
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
  EXPECT_GT(failed, 100);
}

TEST_F(CudnnAttentionTest, WithoutADriverItDoesNotStart) {
  fake_.started = false;
  EXPECT_EQ(CudnnAttention::Create(fake_).status().code(), absl::StatusCode::kFailedPrecondition);
}

CudnnAttentionShape ShapeOf(DType dtype, int64_t dim) {
  return {.dtype = dtype,
          .batch = 2,
          .seq = 4096,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = dim,
          .ldq = 48 * dim,
          .ldk = 48 * dim,
          .ldv = 48 * dim,
          .ldo = 32 * dim};
}

TEST_F(CudnnAttentionTest, SupportIsWhatAnyEngineTakes) {
  EXPECT_TRUE(CheckCudnnSupport(fake_, 90, ShapeOf(DType::kBF16, 128)).ok());
  fake_.supported = false;
  const absl::Status none = CheckCudnnSupport(fake_, 80, ShapeOf(DType::kBF16, 128));
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(none.message(),
              HasSubstr("none of 3 engines takes attention forward of bf16, 2 x 4096, 32/8 heads"));
}

TEST(LoadCudnnTest, AMissingLibraryIsNamedWithTheRemedy) {
  const absl::Status missing = LoadCudnn("libnot_cudnn.so.9").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("install cuDNN 9.8"));
  EXPECT_THAT(LoadCudnn("libm.so.6").status().message(), HasSubstr("has no cudnnGetVersion"));
}

// The real library, where it is, on devices that are not there.
TEST(RealCudnnTest, ItsEnginesTakeTheGraph) {
  const auto cudnn = LoadCudnn();
  if (!cudnn.ok()) GTEST_SKIP() << cudnn.status();
  std::printf("cuDNN %zu\n", (*cudnn)->GetVersion());
  for (const int arch : {80, 90}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const int64_t dim : {64, 96, 128}) {
        const absl::Status supported = CheckCudnnSupport(**cudnn, arch, ShapeOf(dtype, dim));
        EXPECT_TRUE(supported.ok()) << arch << ": " << supported;
      }
    }
  }
}

}  // namespace
}  // namespace strata
