// refused: C7508
// setmaxnreg without a launch bound: ptxas ignores it and says so in an information line.
#include "kernels/kx/kx_hopper.h"

__global__ void Ignored(float* out) {
  strata::kx::SetMaxRegistersDec<24>();
  out[threadIdx.x] = 1.f;
}
