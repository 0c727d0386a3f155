#include "kernels/optimizer/cpu_state_ops.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "common/bfloat16.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw8.h"
#include "kernels/optimizer/reduce.h"

namespace strata {
namespace {

TEST(CpuStateOps, AnUpdateIsTheKernelsUpdateForAnyTeam) {
  constexpr int64_t n = 10000;
  std::vector<float> grad(n), master(n);
  for (int64_t i = 0; i < n; ++i) {
    grad[i] = 1e-3f * static_cast<float>(i % 101 - 50);
    master[i] = 1e-2f * static_cast<float>(i % 37 - 18);
  }
  const AdamWParameters parameters{.lr = 1e-3, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-7, .weight_decay = 0.2};
  std::vector<float> expected = master, m(n), v(n);
  std::vector<BFloat16> low(n);
  AdamW(MakeAdamWScalars(parameters, 3, 0.5f), {.n = n,
                                                .grad = grad.data(),
                                                .master = expected.data(),
                                                .m = m.data(),
                                                .v = v.data(),
                                                .params = low.data()});
  for (const int threads : {1, 2}) {
    const auto ops = MakeCpuStateOps(threads);
    std::vector<float> got = master, got_m(n), got_v(n);
    std::vector<BFloat16> got_low(n);
    AdamWStep step{.n = n,
                   .grad = grad.data(),
                   .master = got.data(),
                   .m = got_m.data(),
                   .v = got_v.data(),
                   .params = got_low.data(),
                   .params_dtype = DType::kBF16,
                   .lr = 1e-3,
                   .beta1 = 0.8,
                   .beta2 = 0.99,
                   .eps = 1e-7,
                   .weight_decay = 0.2,
                   .step = 3,
                   .grad_scale = 0.5f};
    ASSERT_TRUE(ops->AdamW(nullptr, step).ok());
    EXPECT_EQ(got, expected);
    EXPECT_EQ(got_m, m);
    EXPECT_EQ(got_v, v);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got_low[i].bits, low[i].bits);

    std::vector<BFloat16> cast(n);
    ASSERT_TRUE(ops->CastParams(nullptr, got.data(), cast.data(), DType::kBF16, n).ok());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(cast[i].bits, low[i].bits);

    double sum = 0;
    int64_t first_bad = 0;
    ASSERT_TRUE(ops->SumSquares(nullptr, grad.data(), n, &sum, &first_bad).ok());
    EXPECT_EQ(sum, SumSquares(grad.data(), n).sum);
    EXPECT_EQ(first_bad, -1);

    std::vector<float> acc = grad;
    ASSERT_TRUE(ops->Accumulate(nullptr, acc.data(), grad.data(), n).ok());
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(acc[i], 2 * grad[i]);
  }
}

TEST(CpuStateOps, EightBitStatesAreThoseOfTheKernelOnEveryInstructionSet) {
  constexpr int64_t n = 9000, blocks = (n + 63) / 64;
  std::vector<float> grad(n), master(n, 0.5f);
  for (int64_t i = 0; i < n; ++i) grad[i] = 1e-3f * static_cast<float>(i % 37 - 18);
  std::vector<float> expected = master, m_scale(blocks), v_scale(blocks);
  std::vector<uint8_t> m(n), v(n);
  std::vector<BFloat16> low(n);
  AdamW8(MakeAdamWScalars({.lr = 1e-3}, 1, 0.5f), {.n = n,
                                                   .grad = grad.data(),
                                                   .master = expected.data(),
                                                   .m = m.data(),
                                                   .m_scale = m_scale.data(),
                                                   .v = v.data(),
                                                   .v_scale = v_scale.data(),
                                                   .params = low.data()});
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!Supported(isa)) continue;
    std::vector<float> got = master, got_m_scale(blocks), got_v_scale(blocks);
    std::vector<uint8_t> got_m(n), got_v(n);
    std::vector<BFloat16> got_low(n);
    AdamWStep step{.n = n, .grad = grad.data(), .master = got.data(), .params = got_low.data()};
    step.lr = 1e-3;
    step.grad_scale = 0.5f;
    const Code8Moments moments = {got_m.data(), got_v.data(), got_m_scale.data(), got_v_scale.data()};
    ASSERT_TRUE(MakeCpuStateOps(2, isa)->AdamW8(nullptr, step, moments).ok());
    EXPECT_EQ(got, expected) << Name(isa);
    EXPECT_EQ(got_m, m) << Name(isa);
    EXPECT_EQ(got_v, v) << Name(isa);
    EXPECT_EQ(got_m_scale, m_scale) << Name(isa);
    EXPECT_EQ(got_v_scale, v_scale) << Name(isa);
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got_low[i].bits, low[i].bits) << Name(isa);
  }
}

TEST(CpuStateOps, RefusesWhatCannotBe) {
  const auto ops = MakeCpuStateOps(1);
  EXPECT_EQ(ops->AdamW8(nullptr, {.n = 0, .step = 0}, {}).message(), "AdamW8: steps count from 1, not 0");
  EXPECT_EQ(ops->AdamW8(nullptr, {.n = -1}, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ops->AdamW8(nullptr, {.n = 0}, {}).ok());
  EXPECT_EQ(ops->AdamW(nullptr, {.n = 0, .step = 0}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops->AdamW(nullptr, {.n = -1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ops->CastParams(nullptr, nullptr, nullptr, DType::kF64, 0).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ops->CastParams(nullptr, nullptr, nullptr, DType::kBF16, 0).ok());
}

}  // namespace
}  // namespace strata
