// The GPU of this machine, for programs that run kernels without the device backend (conformance, benches).
#ifndef KERNELS_CUDA_GPU_H_
#define KERNELS_CUDA_GPU_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace strata {

struct Gpu {
  std::string name;
  int arch = 0;  // 10 * major + minor of the compute capability
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int driver_cuda = 0, runtime_cuda = 0;  // 1000 * major + 10 * minor of the CUDA that each is of
};

// Device 0. kFailedPrecondition, in one line that begins with "no GPU: ", when there is no driver, no device,
// or one that the kernels are not built for.
absl::StatusOr<Gpu> FindGpu();

// The status of a runtime call that returned `error` (a cudaError_t): kInternal with CUDA's text.
absl::Status CudaCall(int error, const char* what);

}  // namespace strata

#endif  // KERNELS_CUDA_GPU_H_
