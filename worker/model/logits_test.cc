#include "worker/model/logits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/reference/reference_ops.h"
#include "worker/model/test_step.h"

namespace strata {
namespace {

ModelConfig Config() {
  ModelConfig c;
  c.layers = 2;
  c.hidden = 8;
  c.heads = 2;
  c.kv_heads = 1;
  c.head_dim = 4;
  c.ffn = 16;
  c.vocab = 11;
  c.max_seq = 6;
  return c;
}

const std::vector<int32_t> kTokens = {1, 5, 2, 10, 0, 7, 3, 3, 9, 1, 4, 8};

TEST(Logits, GiveTheLossThatTheHeadGives) {
  const auto layout = BuildModelLayout(Config(), DType::kF64, 2, 6);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const auto ops = MakeReferenceOps(DType::kF64);
  TestStep step(*layout, *ops);
  step.RandomParams(3, 0.4);
  const std::vector<int32_t> targets = {3, 3, 3, 1, 2, 10, 0, -1, 5, 5, 6, 7};
  double loss[2];
  ASSERT_TRUE(step.LossOnly(kTokens, targets, loss).ok());
  const auto logits = ForwardLogits(*layout, *ops, step.params(), kTokens, 0, 12);
  ASSERT_TRUE(logits.ok()) << logits.status();
  ASSERT_EQ(logits->size(), 12u * 11);
  double sum = 0;
  for (int row = 0; row < 12; ++row) {
    if (targets[row] < 0) continue;
    double total = 0;
    for (int i = 0; i < 11; ++i) total += std::exp(static_cast<double>((*logits)[row * 11 + i]));
    sum += std::log(total) - (*logits)[row * 11 + targets[row]];
  }
  EXPECT_NEAR(sum, loss[0], 1e-4);
}

TEST(Logits, APassCanBeRepeatedWithOtherRows) {
  const auto layout = BuildModelLayout(Config(), DType::kF32, 2, 6);
  ASSERT_TRUE(layout.ok());
  const auto ops = MakeReferenceOps(DType::kF32);
  TestStep step(*layout, *ops);
  step.RandomParams(3, 0.4);
  const auto forward = HostForward::Create(*layout, *ops);
  ASSERT_TRUE(forward.ok()) << forward.status();
  std::vector<float> one, all, again;
  ASSERT_TRUE((*forward)->Logits(step.params(), kTokens, 4, 1, &one).ok());
  ASSERT_TRUE((*forward)->Logits(step.params(), kTokens, 0, 12, &all).ok());
  ASSERT_TRUE((*forward)->Logits(step.params(), kTokens, 4, 1, &again).ok());
  EXPECT_EQ(one, again);
  EXPECT_EQ(one, std::vector<float>(all.begin() + 4 * 11, all.begin() + 5 * 11));
}

TEST(Logits, APositionSeesNoLaterToken) {
  const auto layout = BuildModelLayout(Config(), DType::kF32, 2, 6);
  ASSERT_TRUE(layout.ok());
  const auto ops = MakeReferenceOps(DType::kF32);
  TestStep step(*layout, *ops);
  step.RandomParams(3, 0.4);
  std::vector<int32_t> padded = kTokens;
  for (int i = 4; i < 6; ++i) padded[i] = 0;
  for (int i = 6; i < 12; ++i) padded[i] = 2;
  const auto a = ForwardLogits(*layout, *ops, step.params(), kTokens, 3, 1);
  const auto b = ForwardLogits(*layout, *ops, step.params(), padded, 3, 1);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(*a, *b);
}

TEST(Logits, RefusesWrongArgumentsNamingThem) {
  const auto layout = BuildModelLayout(Config(), DType::kF32, 2, 6);
  ASSERT_TRUE(layout.ok());
  const auto ops = MakeReferenceOps(DType::kF32);
  TestStep step(*layout, *ops);
  step.RandomParams(3, 0.4);
  const auto error = [&](std::vector<const void*> params, std::vector<int32_t> tokens, int64_t first,
                         int64_t rows) {
    const auto result = ForwardLogits(*layout, *ops, params, tokens, first, rows);
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(result.status().message());
    return message.substr(0, message.find(':'));
  };
  const auto params = step.params();
  EXPECT_EQ(error({}, kTokens, 0, 1), "unit_params");
  EXPECT_EQ(error(params, {1, 2}, 0, 1), "tokens");
  EXPECT_EQ(error(params, kTokens, 11, 2), "rows");
  EXPECT_EQ(error(params, kTokens, -1, 1), "rows");
  EXPECT_EQ(error(params, kTokens, 0, 0), "rows");
  std::vector<int32_t> outside = kTokens;
  outside[7] = 11;
  EXPECT_EQ(error(params, outside, 0, 1), "tokens[7]");
}

}  // namespace
}  // namespace strata
