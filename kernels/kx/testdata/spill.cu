// refused: Registers are spilled to local memory
// 64 values that must all live at once, in a kernel that may have 32 registers.
#include "kernels/kx/kx.h"

__global__ void __launch_bounds__(1024, 2) Spill(const float* in, float* out) {
  float v[64];
  KX_UNROLL
  for (int i = 0; i < 64; ++i) v[i] = in[i * 1024 + threadIdx.x];
  KX_UNROLL
  for (int round = 0; round < 4; ++round) {
    KX_UNROLL
    for (int i = 0; i < 64; ++i) v[i] = v[i] * v[(i * 7 + 1) % 64] + v[(i * 13 + 5) % 64];
  }
  KX_UNROLL
  for (int i = 0; i < 64; ++i) out[i * 1024 + threadIdx.x] = v[i];
}
