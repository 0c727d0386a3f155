// The reference backend: every op as plain loops over its definition, nothing clever. In kF64 it is the
// truth that other backends are measured against and the arithmetic for finite differences; in kF32,
// kBF16 and kF16 (storage of that type, sums in float) it is the "straightforward low-precision evaluation"
// whose error a fast backend may not exceed by much. Slow, single-threaded, ignores `workspace` and may
// allocate.
#ifndef KERNELS_REFERENCE_REFERENCE_OPS_H_
#define KERNELS_REFERENCE_REFERENCE_OPS_H_

#include <memory>

#include "kernels/ops.h"

namespace strata {

// `compute` is kF64, kF32, kBF16 or kF16.
std::unique_ptr<Ops> MakeReferenceOps(DType compute = DType::kF64);

}  // namespace strata

#endif  // KERNELS_REFERENCE_REFERENCE_OPS_H_
