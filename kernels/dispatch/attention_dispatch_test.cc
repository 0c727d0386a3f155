#include "kernels/dispatch/attention_dispatch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

struct Row {
  int arch;
  DType dtype;
  int head_dim;
  const char* forward;  // "": nobody
  const char* backward;
};

// Pinned: a change here is a change of what every job runs.
constexpr Row kTable[] = {
    {80, DType::kBF16, 64, "fa2", "fa2"},     {80, DType::kBF16, 128, "fa2", "fa2"},
    {80, DType::kF16, 96, "fa2", "fa2"},      {80, DType::kBF16, 256, "fa2", ""},
    {86, DType::kBF16, 128, "fa2", "fa2"},    {89, DType::kF16, 128, "fa2", "fa2"},
    {90, DType::kBF16, 64, "fa3", "fa3"},     {90, DType::kBF16, 96, "fa3", "fa3"},
    {90, DType::kBF16, 128, "fa3", "fa3"},    {90, DType::kF16, 128, "fa3", "fa3"},
    {90, DType::kBF16, 256, "fa3", "cudnn"},  {90, DType::kBF16, 80, "fa2", "fa2"},
    {90, DType::kBF16, 32, "fa2", "fa2"},     {90, DType::kBF16, 160, "fa2", "cudnn"},
    {90, DType::kBF16, 60, "", ""},           {90, DType::kF32, 128, "", ""},
    {75, DType::kF16, 128, "", ""},           {100, DType::kBF16, 128, "cudnn", "cudnn"},
    {100, DType::kBF16, 256, "cudnn", ""},    {100, DType::kBF16, 264, "", ""},
    {120, DType::kF16, 64, "cudnn", "cudnn"},
};

AttentionProblem ProblemOf(const Row& row, bool backward) {
  return {.arch = row.arch,
          .dtype = row.dtype,
          .backward = backward,
          .head_dim = row.head_dim,
          .heads = 32,
          .kv_heads = 8};
}

TEST(AttentionDispatchTest, TheTableOfChoices) {
  AttentionDispatch dispatch({.cudnn_why_not = ""});
  for (const Row& row : kTable) {
    for (const bool backward : {false, true}) {
      const AttentionProblem problem = ProblemOf(row, backward);
      const std::string expected = backward ? row.backward : row.forward;
      const auto chosen = dispatch.Choose(problem);
      EXPECT_EQ(chosen.ok() ? Name(*chosen) : "", expected) << ToText(problem) << chosen.status();
      if (!chosen.ok()) {
        EXPECT_EQ(chosen.status().code(), absl::StatusCode::kUnimplemented);
        for (const AttentionProvider provider : kAttentionProviders)
          EXPECT_THAT(chosen.status().message(), HasSubstr(absl::StrCat(Name(provider), ": ")));
      }
    }
  }
}

// What cuDNN does when it is forced: "" for each pass that it takes, or the reason of the refusal.
constexpr Row kForcedCudnn[] = {
    {75, DType::kBF16, 128, "needs compute capability 8.0", "needs compute capability 8.0"},
    {80, DType::kBF16, 64, "", ""},
    {80, DType::kF16, 128, "", ""},
    {80, DType::kBF16, 136, "", "head dim of at most 128"},
    {80, DType::kBF16, 256, "", "head dim of at most 128"},
    {89, DType::kBF16, 96, "", ""},
    {90, DType::kBF16, 128, "", ""},
    {90, DType::kF16, 256, "", ""},
    {90, DType::kF16, 264, "head dim of at most 256", "head dim of at most 256"},
    {90, DType::kF16, 100, "head dim 100 is no multiple of 8", "head dim 100 is no multiple of 8"},
    {90, DType::kF32, 128, "takes bf16 and f16, not f32", "takes bf16 and f16, not f32"},
    {100, DType::kBF16, 128, "", ""},
    {100, DType::kBF16, 256, "", "head dim of at most 128"},
};

TEST(AttentionDispatchTest, TheTableOfCudnnForced) {
  AttentionDispatch dispatch({.forced = AttentionProvider::kCudnn, .cudnn_why_not = ""});
  for (const Row& row : kForcedCudnn) {
    for (const bool backward : {false, true}) {
      const AttentionProblem problem = ProblemOf(row, backward);
      const std::string reason = backward ? row.backward : row.forward;
      const auto chosen = dispatch.Choose(problem);
      if (reason.empty()) {
        EXPECT_TRUE(chosen.ok() && *chosen == AttentionProvider::kCudnn)
            << ToText(problem) << chosen.status();
        continue;
      }
      EXPECT_EQ(chosen.status().code(), absl::StatusCode::kFailedPrecondition) << ToText(problem);
      EXPECT_THAT(chosen.status().message(), HasSubstr("the provider cudnn is forced and cannot: cudnn: "));
      EXPECT_THAT(chosen.status().message(), HasSubstr(reason));
    }
  }
}

