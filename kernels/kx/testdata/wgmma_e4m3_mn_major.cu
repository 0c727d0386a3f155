// refused: e4m3 of K-major operands
// Only operands of 16 bits may have their K across the rows.
#include "kernels/kx/kx_hopper.h"

namespace strata::kx {

__global__ void MnMajor(float* out, uint64_t a, uint64_t b) {
  float d[32] = {};
  WgmmaFence(d);
  WgmmaSs<e4m3, Major::kK, Major::kMN>(d, a, b, false);
  WgmmaCommit();
  WgmmaWait<0>(d);
  out[threadIdx.x] = d[0];
}

}  // namespace strata::kx
