// Kernels that no op of kernels/ops.h or kernels/state_ops.h has: dropout, the fused residual norm, eight-bit
// states.
#include "gtest/gtest.h"
#include "kernels/cuda/kernel_checks.h"
#include "kernels/elementwise/launch.h"
#include "kernels/kx/emu/emu.h"

namespace strata {
namespace {

using conformance::Draw;

class KernelsWithoutOp : public ::testing::TestWithParam<kx::emu::Order> {
 protected:
  static kx::emu::Options Strict() {
    kx::emu::Options options;
    options.order = GetParam();
    options.seed = Draw::Seed();
    options.only_registered = true;
    return options;
  }
  const kx::emu::Session session_{Strict()};
};

TEST_P(KernelsWithoutOp, DropoutDrawsByPosition) {
  Draw draw(201);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const double drop : {0.0, 0.1, 0.75}) {
      const int64_t n = draw.Pick({1, 8, draw.Int(2, 100), draw.Int(2000, 2100)});
      EXPECT_EQ(
          CheckDropout(draw, dtype, n, draw.Pick({0, 4, draw.Int(1, 50), (int64_t{1} << 35) + 3}), drop), "");
    }
  }
}

TEST_P(KernelsWithoutOp, DropoutRefusesWhatCannotBe) {
  for (const gpu::DropoutDraw& bad :
       {gpu::DropoutDraw{.drop = 1}, gpu::DropoutDraw{.drop = -0.1}, gpu::DropoutDraw{.first = -1},
        gpu::DropoutDraw{.drop = std::nan("")}}) {
    const kx::LaunchStatus status = gpu::Dropout(nullptr, DType::kF32, bad, 4, nullptr, nullptr);
    EXPECT_NE(status.code, 0);
    EXPECT_NE(status.message.find("0 <= drop < 1"), std::string::npos) << status.message;
  }
}

TEST_P(KernelsWithoutOp, AddNormIsAddThenNorm) {
  Draw draw(202);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
      EXPECT_EQ(CheckAddNorm(draw, dtype, kind, draw.Int(1, 5), draw.Pick({8, 64, 520, 1032}), draw.Bool()),
                "");
      EXPECT_EQ(CheckAddNorm(draw, dtype, kind, draw.Int(1, 5), draw.Pick({1, 67, 333}), draw.Bool()), "");
    }
  }
}

TEST_P(KernelsWithoutOp, EightBitStatesHaveTheReferencesBits) {
  Draw draw(203);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int64_t n : {int64_t{1}, int64_t{256}, draw.Int(257, 520), draw.Int(2049, 2400)}) {
      EXPECT_EQ(CheckAdamW8(draw, dtype, n, draw.Pick({0, 0, 1})), "");
    }
  }
}

TEST_P(KernelsWithoutOp, Fp8AttentionIsNearTheExactOne) {
  Draw draw(204);
  for (const auto& [dtype, shape] : Fp8Problems(40)) EXPECT_EQ(CheckFp8Attention(draw, dtype, shape), "");
}

INSTANTIATE_TEST_SUITE_P(Orders, KernelsWithoutOp, ::testing::ValuesIn(kx::emu::kAllOrders),
                         [](const auto& param) { return std::to_string(static_cast<int>(param.param)); });

}  // namespace
}  // namespace strata
