// libstrata_cuda.so: everything of CUDA that a program uses, behind one symbol.
#include "offload/device/cuda/cudart_api.h"
#include "offload/device/cuda_plugin_abi.h"

namespace {

absl::Status NoKernels() {
  return absl::FailedPreconditionError(
      "libstrata_cuda.so has no kernels for training yet; jobs run on the CPU until a build has them");
}

}  // namespace

extern "C" const strata::CudaPluginTable* strata_cuda_plugin() {
  static const strata::CudaPluginTable table = {
      .ready = &NoKernels,
      .api = &strata::CudartApi,
      .make_ops = [](strata::DType) -> absl::StatusOr<std::unique_ptr<strata::Ops>> { return NoKernels(); },
      .state_scratch_bytes = []() -> int64_t { return 0; },
      .make_state_ops = [](strata::Workspace) -> absl::StatusOr<std::unique_ptr<strata::StateOps>> {
        return NoKernels();
      },
  };
  return &table;
}
