// A CUDA GPU as an Accelerator: the device backend over some CudaApi, and whoever makes the math.
#ifndef OFFLOAD_DEVICE_CUDA_ACCELERATOR_H_
#define OFFLOAD_DEVICE_CUDA_ACCELERATOR_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "offload/device/accelerator.h"
#include "offload/device/cuda_api.h"
#include "offload/device/cuda_device.h"
#include "offload/device/cufile_api.h"

namespace strata {

struct CudaMath {
  std::function<absl::StatusOr<std::unique_ptr<Ops>>(DType compute)> make_ops;
  CudaStateMath states;
};

// `cuda` outlives it. kFailedPrecondition, with the reason, when there is no GPU.
absl::StatusOr<std::unique_ptr<Accelerator>> CreateCudaAccelerator(CudaApi& cuda, CudaMath math,
                                                                   CufileLoader cufile);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUDA_ACCELERATOR_H_
