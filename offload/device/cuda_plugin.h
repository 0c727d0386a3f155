// The GPU of this machine, by the plugin beside the executable. Programs have no CUDA among their needed
// libraries: on a machine without driver or toolkit they run, and say why they train on the CPU.
#ifndef OFFLOAD_DEVICE_CUDA_PLUGIN_H_
#define OFFLOAD_DEVICE_CUDA_PLUGIN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "offload/device/accelerator.h"
#include "offload/device/cuda_plugin_abi.h"

namespace strata {

// Loads `folder`/libstrata_cuda.so. kFailedPrecondition when there is no GPU to train on: the message is one
// line, with the reason (no library, one that does not load or is of another build, no driver, no GPU, a GPU
// too old, kernels or a library missing) and the remedy. The library stays loaded. `log`, when given, takes a
// line for each choice among kernels and algorithms that a new shape of attention or GEMM asks for.
absl::StatusOr<std::unique_ptr<Accelerator>> OpenCudaPlugin(const std::string& folder,
                                                            CudaPluginLog log = nullptr);

// The folder of the running executable.
std::string ProgramFolder();

}  // namespace strata

#endif  // OFFLOAD_DEVICE_CUDA_PLUGIN_H_
