// The conformance suite on the GPU of this machine: real launches, cuBLASLt's GEMMs, attention by the
// dispatch's choice, by each kernel family that the GPU has and, where it is, by cuDNN. Run by
// tests/gpu/run_on_device.
//   exit 0: all passed, or "SKIPPED: REASON" where there is no GPU; 1: something differs
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/conformance/harness.h"
#include "kernels/cublaslt/cublaslt_gemm.h"
#include "kernels/cublaslt/cublaslt_library.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cudnn/cudnn_attention.h"
#include "kernels/cudnn/cudnn_library.h"
#include "kernels/dispatch/cuda_attention.h"

namespace strata::conformance {
namespace {

// A context that met an error is lost, and so is everything after it.
void MustSucceed(int error, const char* what) {
  const absl::Status status = CudaCall(error, what);
  if (status.ok()) return;
  std::printf("FAILED: %s\n", std::string(status.message()).c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

class DeviceMemory final : public Memory {
 public:
  void* Allocate(int64_t bytes) override {
    void* data = nullptr;
    MustSucceed(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc");
    return data;
  }
  void Free(void* data) override { MustSucceed(cudaFree(data), "cudaFree"); }
  void CopyIn(void* device, const void* host, int64_t bytes) override {
    MustSucceed(cudaMemcpy(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
                "copy to device");
  }
  // Both are ordered with the default stream, which the suite's calls use.
  void CopyOut(void* host, const void* device, int64_t bytes, Stream*) override {
    MustSucceed(cudaMemcpy(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost), "copy to host");
  }
};

CublasLtGemm& Gemm() {
  static CublasLtGemm* const gemm = CublasLtGemm::Create(**LoadCublasLt())->release();
  return *gemm;
}

// By cuDNN what it takes, the rest (a row alone; more workspace than Ops lend) by the own kernels. Its
// repeated calls have to give the same bits, as everybody's.
class CudnnFirst : public AttentionBackend {
 public:
  CudnnFirst(int arch, CudnnAttention& cudnn)
      : cudnn_(arch, {.forced = AttentionProvider::kCudnn, .cudnn_why_not = ""}, &cudnn), own_(arch, {}) {}

  absl::Status Forward(Stream* stream, DType compute, const AttentionArgs& args) override {
    const absl::Status status = cudnn_.Forward(stream, compute, args);
    return Taken(status) ? status : own_.Forward(stream, compute, args);
  }
  absl::Status Backward(Stream* stream, DType compute, const AttentionBackwardArgs& args) override {
    const absl::Status status = cudnn_.Backward(stream, compute, args);
    return Taken(status) ? status : own_.Backward(stream, compute, args);
  }

  static inline int taken = 0, left = 0;  // calls

 private:
  static bool Taken(const absl::Status& status) {
    const bool left_to_own = absl::IsUnimplemented(status);
    ++(left_to_own ? left : taken);
    return !left_to_own;
  }

  CudaAttention cudnn_, own_;
};

using MakeAttention = std::function<std::unique_ptr<AttentionBackend>(int arch)>;

Backend Gpu(const char* name, DType compute, MakeAttention make_attention) {
  static DeviceMemory memory;
  Backend backend;
  backend.name = name;
  backend.compute = compute;
  backend.make = [compute, make_attention](int) -> std::unique_ptr<Ops> {
    const auto gpu = FindGpu();
    if (!gpu.ok()) return nullptr;
    // For the life of the process, as what it is lent to.
    AttentionBackend* const attention = make_attention(gpu->arch).release();
    return MakeCudaOps(compute, Gemm(), *attention);
  };
  backend.memory = &memory;
  backend.settings = {1};
  backend.setting_name = "run";
  if (compute == DType::kF32) backend.no_attention = "no attention kernel computes in f32";
  const auto found = FindGpu();
  if (found.ok() && found->arch < 89) backend.no_fp8 = "fp8 needs compute capability 8.9";
  backend.attention_unit = 8;
  return backend;
}

MakeAttention Own(std::optional<AttentionProvider> forced = std::nullopt) {
  return [forced](int arch) {
    return std::make_unique<CudaAttention>(arch, AttentionDispatchOptions{.forced = forced});
  };
}

}  // namespace

std::vector<Backend> Backends() {
  // The dispatch takes FA3 where it has a kernel and FA2 elsewhere: FA2's kernels of those shapes need
  // forcing.
  std::vector<Backend> backends = {
      Gpu("CudaF32", DType::kF32, Own()),
      Gpu("CudaBf16", DType::kBF16, Own()),
      Gpu("CudaF16", DType::kF16, Own()),
      Gpu("CudaBf16Fa2", DType::kBF16, Own(AttentionProvider::kFa2)),
      Gpu("CudaF16Fa2", DType::kF16, Own(AttentionProvider::kFa2)),
  };
  if (!FindGpu().ok()) return backends;
  const auto library = LoadCudnn();
  absl::Status cudnn = library.status();
  if (cudnn.ok()) {
    static auto* const attention = new auto(CudnnAttention::Create(**library));  // as Gemm()
    cudnn = attention->status();
    if (cudnn.ok()) {
      backends.push_back(Gpu("CudaBf16Cudnn", DType::kBF16,
                             [](int arch) { return std::make_unique<CudnnFirst>(arch, ***attention); }));
    }
  }
  if (!cudnn.ok()) std::printf("without cuDNN: %s\n", std::string(cudnn.message()).c_str());
  return backends;
}

}  // namespace strata::conformance

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto gpu = strata::FindGpu();
  if (!gpu.ok()) {
    std::printf("SKIPPED: %s\n", std::string(gpu.status().message()).c_str());
    return 0;
  }
  std::printf("%s\n", gpu->name.c_str());
  auto cublaslt = strata::LoadCublasLt();
  absl::Status ready = cublaslt.status();
  if (ready.ok()) ready = strata::CublasLtGemm::Create(**cublaslt).status();
  if (!ready.ok()) {
    std::printf("FAILED: %s\n", std::string(ready.message()).c_str());
    return 1;
  }
  const int failed = RUN_ALL_TESTS();
  std::printf("cuDNN took %d attention calls and left %d to the own kernels\n",
              strata::conformance::CudnnFirst::taken, strata::conformance::CudnnFirst::left);
  return failed;
}
