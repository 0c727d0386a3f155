// StateOps in host memory, by the kernels of this folder: for states in the host arena and for the CPU
// device, whose streams run each call before it returns.
#ifndef KERNELS_OPTIMIZER_CPU_STATE_OPS_H_
#define KERNELS_OPTIMIZER_CPU_STATE_OPS_H_

#include <memory>

#include "kernels/optimizer/isa.h"
#include "kernels/state_ops.h"

namespace strata {

// `threads` >= 1: the OpenMP team of each call; `isa`, which must be Supported(): what AdamW, AdamW8 and
// CastParams run on (the others choose themselves). Bits depend on neither. The object is stateless and any
// thread may use it. Errors: kInvalidArgument for n < 0, a step below 1 or a params_dtype that is not kBF16,
// kF16 or kF32.
std::unique_ptr<StateOps> MakeCpuStateOps(int threads, Isa isa = BestIsa());

}  // namespace strata

#endif  // KERNELS_OPTIMIZER_CPU_STATE_OPS_H_
