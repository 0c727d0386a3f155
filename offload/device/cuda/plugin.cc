// libstrata_cuda.so: everything of CUDA that a program uses, behind one symbol.
//
// STRATA_ATTENTION=fa3, fa2 or cudnn forces the provider of attention, for comparisons: a job that
// it cannot serve fails with the reason.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "common/mutex.h"
#include "common/status.h"
#include "kernels/cublaslt/cublaslt_gemm.h"
#include "kernels/cublaslt/cublaslt_library.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_state_ops.h"
#include "kernels/cudnn/cudnn_attention.h"
#include "kernels/cudnn/cudnn_library.h"
#include "kernels/dispatch/cuda_attention.h"
#include "offload/device/cuda/cudart_api.h"
#include "offload/device/cuda_plugin_abi.h"

namespace strata {
namespace {

// What the Ops of this process share: library handles and what was chosen for the shapes seen so far.
struct Libraries {
  std::unique_ptr<CublasLtGemm> gemm;
  std::unique_ptr<CudnnAttention> cudnn;
  std::unique_ptr<CudaAttention> attention;
};

CudaPluginLog choices_log = nullptr;
void SetLog(CudaPluginLog wanted) { choices_log = wanted; }
void Log(const std::string& line) {
  if (choices_log != nullptr) choices_log(line);
}

absl::StatusOr<std::unique_ptr<Libraries>> OpenLibraries() {
  auto libraries = std::make_unique<Libraries>();
  STRATA_ASSIGN_OR_RETURN(CublasLtApi* const cublaslt, LoadCublasLt());
  STRATA_ASSIGN_OR_RETURN(libraries->gemm, CublasLtGemm::Create(*cublaslt, &Log));
  CudaDeviceInfo info;
  if (const int error = CudartApi().GetDeviceInfo(&info); error != kCudaSuccess) {
    return absl::InternalError(absl::StrCat("cudaGetDeviceProperties: ", CudartApi().GetErrorString(error)));
  }
  AttentionDispatchOptions options;
  options.log = &Log;
  // Where the own kernels run there is no need of cuDNN, which takes seconds to load.
  options.cudnn_why_not = "not asked for (STRATA_ATTENTION=cudnn)";
  if (const char* const name = std::getenv("STRATA_ATTENTION"); name != nullptr) {
    STRATA_ASSIGN_OR_RETURN(options.forced, TrainingProviderOf(name), "STRATA_ATTENTION");
    if (*options.forced == AttentionProvider::kCudnn) {
      STRATA_ASSIGN_OR_RETURN(CudnnApi* const cudnn, LoadCudnn());
      STRATA_ASSIGN_OR_RETURN(libraries->cudnn, CudnnAttention::Create(*cudnn));
      options.cudnn_why_not.clear();
    }
  }
  libraries->attention = std::make_unique<CudaAttention>(10 * info.major + info.minor, std::move(options),
                                                         libraries->cudnn.get());
  return libraries;
}

absl::Status Ready() { return LoadCublasLt().status(); }

absl::StatusOr<std::unique_ptr<Ops>> MakeOps(DType compute) {
  static Mutex mu;
  static Libraries* libraries = nullptr;  // for the process's life, as the libraries are
  MutexLock lock(mu);
  if (libraries == nullptr) {
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<Libraries> opened, OpenLibraries());
    libraries = opened.release();
  }
  return MakeCudaOps(compute, *libraries->gemm, *libraries->attention);
}

absl::StatusOr<std::unique_ptr<StateOps>> MakeStateOps(Workspace scratch) {
  return MakeCudaStateOps(scratch);
}

}  // namespace
}  // namespace strata

extern "C" const strata::CudaPluginTable* strata_cuda_plugin() {
  static const strata::CudaPluginTable table = {
      .ready = &strata::Ready,
      .api = &strata::CudartApi,
      .set_log = &strata::SetLog,
      .make_ops = &strata::MakeOps,
      .state_scratch_bytes = &strata::CudaStateScratchBytes,
      .make_state_ops = &strata::MakeStateOps,
  };
  return &table;
}
