// Kernels that no op of kernels/ops.h has, and the optimizer's, on the GPU of this machine: linked into the
// conformance suite's program for a GPU.
#include "gtest/gtest.h"
#include "kernels/checksum/pieces.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernel_checks.h"

namespace strata {
namespace {

using conformance::Draw;

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

TEST(KernelsWithoutOpOnTheGpu, EightBitStatesHaveTheReferencesBits) {
  Draw draw(303);
  for (const DType dtype : kTypes) {
    for (const int64_t n : {int64_t{1}, int64_t{256}, draw.Int(257, 520), draw.Int(200000, 300000)}) {
      EXPECT_EQ(CheckAdamW8(draw, dtype, n, draw.Pick({0, 1})), "");
    }
  }
}

TEST(StatesOnTheGpu, ChecksumsAreTheHosts) {
  Draw draw(306);
  for (const int64_t bytes :
       {kChecksumBlockBytes, kChecksumPieceBytes, 40 * kChecksumPieceBytes + 5 * kChecksumBlockBytes})
    EXPECT_EQ(CheckChecksums(draw, bytes), "");
}

TEST(KernelsWithoutOpOnTheGpu, Fp8AttentionIsNearTheExactOne) {
  const auto gpu = FindGpu();
  if (!gpu.ok() || gpu->arch != 90) GTEST_SKIP() << "its kernels are built for compute capability 9.0";
  Draw draw(305);
  for (const int seq : {40, 200}) {
    for (const auto& [dtype, shape] : Fp8Problems(seq)) EXPECT_EQ(CheckFp8Attention(draw, dtype, shape), "");
  }
}

TEST(StatesOnTheGpu, HaveTheBitsOfTheCpu) {
  Draw draw(304);
  // One leaf of the tree of sums is 4096 elements; a batch of them is 4 Mi.
  for (const int64_t n :
       {int64_t{1}, int64_t{4096}, int64_t{4097}, draw.Int(5000, 100000), draw.Int(5000000, 6000000)})
    EXPECT_EQ(CheckStates(draw, n), "");
}

}  // namespace
}  // namespace strata
