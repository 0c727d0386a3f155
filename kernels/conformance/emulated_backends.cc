// The conformance suite on the CUDA backend in the emulator, in each of its wake orders.
#include "kernels/conformance/emulated.h"

namespace strata::conformance {

std::vector<Backend> Backends() {
  const char* const no_f32 = "no attention kernel computes in f32";
  return {
      EmulatedBackend("EmulatedCudaF32", DType::kF32, no_f32),
      EmulatedBackend("EmulatedCudaBf16", DType::kBF16, nullptr),
      EmulatedBackend("EmulatedCudaF16", DType::kF16, nullptr),
  };
}

}  // namespace strata::conformance
