#include "kernels/kx/conformance.h"

namespace strata::kx::conformance {

template KX_KERNEL void MmaTile<bf16>(Gmem<const bf16>, Gmem<const bf16>, Gmem<float>, bool);
template KX_KERNEL void MmaTile<f16>(Gmem<const f16>, Gmem<const f16>, Gmem<float>, bool);

}  // namespace strata::kx::conformance
