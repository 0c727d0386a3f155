// refused: C7517
// The accumulators are stored before anybody waited for them.
#include "kernels/kx/kx_hopper.h"

using namespace strata::kx;  // NOLINT: a test's source

__global__ void KX_LAUNCH_BOUNDS(128) ReadBeforeWait(Gmem<const float> in, Gmem<float> out) {
  Smem smem;
  const auto tile = smem.Alloc<bf16, 1024>(64 * 64);
  const uint64_t operand = SwizzledDescriptor(tile.Address(), 16, 1024);
  const int thread = static_cast<int>(ThreadIdx().x);
  float d[32];
  KX_UNROLL
  for (int i = 0; i < 32; ++i) d[i] = in.Load(i * 128 + thread);
  WgmmaFence(d);
  WgmmaSs<bf16>(d, operand, operand, true);
  WgmmaCommit();
  KX_UNROLL
  for (int i = 0; i < 32; ++i) out.Store(i * 128 + thread, d[i]);
  WgmmaWait<0>();
}
