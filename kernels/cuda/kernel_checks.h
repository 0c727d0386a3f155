// Checks of kernels that have no op of their own: "" or the first thing wrong. On the emulator they run in
// the innermost emu::Session; with STRATA_DEVICE_ARRAY_GPU, on a GPU.
#ifndef KERNELS_CUDA_KERNEL_CHECKS_H_
#define KERNELS_CUDA_KERNEL_CHECKS_H_

#include <cstdint>
#include <string>

#include "kernels/conformance/harness.h"
#include "kernels/dtype.h"

namespace strata {

// AdamW and the sum of squares have the CPU's bits.
std::string CheckStates(conformance::Draw& draw, int64_t n);

// AdamW with eight-bit states has the bits of its reference over two steps; `offset` elements behind a
// boundary.
std::string CheckAdamW8(conformance::Draw& draw, DType params_dtype, int64_t n, int64_t offset);

}  // namespace strata

#endif  // KERNELS_CUDA_KERNEL_CHECKS_H_
