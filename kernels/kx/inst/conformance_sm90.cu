#include "kernels/kx/conformance_hopper.h"

namespace strata::kx::conformance {

#define KX_INSTANCE(T, N, A, B, RS)                                \
  template KX_KERNEL void WgmmaTile<T, N, Major::A, Major::B, RS>( \
      KX_GRID_CONSTANT TensorMap, KX_GRID_CONSTANT TensorMap, KX_GRID_CONSTANT TensorMap)
KX_INSTANCE(bf16, 64, kK, kK, false);
KX_INSTANCE(f16, 64, kMN, kMN, false);
KX_INSTANCE(bf16, 96, kK, kK, true);
KX_INSTANCE(bf16, 128, kK, kMN, true);
KX_INSTANCE(f16, 128, kMN, kK, false);
KX_INSTANCE(bf16, 192, kMN, kMN, false);
KX_INSTANCE(f16, 192, kK, kK, true);
KX_INSTANCE(bf16, 256, kK, kMN, false);
#undef KX_INSTANCE

}  // namespace strata::kx::conformance
