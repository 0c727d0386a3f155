// Every planted fault of the fused kernels is noticed by the checks that their tests are made of.
#include "kernels/kx/emu/mutants.h"

#include <iostream>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/checksum/pieces.h"
#include "kernels/conformance/cases.h"
#include "kernels/conformance/emulated.h"
#include "kernels/cuda/kernel_checks.h"
#include "kernels/kx/emu/emu.h"

namespace strata {
namespace {

using conformance::Backend;
using conformance::Case;
using conformance::Draw;

// A few small calls of every op: each loop goes round more than once, each block has several warps, widths
// leave ragged ends.
std::vector<Case> Calls() {
  Draw draw(301);
  std::vector<Case> cases;
  using namespace conformance;  // NOLINT: the cases
  cases.push_back(AddCase(draw, 1037, 2));
  cases.push_back(DropoutCase(draw, 50, 3, 0.4, false));
  cases.push_back(GeluCase(draw, GeluKind::kErf, true, false, 66));
  cases.push_back(SwigluCase(draw, true, false, 3, 20));
  cases.push_back(RopeCase(draw, 9, 9, 3, 16, 0));
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    cases.push_back(NormForwardCase(draw, kind, 2, 333));
    // So small that eps counts.
    for (double& x : cases.back().tensors[0].values) x *= 1e-3;
    cases.push_back(NormBackwardCase(draw, kind, 70, 300));
  }
  cases.push_back(BiasBackwardCase(draw, 70, 40, 0));
  for (Case& c : EmbeddingCases(draw, 300, 100, 90, 40, 100, true)) cases.push_back(std::move(c));
  cases.push_back(CrossEntropyCase(draw, 5, 5003, true, 0));
  return cases;
}

// And of products in fp8, which are for bf16: codes along rows and across them, in tiles with ragged ends.
std::vector<Case> Fp8Calls() {
  Draw draw(303);
  return {conformance::Fp8GemmCase(draw, {80, 16, 96}), conformance::Fp8GemmCase(draw, {16, 80, 96}, true)};
}

std::string FirstComplaint(const Backend& backend, const std::vector<Case>& cases, const Backend& bf16,
                           const std::vector<Case>& fp8) {
  for (const auto& [on, calls] : {std::pair(&backend, &cases), std::pair(&bf16, &fp8)}) {
    for (const Case& c : *calls) {
      const std::vector<std::string> differences = Differences(*on, c);
      if (!differences.empty()) return differences.front();
    }
  }
  kx::emu::Options options;
  options.only_registered = true;
  const kx::emu::Session session(options);
  Draw draw(302);
  std::string wrong = CheckStates(draw, 20000);
  if (wrong.empty()) wrong = CheckAdamW8(draw, DType::kBF16, 700, 0);
  if (wrong.empty()) wrong = CheckChecksums(draw, 3 * kChecksumBlockBytes);
  return wrong;
}

TEST(FusedMutants, AreAllCaught) {
  Backend backend = conformance::EmulatedBackend("EmulatedCudaF32", DType::kF32, "not wanted here");
  backend.settings = {static_cast<int>(kx::emu::Order::kForward), static_cast<int>(kx::emu::Order::kReverse)};
  Backend bf16 = conformance::EmulatedBackend("EmulatedCudaBf16", DType::kBF16, "not wanted here");
  bf16.settings = backend.settings;
  const std::vector<Case> cases = Calls(), fp8 = Fp8Calls();
  const std::vector<std::string> names = {
      "fused/adamw/square",
      "fused/adamw8/largest",
      "fused/adamw8/scale_sync",
      "fused/checksum/lanes",
      "fused/checksum/row",
      "fused/checksum/start",
      "fused/checksum/table_sync",
      "fused/checksum/warps_sync",
      "fused/columns/sync",
      "fused/dropout/tensor",
      "fused/elements/tail",
      "fused/elements/whole",
      "fused/embedding/count_sync",
      "fused/embedding/list_sync",
      "fused/fp8/inverse",
      "fused/fp8/largest_sync",
      "fused/fp8/tile_sync",
      "fused/gelu/density",
      "fused/loss/onehot",
      "fused/loss/rescale",
      "fused/loss/sync",
      "fused/loss/tree_sync",
      "fused/norm/centre",
      "fused/norm/eps",
      "fused/norm/mean_g",
      "fused/reduce/sync",
      "fused/rope/pair",
      "fused/rope/sync",
      "fused/sum/tree_sync",
      "fused/swiglu/slope",
  };
  for (const auto& result :
       kx::emu::RunMutants("fused/", names, [&] { return FirstComplaint(backend, cases, bf16, fp8); })) {
    std::cout << (result.name.empty() ? "unchanged" : result.name) << ": " << result.how << "\n";
    if (result.name.empty()) {
      EXPECT_FALSE(result.caught) << result.how;
    } else {
      EXPECT_TRUE(result.caught) << result.name << " survived";
    }
    // A race is told with the place of both accesses.
    if (result.name.find("sync") != std::string::npos) {
      EXPECT_NE(result.how.find(".h:"), std::string::npos) << result.name << ": " << result.how;
    }
  }
}

}  // namespace
}  // namespace strata
