// The CUDA runtime as a CudaApi: linked statically into the plugin, which is the only one to use it.
#ifndef OFFLOAD_DEVICE_CUDA_CUDART_API_H_
#define OFFLOAD_DEVICE_CUDA_CUDART_API_H_

#include "offload/device/cuda_api.h"

namespace strata {

// For the process's life.
CudaApi& CudartApi();

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUDA_CUDART_API_H_
