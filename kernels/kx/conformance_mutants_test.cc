// Every fault planted in the conformance kernels is noticed by their checks.
#include <gtest/gtest.h>

#include <iostream>

#include "kernels/kx/conformance_check.h"
#include "kernels/kx/conformance_ways.h"
#include "kernels/kx/kx.h"

namespace strata::kx::conformance {
namespace {

std::string CheckAll() {
  for (const emu::Options& options : EveryWay()) {
    const emu::Session session(options);
    for (const auto check : {&CheckMma, &CheckReduce, &CheckWgmma, &CheckConvert8, &CheckPipeline,
                             &CheckArithmetic, &CheckGather, &CheckMatrices, &CheckBoxes}) {
      const std::string error = check();
      if (!error.empty()) return error;
    }
  }
  return "";
}

TEST(ConformanceMutants, AllAreCaught) {
  const std::vector<std::string> names = {
      "kx/arithmetic_fused",
      "kx/boxes_swapped",
      "kx/convert8_swapped",
      "kx/gather_lane",
      "kx/gather_max",
      "kx/halves_swapped",
      "kx/matrices_no_wait",
      "kx/matrices_plain",
      "kx/mma_no_copy_wait",
      "kx/mma_no_syncwarp",
      "kx/mma_swapped_b",
      "kx/pipeline_bytes",
      "kx/pipeline_no_barrier_before_result",
      "kx/pipeline_no_barrier_before_store",
      "kx/pipeline_no_empty_wait",
      "kx/pipeline_no_proxy_fence",
      "kx/pipeline_no_read_wait",
      "kx/pipeline_no_swizzle",
      "kx/pipeline_no_syncwarp_before_release",
      "kx/pipeline_parity",
      "kx/reduce_no_sync_before_sums",
      "kx/reduce_no_sync_before_ticket",
      "kx/reduce_own_value",
      "kx/reduce_relaxed_ticket",
      "kx/wgmma_leading",
      "kx/wgmma_no_fence",
      "kx/wgmma_no_init_fence",
      "kx/wgmma_no_load_wait",
      "kx/wgmma_no_proxy_fence",
      "kx/wgmma_no_read_wait",
      "kx/wgmma_no_sync_before_store",
      "kx/wgmma_no_wait",
      "kx/wgmma_stride",
  };
  for (const emu::MutationResult& result : emu::RunMutants("kx/", names, CheckAll)) {
    EXPECT_EQ(result.caught, !result.name.empty()) << "\"" << result.name << "\" " << result.how;
    std::cout << (result.name.empty() ? "unchanged" : result.name) << ": " << result.how << "\n";
  }
}

int Check(bool* seen) {
  *seen = true;
  return KX_MUTANT("harness/planted", 1, 2);
}
TEST(RunMutants, NamesUnreachedForgottenAndSurvivingMutants) {
  bool seen = false;
  const auto blind = [&] { return Check(&seen) < 3 ? std::string() : "never said"; };
  const auto keen = [&] { return Check(&seen) == 1 ? std::string() : "not 1"; };
  auto results = emu::RunMutants("harness/", {"harness/planted"}, keen);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_FALSE(results[0].caught);
  EXPECT_TRUE(results[1].caught);
  EXPECT_EQ(results[1].how, "not 1");
  results = emu::RunMutants("harness/", {"harness/planted"}, blind);
  EXPECT_FALSE(results[1].caught);
  results = emu::RunMutants("harness/", {}, keen);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[1].how, "is in the source but not in the test's list");
  results = emu::RunMutants("harness/", {"harness/planted", "harness/typo"}, keen);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_FALSE(results[2].caught);
  EXPECT_EQ(results[2].how, "was never reached by the check");
  EXPECT_EQ(Check(&seen), 1);
}

}  // namespace
}  // namespace strata::kx::conformance
