// The low-precision copy of master weights.
#ifndef KERNELS_OPTIMIZER_CAST_H_
#define KERNELS_OPTIMIZER_CAST_H_

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/optimizer/isa.h"

namespace strata {

// params[i] = master[i] rounded as AdamW rounds it (to nearest even), or copied. params_dtype: kBF16, kF16 or
// kF32.
void CastParams(const float* master, void* params, DType params_dtype, int64_t n, int threads = 1);
void CastParamsOnIsa(Isa isa, const float* master, void* params, DType params_dtype, int64_t n,
                     int threads = 1);

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_CAST_H_
