#include "kernels/cuda/gpu.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace strata {

absl::Status CudaCall(int error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": ", cudaGetErrorString(static_cast<cudaError_t>(error)),
                                          " (CUDA error ", error, ")"));
}

absl::StatusOr<Gpu> FindGpu() {
  int count = 0;
  if (const int error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no GPU: ",
        error != cudaSuccess ? cudaGetErrorString(static_cast<cudaError_t>(error)) : "the driver shows none",
        "; nvidia-smi shows whether the driver works"));
  }
  cudaDeviceProp properties;
  STRATA_RETURN_IF_ERROR(CudaCall(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  Gpu gpu;
  gpu.name = properties.name;
  gpu.arch = 10 * properties.major + properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  STRATA_RETURN_IF_ERROR(CudaCall(cudaDriverGetVersion(&gpu.driver_cuda), "cudaDriverGetVersion"));
  STRATA_RETURN_IF_ERROR(CudaCall(cudaRuntimeGetVersion(&gpu.runtime_cuda), "cudaRuntimeGetVersion"));
  if (properties.major != 8 && gpu.arch != 90) {
    return absl::FailedPreconditionError(absl::StrCat("no GPU: ", gpu.name, " has compute capability ",
                                                      properties.major, ".", properties.minor,
                                                      ", there are kernels for 8.x and 9.0"));
  }
  return gpu;
}

}  // namespace strata
