// The dispatch's choice carried out, on the emulator.
#include <cmath>
#include <vector>

#include "common/bfloat16.h"
#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device_array.h"
#include "kernels/dispatch/cuda_attention.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

using kx::emu::RangeKind;
using ::testing::HasSubstr;

class Fp8AttentionTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSeq = 100, kHeads = 4, kKvHeads = 2, kDim = 64;
  static std::vector<BFloat16> Draw(int64_t n, uint64_t stream) {
    const CounterRandom random(7, stream);
    std::vector<BFloat16> values(n);
    for (int64_t i = 0; i < n; ++i) values[i] = ToBFloat16(static_cast<float>(random.Normal(i)));
    return values;
  }
  AttentionBackwardArgs Args() {
    AttentionBackwardArgs args;
    AttentionArgs& a = args.forward;
    a = {.batch = 1, .seq = kSeq, .heads = kHeads, .kv_heads = kKvHeads, .head_dim = kDim};
    a.scale = 0.125;
    a.q = q_.data();
    a.k = k_.data();
    a.v = v_.data();
    a.out = out_.data();
    a.lse = lse_.data();
    a.ldq = a.ldo = kHeads * kDim;
    a.ldk = a.ldv = kKvHeads * kDim;
    a.workspace = {workspace_.data(), kWorkspaceBytes};
    return args;
  }
  std::vector<float> Out() const {
    std::vector<float> values;
    for (const BFloat16 x : out_.Values()) values.push_back(ToFloat(x));
    return values;
  }

  const int64_t kWorkspaceBytes =
      AttentionForwardWorkspaceBytes(DType::kBF16, 1, kSeq, kHeads, kKvHeads, kDim);
  DeviceArray<BFloat16> q_{"q", Draw(kSeq* kHeads* kDim, 1), RangeKind::kInput};
  DeviceArray<BFloat16> k_{"k", Draw(kSeq* kKvHeads* kDim, 2), RangeKind::kInput};
  DeviceArray<BFloat16> v_{"v", Draw(kSeq* kKvHeads* kDim, 3), RangeKind::kInput};
  DeviceArray<BFloat16> out_{"out", kSeq* kHeads* kDim, RangeKind::kOutput};
  DeviceArray<float> lse_{"lse", kSeq* kHeads, RangeKind::kOutput};
  DeviceArray<char> workspace_{"workspace", kWorkspaceBytes, RangeKind::kOutput};
};

TEST_F(Fp8AttentionTest, ForcedFp8ComputesInTheWorkspaceOfTheOp) {
  CudaAttention fa3(90, {.forced = AttentionProvider::kFa3});
  CudaAttention fp8(90, {.forced = AttentionProvider::kFa3Fp8});
  ASSERT_EQ(fa3.Forward(nullptr, DType::kBF16, Args().forward), absl::OkStatus());
  const std::vector<float> exact = Out();
  ASSERT_EQ(fp8.Forward(nullptr, DType::kBF16, Args().forward), absl::OkStatus());
  const std::vector<float> rounded = Out();
  double error = 0, size = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(rounded[i] - exact[i], 2);
    size += std::pow(exact[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 0.1);
  EXPECT_GT(error, 0);
}

TEST_F(Fp8AttentionTest, ForcedFp8RefusesTrainingAndAWorkspaceThatIsTooSmall) {
  CudaAttention fp8(90, {.forced = AttentionProvider::kFa3Fp8});
  const absl::Status training = fp8.Backward(nullptr, DType::kBF16, Args());
  EXPECT_EQ(training.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(training.message(), HasSubstr("fa3-fp8: has no backward pass"));
  AttentionArgs args = Args().forward;
  args.workspace.bytes = 1000;
  const absl::Status small = fp8.Forward(nullptr, DType::kBF16, args);
  EXPECT_EQ(small.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(small.message(), HasSubstr("workspace_bytes = 1000 must be at least"));
}

}  // namespace
}  // namespace strata
