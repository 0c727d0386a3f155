// A plugin for tests: FakeCuda and the CPU's math behind the symbol of libstrata_cuda.so. STRATA_FAKE_CUDA
// chooses what is wrong with it: "null", "abi", "driver", "kernels", "oom", "old" (a GPU without fp8);
// nothing else.
#include <cstdlib>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/device/cuda_plugin_abi.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/host_math.h"

namespace {

bool Wrong(const char* what) {
  const char* const text = std::getenv("STRATA_FAKE_CUDA");
  return text != nullptr && std::string(text) == what;
}

strata::FakeCuda& Cuda() {
  // Never destroyed: it has threads, and a program's exit does not wait for them.
  static strata::FakeCuda* const cuda =
      new strata::FakeCuda({.order = strata::FakeCudaOptions::Order::kRandom,
                            .devices = Wrong("driver") ? 0 : 1,
                            .memory_bytes = Wrong("oom") ? 4096 : int64_t{320} << 20,
                            .major = Wrong("old") ? 8 : 9});
  return *cuda;
}

strata::CudaPluginLog choices_log = nullptr;

absl::Status Ready() {
  if (!Wrong("kernels")) return absl::OkStatus();
  return absl::FailedPreconditionError("libcublasLt.so.13 is not there: install cuBLAS 13");
}

}  // namespace

extern "C" const strata::CudaPluginTable* strata_cuda_plugin() {
  if (Wrong("null")) return nullptr;
  static const strata::CudaPluginTable table = {
      .abi = strata::kCudaPluginAbi + (Wrong("abi") ? 1 : 0),
      .ready = &Ready,
      .api = []() -> strata::CudaApi& { return Cuda(); },
      .set_log = [](strata::CudaPluginLog wanted) { choices_log = wanted; },
      .make_ops = [](strata::DType compute) -> absl::StatusOr<std::unique_ptr<strata::Ops>> {
        if (choices_log != nullptr) choices_log("the CPU's math in every shape");
        return strata::EnqueuedOps(Cuda(), strata::MakeCpuOps(compute, 1));
      },
      .state_scratch_bytes = []() -> int64_t { return 0; },
      .make_state_ops = [](strata::Workspace) -> absl::StatusOr<std::unique_ptr<strata::StateOps>> {
        return strata::EnqueuedStateOps(Cuda(), strata::MakeCpuStateOps(1));
      },
  };
  return &table;
}
