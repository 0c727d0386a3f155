#include "kernels/gemm_workspace.h"

#include "gtest/gtest.h"
#include "kernels/workspace.h"

namespace strata {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(GemmWorkspaceTest, IsPinnedForShapesOfJobs) {
  const auto cublaslt = [](int64_t m, int64_t n, int64_t k) {
    return GemmWorkspaceBytes(GemmLibrary::kCublasLt, DType::kBF16, m, n, k);
  };
  EXPECT_EQ(cublaslt(8192, 4096, 4096), 32 * kMiB);
  EXPECT_EQ(cublaslt(4096, 14336, 1 << 20), 32 * kMiB);
  EXPECT_EQ(cublaslt(1024, 512, 64), 8 * kMiB);
  EXPECT_EQ(cublaslt(1, 1, 1), GemmWorkspaceBytes(DType::kBF16, 1, 1, 1));
  EXPECT_EQ(cublaslt(int64_t{1} << 40, int64_t{1} << 40, int64_t{1} << 40), 32 * kMiB);
}

TEST(GemmWorkspaceTest, IsNeverLessThanTheLeastAndAMultipleOf64) {
  for (const int64_t m : {1, 7, 64, 300, 5000}) {
    for (const int64_t n : {1, 9, 128, 4100}) {
      for (const int64_t k : {1, 33, 4096}) {
        const int64_t least = GemmWorkspaceBytes(DType::kF32, m, n, k);
        EXPECT_EQ(GemmWorkspaceBytes(GemmLibrary::kCpu, DType::kF32, m, n, k), least);
        const int64_t bytes = GemmWorkspaceBytes(GemmLibrary::kCublasLt, DType::kF32, m, n, k);
        EXPECT_GE(bytes, least);
        EXPECT_EQ(bytes % 64, 0);
      }
    }
  }
}

}  // namespace
}  // namespace strata
