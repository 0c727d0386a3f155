// What libstrata_cuda.so and the programs agree on. The library is built with the programs from one tree: the
// version and the sizes tell one of another tree, whose classes may be laid out differently.
#ifndef OFFLOAD_DEVICE_CUDA_PLUGIN_ABI_H_
#define OFFLOAD_DEVICE_CUDA_PLUGIN_ABI_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/state_ops.h"
#include "offload/device/cuda_api.h"

namespace strata {

inline constexpr char kCudaPluginFile[] = "libstrata_cuda.so";
inline constexpr char kCudaPluginSymbol[] = "strata_cuda_plugin";

// One more with each change of CudaPluginTable, CudaApi, Ops or StateOps.
inline constexpr uint32_t kCudaPluginAbi = 5;

// Takes one line; any thread.
using CudaPluginLog = void (*)(const std::string& line);

struct CudaPluginTable {
  // These two are at the beginning of every version.
  uint32_t abi = kCudaPluginAbi;
  uint32_t bytes = sizeof(CudaPluginTable);
  // OK, or what this build or this machine lacks for training (kernels, a library) and the remedy. May take
  // half a second: it loads libraries.
  absl::Status (*ready)() = nullptr;
  // The runtime; for the process's life.
  CudaApi& (*api)() = nullptr;
  // Where what is chosen for new shapes of attention and GEMMs is told, a line each; called at most once,
  // before make_ops.
  void (*set_log)(CudaPluginLog log) = nullptr;
  absl::StatusOr<std::unique_ptr<Ops>> (*make_ops)(DType compute) = nullptr;
  // As CudaStateMath (cuda_device.h).
  int64_t (*state_scratch_bytes)() = nullptr;
  absl::StatusOr<std::unique_ptr<StateOps>> (*make_state_ops)(Workspace scratch) = nullptr;
};

}  // namespace strata

// The library's one symbol.
extern "C" const strata::CudaPluginTable* strata_cuda_plugin();

#endif  // OFFLOAD_DEVICE_CUDA_PLUGIN_ABI_H_
