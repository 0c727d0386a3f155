// The conformance kernels on the emulator, in every order and accumulation, against plain loops.
#include <gtest/gtest.h>

#include "kernels/kx/conformance_check.h"
#include "kernels/kx/conformance_ways.h"

namespace strata::kx::conformance {
namespace {

TEST(Conformance, MmaOfBf16AndF16WithPlainAndTransposedLoads) {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    EXPECT_EQ(CheckMma(), "");
    EXPECT_EQ(session.report().stats.mma, 4u);
  }
}
TEST(Conformance, ReduceAcrossBlocksIsOrderedByAcqRel) {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    EXPECT_EQ(CheckReduce(), "");
  }
}
TEST(Conformance, WgmmaOfEveryShapeAndMajor) {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    EXPECT_EQ(CheckWgmma(), "");
  }
}
TEST(Conformance, EightBitFloatsRoundToTheNearestAndSaturate) {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    EXPECT_EQ(CheckConvert8(), "");
  }
}
TEST(Conformance, PipelineWrapsItsRingWithoutBankConflicts) {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    EXPECT_EQ(CheckPipeline(), "");
    EXPECT_EQ(session.report().stats.ldmatrix, session.report().stats.ldmatrix_wavefronts);
    EXPECT_GT(session.report().stats.ldmatrix, 0u);
  }
}
TEST(Conformance, EveryOtherPrimitiveAlone) {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    EXPECT_EQ(CheckArithmetic(), "");
    EXPECT_EQ(CheckGather(), "");
    EXPECT_EQ(CheckMatrices(), "");
    EXPECT_EQ(CheckBoxes(), "");
  }
}

}  // namespace
}  // namespace strata::kx::conformance
