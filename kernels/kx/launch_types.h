// What a launch takes and returns, without anything of CUDA.
#ifndef KERNELS_KX_LAUNCH_TYPES_H_
#define KERNELS_KX_LAUNCH_TYPES_H_

#include <cstddef>
#include <string>

#include "kernels/kx/types.h"

namespace strata::kx {

using Stream = void*;  // a cudaStream_t; ignored in emulation

struct LaunchConfig {
  Dim3 grid;
  Dim3 block;
  size_t shared_bytes = 0;
  Stream stream = nullptr;
};

// The code of an emulated launch with a complaint. No cudaError_t is negative.
inline constexpr int kEmulatorRefused = -1;

// `code` is a cudaError_t, 0 for success; `message` says what failed.
struct LaunchStatus {
  int code = 0;
  std::string message;
  bool ok() const { return code == 0; }
};

}  // namespace strata::kx

#endif  // KERNELS_KX_LAUNCH_TYPES_H_
