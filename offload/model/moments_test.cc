#include "offload/model/moments.h"

#include <string>

#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(Moments, ARecordTakesTwelveBytesOrAboutHalf) {
  EXPECT_EQ(RecordBytes(Moments::kF32, 0), 0);
  EXPECT_EQ(RecordBytes(Moments::kF32, 64), 768);
  EXPECT_EQ(RecordBytes(Moments::kCode8, 0), 0);
  EXPECT_EQ(RecordBytes(Moments::kCode8, 64), 256 + 2 * 64 + 2 * 4);
  EXPECT_EQ(RecordBytes(Moments::kCode8, 4 << 20), (4 << 20) / 8 * 49);
  EXPECT_DEATH(RecordBytes(Moments::kF32, 65), "kCode8Block");
}

TEST(Moments, OptimizersHaveNames) {
  for (const Moments moments : {Moments::kF32, Moments::kCode8}) {
    EXPECT_EQ(MomentsOfOptimizer(OptimizerName(moments)), moments);
    EXPECT_NE(std::string(kOptimizerNames).find(OptimizerName(moments)), std::string::npos);
  }
  EXPECT_EQ(MomentsOfOptimizer(""), std::nullopt);
  EXPECT_EQ(MomentsOfOptimizer("AdamW"), std::nullopt);
}

}  // namespace
}  // namespace strata