TEST(AttentionDispatchTest, WithoutCudnnItsReasonIsGiven) {
  AttentionDispatch dispatch({.cudnn_why_not = "libcudnn.so.9 is not there"});
  EXPECT_THAT(dispatch.Choose(ProblemOf(kTable[17], false)).status().message(),
              HasSubstr("cudnn: libcudnn.so.9 is not there"));
}

TEST(AttentionDispatchTest, AForcedProviderIsTakenOrRefusedWithTheReason) {
  AttentionDispatch fa2({.forced = AttentionProvider::kFa2, .cudnn_why_not = ""});
  EXPECT_EQ(*fa2.Choose(ProblemOf({90, DType::kBF16, 128, "", ""}, false)), AttentionProvider::kFa2);
  const absl::Status refused = AttentionDispatch({.forced = AttentionProvider::kFa3, .cudnn_why_not = ""})
                                   .Choose(ProblemOf({80, DType::kBF16, 128, "", ""}, false))
                                   .status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("fa3 is forced and cannot: fa3: needs compute capability 9.0"));
  AttentionProblem packed = ProblemOf({90, DType::kBF16, 128, "", ""}, false);
  packed.packed = true;
  EXPECT_THAT(AttentionDispatch({.forced = AttentionProvider::kCudnn, .cudnn_why_not = ""})
                  .Choose(packed)
                  .status()
                  .message(),
              HasSubstr("packed"));
}

TEST(AttentionDispatchTest, Fp8IsForcedAndForwardOnly) {
  AttentionDispatch fp8({.forced = AttentionProvider::kFa3Fp8, .cudnn_why_not = ""});
  for (const int dim : {64, 96, 128, 256}) {
    EXPECT_EQ(*fp8.Choose(ProblemOf({90, DType::kBF16, dim, "", ""}, false)), AttentionProvider::kFa3Fp8);
  }
  const auto refusal = [&](const Row& row, bool backward) {
    const absl::Status status = fp8.Choose(ProblemOf(row, backward)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({90, DType::kBF16, 128, "", ""}, true), HasSubstr("fa3-fp8: has no backward pass"));
  EXPECT_THAT(refusal({80, DType::kBF16, 128, "", ""}, false), HasSubstr("needs compute capability 9.0"));
  EXPECT_THAT(refusal({90, DType::kF32, 128, "", ""}, false), HasSubstr("takes bf16 and f16, not f32"));
  EXPECT_THAT(refusal({90, DType::kF16, 80, "", ""}, false), HasSubstr("no kernel for head dim 80"));
  // Left free, nobody rounds more than was asked for.
  EXPECT_THAT(AttentionDispatch({}).Choose(ProblemOf(kTable[18], false)).status().message(),
              HasSubstr("fa3-fp8: rounds q, k and v to eight bits"));
}

TEST(AttentionDispatchTest, EachChoiceIsLoggedOnceAndCanBeAskedFor) {
  std::vector<std::string> lines;
  AttentionDispatch dispatch(
      {.cudnn_why_not = "", .log = [&](const std::string& line) { lines.push_back(line); }});
  const AttentionProblem problem = ProblemOf({80, DType::kBF16, 128, "", ""}, false);
  ASSERT_TRUE(dispatch.Choose(problem).ok());
  ASSERT_TRUE(dispatch.Choose(problem).ok());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(
      lines[0],
      "attention forward of bf16, head dim 128, 32/8 heads on compute capability 8.0: fa2, because fa3: "
      "needs compute capability 9.0 (wgmma and TMA)");
  ASSERT_EQ(dispatch.Choices().size(), 1u);
  EXPECT_EQ(dispatch.Choices()[0].provider, AttentionProvider::kFa2);
  EXPECT_THAT(dispatch.Choices()[0].passed_over, HasSubstr("fa3: "));
}

TEST(AttentionDispatchTest, ATrainingIsForcedToWhatHasABackwardPass) {
  for (const AttentionProvider provider : kAttentionProviders) {
    const absl::StatusOr<AttentionProvider> forced = TrainingProviderOf(Name(provider));
    AttentionDispatch dispatch({.forced = provider, .cudnn_why_not = ""});
    const AttentionProblem backward = {
        .arch = 90, .backward = true, .head_dim = 64, .heads = 4, .kv_heads = 4};
    EXPECT_EQ(forced.ok(), dispatch.Choose(backward).ok()) << Name(provider);
    if (forced.ok()) {
      EXPECT_EQ(*forced, provider);
    } else {
      EXPECT_THAT(std::string(forced.status().message()), HasSubstr("no backward pass"));
    }
  }
  EXPECT_TRUE(absl::IsInvalidArgument(TrainingProviderOf("fa4").status()));
}

}  // namespace
}  // namespace strata
