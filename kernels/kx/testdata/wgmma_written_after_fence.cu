// refused: C7519
// The accumulators are filled when the fence has passed.
#include "kernels/kx/kx_hopper.h"

using namespace strata::kx;  // NOLINT: a test's source

__global__ void KX_LAUNCH_BOUNDS(128) WrittenAfterFence(Gmem<const float> in, Gmem<float> out) {
  Smem smem;
  const auto tile = smem.Alloc<bf16, 1024>(64 * 64);
  const uint64_t operand = SwizzledDescriptor(tile.Address(), 16, 1024);
  const int thread = static_cast<int>(ThreadIdx().x);
  float d[32];
  WgmmaFence();
  KX_UNROLL
  for (int i = 0; i < 32; ++i) d[i] = in.Load(i * 128 + thread);
  WgmmaSs<bf16>(d, operand, operand, true);
  WgmmaCommit();
  WgmmaWait<0>(d);
  KX_UNROLL
  for (int i = 0; i < 32; ++i) out.Store(i * 128 + thread, d[i]);
}
