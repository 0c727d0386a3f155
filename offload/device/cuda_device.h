// A CUDA GPU as a Device: one arena of exactly the budget by one cudaMalloc (no managed memory: it would move
// by page faults behind the plan), a cudaStream_t per lane, cudaEvent_t as dependencies.
//
// Failure: out of memory is kResourceExhausted with need and have. Any other error of the runtime makes the
// context unusable: the first one is kept and every later call returns it without touching the GPU
// (kInternal, cause DEVICE_FAULT), so the process ends with the reason instead of retrying.
#ifndef OFFLOAD_DEVICE_CUDA_DEVICE_H_
#define OFFLOAD_DEVICE_CUDA_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/state_ops.h"
#include "offload/device/cuda_api.h"
#include "offload/device/cufile_api.h"
#include "offload/device/device.h"

namespace strata {

// Makes the math of a device's states: `scratch` is device memory of at least `scratch_bytes`, which outlives
// the result. It comes beside the arena and, like the CUDA context, is no part of the plan's budget: the
// device needs free memory for both.
struct CudaStateMath {
  int64_t scratch_bytes = 0;
  std::function<absl::StatusOr<std::unique_ptr<StateOps>>(Workspace scratch)> make;
};

// Where GPUDirect Storage's library is looked for, once somebody asks: LoadCufile (cufile_library.h).
using CufileLoader = std::function<absl::StatusOr<CufileApi*>()>;

// `cuda`, and what `cufile` gives, outlive the device. `budget_bytes` is a multiple of 4096 above 0. There is
// a GPU (cuda_accelerator.h looks). kResourceExhausted when it has not so much free memory, scratch included.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(CudaApi& cuda, int64_t budget_bytes,
                                                         const CudaStateMath& state_math,
                                                         CufileLoader cufile);

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUDA_DEVICE_H_
