// Kernels that no op of kernels/ops.h or kernels/state_ops.h has: eight-bit states.
#include "gtest/gtest.h"
#include "kernels/cuda/kernel_checks.h"
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
