// The conformance kernels on the emulator, in every order and accumulation, against plain loops.
#include <gtest/gtest.h>

#include "kernels/kx/conformance_check.h"

namespace strata::kx::conformance {
namespace {

TEST(Conformance, MmaOfBf16AndF16WithPlainAndTransposedLoads) {
  for (const emu::Options& options : EveryWay()) EXPECT_EQ(CheckMma(options), "");
}
TEST(Conformance, ReduceAcrossBlocksIsOrderedByAcqRel) {
  for (const emu::Options& options : EveryWay()) EXPECT_EQ(CheckReduce(options), "");
}
TEST(Conformance, WgmmaOfEveryShapeAndMajor) {
  for (const emu::Options& options : EveryWay()) EXPECT_EQ(CheckWgmma(options), "");
}
TEST(Conformance, PipelineWrapsItsRing) {
  for (const emu::Options& options : EveryWay()) EXPECT_EQ(CheckPipeline(options), "");
}

}  // namespace
}  // namespace strata::kx::conformance
