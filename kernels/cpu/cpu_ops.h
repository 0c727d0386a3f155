// The CPU backend: GEMMs by oneDNN, everything else by kernels of its own, compiled for several
// instruction sets and chosen at run time.
#ifndef KERNELS_CPU_CPU_OPS_H_
#define KERNELS_CPU_CPU_OPS_H_

#include <memory>

#include "kernels/cpu/isa.h"
#include "kernels/ops.h"

namespace strata {

// `compute` is kF32, kBF16 or kF16, `threads` >= 1 the number of OpenMP threads of every op. GEMMs are
// deterministic for a given number of threads; all other results do not depend on it. Calls run before they
// return. An object is used by one thread at a time.
//
// Beside the workspaces it is lent, the backend keeps per thread the attention tiles (under 1 MiB for
// head_dim 256, under 0.25 MiB for 64), the rotary tables of the shapes it has seen, and oneDNN's compiled
// kernels.
//
// `isa_max` lowers the instruction set of the backend's own kernels (tests, comparisons); below kAvx512Bf16
// bf16 GEMMs are computed in float, fp16 GEMMs always are: operands are converted, sums rounded once.
std::unique_ptr<Ops> MakeCpuOps(DType compute, int threads, CpuIsa isa_max = CpuIsa::kAmx);

}  // namespace strata

#endif  // KERNELS_CPU_CPU_OPS_H_
