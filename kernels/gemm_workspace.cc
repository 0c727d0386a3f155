#include "kernels/gemm_workspace.h"

#include <algorithm>

#include "common/checked.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

// NVIDIA's recommendation for cuBLAS on Hopper and newer; it is 4 MiB for older cards. A plan does not know
// the card.
constexpr int64_t kCublasLtMostBytes = int64_t{32} << 20;
// The library keeps partial tiles of the output there, in fp32: at most so many copies of it. Sizes beyond
// the most are cut before they are multiplied.
constexpr int64_t kCopies = 4, kSideMost = 1 << 16;

}  // namespace

int64_t GemmWorkspaceBytes(GemmLibrary library, DType compute, int64_t m, int64_t n, int64_t k) {
  const int64_t least = GemmWorkspaceBytes(compute, m, n, k);
  if (library == GemmLibrary::kCpu) return least;
  const int64_t outputs = kCopies * std::min(m, kSideMost) * std::min(n, kSideMost) * 4;
  return std::max(least, std::min(RoundUp<int64_t>(outputs, 64), kCublasLtMostBytes));
}

}  // namespace strata
