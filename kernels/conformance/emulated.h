// The CUDA backend on the emulator, for the conformance suite: besides what the suite compares, every race,
// access outside a tensor, read of a byte nobody wrote, write of an input, divergence and deadlock is a
// failure.
#ifndef KERNELS_CONFORMANCE_EMULATED_H_
#define KERNELS_CONFORMANCE_EMULATED_H_

#include "kernels/conformance/harness.h"

namespace strata::conformance {

// Its settings are the emulator's wake orders. `no_attention`: as in Backend.
Backend EmulatedBackend(const char* name, DType compute, const char* no_attention);

}  // namespace strata::conformance

#endif  // KERNELS_CONFORMANCE_EMULATED_H_
