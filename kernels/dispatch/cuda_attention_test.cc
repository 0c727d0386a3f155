#include "kernels/dispatch/cuda_attention.h"

#include <vector>

#include "common/bfloat16.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cudnn/fake_cudnn.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

// A call of one sequence of four rows, with room for everything.
struct Call {
  Call() {
    for (auto* m : {&q, &k, &v, &out, &dout, &dq, &dk, &dv}) m->resize(4 * 16);
    AttentionArgs& f = args.forward;
    f = {.batch = 1, .seq = 4, .heads = 2, .kv_heads = 2, .head_dim = 8, .scale = 1};
    f.q = q.data();
    f.k = k.data();
    f.v = v.data();
    f.out = out.data();
    f.lse = lse.data();
    f.workspace = {workspace.data(), static_cast<int64_t>(workspace.size())};
    args.dout = dout.data();
    args.dq = dq.data();
    args.dk = dk.data();
    args.dv = dv.data();
    f.ldq = f.ldk = f.ldv = f.ldo = args.lddo = args.lddq = args.lddk = args.lddv = 16;
  }

  std::vector<BFloat16> q, k, v, out, dout, dq, dk, dv;
  std::vector<float> lse = std::vector<float>(8);
  std::vector<std::byte> workspace = std::vector<std::byte>(8192);
  AttentionBackwardArgs args;
};

TEST(CudaAttentionTest, CudnnForcedRunsBothPasses) {
  FakeCudnn fake;
  const auto cudnn = *CudnnAttention::Create(fake);
  CudaAttention attention(90, {.forced = AttentionProvider::kCudnn, .cudnn_why_not = ""}, cudnn.get());
  Call call;
  ASSERT_TRUE(attention.Forward(nullptr, DType::kBF16, call.args.forward).ok());
  EXPECT_EQ(fake.plans, 1);
  ASSERT_TRUE(attention.Backward(nullptr, DType::kBF16, call.args).ok());
  EXPECT_EQ(fake.plans, 2);
}

TEST(CudaAttentionTest, CudnnForcedAndUnableIsRefusedWithTheReason) {
  FakeCudnn fake;
  const auto cudnn = *CudnnAttention::Create(fake);
  Call call;
  CudaAttention old(75, {.forced = AttentionProvider::kCudnn, .cudnn_why_not = ""}, cudnn.get());
  const absl::Status refused = old.Backward(nullptr, DType::kBF16, call.args);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(),
              HasSubstr("cudnn is forced and cannot: cudnn: needs compute capability 8.0"));
  // What only the library knows: the deterministic backward pass wants more than there is.
  fake.workspace_bytes = 1 << 20;
  CudaAttention attention(90, {.forced = AttentionProvider::kCudnn, .cudnn_why_not = ""}, cudnn.get());
  const absl::Status large = attention.Backward(nullptr, DType::kBF16, call.args);
  EXPECT_EQ(large.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(large.message(), HasSubstr("deterministic needs 1048832 bytes of workspace, there are 8192"));
}

TEST(CudaAttentionTest, WithoutForceTheOwnKernelsRunAndCudnnIsNotAsked) {
  FakeCudnn fake;
  const auto cudnn = *CudnnAttention::Create(fake);
  CudaAttention attention(80, {.cudnn_why_not = ""}, cudnn.get());
  Call call;
  ASSERT_TRUE(attention.Forward(nullptr, DType::kBF16, call.args.forward).ok());
  ASSERT_TRUE(attention.Backward(nullptr, DType::kBF16, call.args).ok());
  EXPECT_EQ(fake.plans, 0);
}

}  // namespace
}  // namespace strata
