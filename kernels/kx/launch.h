// Launching kernels, on both targets. Only an operation's launch.cc includes this (compiled by nvcc for the
// product and by the host compiler for emulation); its own header shows plain parameters and a kx::Stream.
#ifndef KERNELS_KX_LAUNCH_H_
#define KERNELS_KX_LAUNCH_H_

#include <string>
#include <utility>

#include "kernels/kx/launch_types.h"
#include "kernels/kx/target.h"
#include "kernels/kx/tensor_map.h"
#include "kernels/kx/types.h"

#if KX_GPU
#include <cuda.h>  // the types of tensor maps; their one function is fetched at run time
#include <cuda_runtime.h>
#else
#include "kernels/kx/emu/emu.h"
#include "kernels/kx/emu/tensor_map.h"
#endif

namespace strata::kx {

#if KX_GPU

inline LaunchStatus FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // clear, so the next check reports its own failure
  return {static_cast<int>(error), std::string(what) + ": " + cudaGetErrorString(error)};
}

template <class... P, class... A>
LaunchStatus Launch(const LaunchConfig& config, void (*kernel)(P...), A&&... arguments) {
  if (config.shared_bytes > 48 * 1024) {
    const LaunchStatus status = FromCuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                              static_cast<int>(config.shared_bytes)),
                                         "cudaFuncSetAttribute(MaxDynamicSharedMemorySize)");
    if (!status.ok()) return status;
  }
  kernel<<<dim3(config.grid.x, config.grid.y, config.grid.z),
           dim3(config.block.x, config.block.y, config.block.z), config.shared_bytes,
           static_cast<cudaStream_t>(config.stream)>>>(P(std::forward<A>(arguments))...);
  return FromCuda(cudaGetLastError(), "kernel launch");
}

inline LaunchStatus EncodeTensorMap(const TensorMapSpec& spec, TensorMap* map) {
  const std::string wrong = CheckTensorMapSpec(spec);
  if (!wrong.empty()) return {static_cast<int>(cudaErrorInvalidValue), wrong};
  // The encoder is the driver's, which wants a context on the calling thread: the runtime puts the device's
  // there with the first call that needs one, and this may be the thread's first.
  static thread_local bool bound = false;
  if (!bound) {
    const LaunchStatus status = FromCuda(cudaFree(nullptr), "cudaFree(nullptr), for a context");
    if (!status.ok()) return status;
    bound = true;
  }
  // libcuda is never linked: a program that were would not start without a driver.
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    return {static_cast<int>(error != cudaSuccess ? error : cudaErrorNotSupported),
            "the driver has no cuTensorMapEncodeTiled: TMA needs CUDA 12.0 or newer"};
  }
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  cuuint64_t extent[4], stride[3];
  cuuint32_t box[4], element_stride[4] = {1, 1, 1, 1};
  for (int i = 0; i < spec.rank; ++i) {
    extent[i] = spec.extent[i];
    box[i] = spec.box[i];
    if (i > 0) stride[i - 1] = spec.stride_bytes[i - 1];
  }
  const CUtensorMapDataType type = spec.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : spec.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  const CUresult result =
      encode(reinterpret_cast<CUtensorMap*>(map), type, static_cast<cuuint32_t>(spec.rank),
             const_cast<void*>(spec.base), extent, stride, box, element_stride, CU_TENSOR_MAP_INTERLEAVE_NONE,
             spec.swizzle128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return {static_cast<int>(cudaErrorInvalidValue),
            "cuTensorMapEncodeTiled: error " + std::to_string(result)};
  }
  return {};
}

#else

// The emulator runs the kernel now, on the calling thread, whatever the stream.
template <class... P, class... A>
LaunchStatus Launch(const LaunchConfig& config, void (*kernel)(P...), A&&... arguments) {
  const emu::Report report =
      emu::RunLaunch(config.grid, config.block, config.shared_bytes, [&] { kernel(P(arguments)...); });
  if (report.ok()) return {};
  return {kEmulatorRefused, "emulator: " + report.FirstError()};
}

inline LaunchStatus EncodeTensorMap(const TensorMapSpec& spec, TensorMap* map) {
  const std::string wrong = CheckTensorMapSpec(spec);
  if (!wrong.empty()) return {kEmulatorRefused, wrong};
  emu::TensorMapFields fields = {};
  fields.magic = emu::TensorMapFields::kMagic;
  fields.rank = static_cast<uint16_t>(spec.rank);
  fields.element_bytes = static_cast<uint16_t>(spec.element_bytes);
  fields.base = const_cast<void*>(spec.base);
  fields.swizzle_bytes = spec.swizzle128 ? 128 : 0;
  for (int i = 0; i < spec.rank; ++i) {
    fields.extent[i] = static_cast<uint32_t>(spec.extent[i]);
    fields.box[i] = static_cast<uint16_t>(spec.box[i]);
    if (i > 0) fields.stride[i - 1] = spec.stride_bytes[i - 1];
  }
  *map = {};
  memcpy(map->opaque, &fields, sizeof fields);
  return {};
}

#endif

}  // namespace strata::kx

#endif  // KERNELS_KX_LAUNCH_H_
