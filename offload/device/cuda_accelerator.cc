#include "offload/device/cuda_accelerator.h"

#include <string>
#include <utility>

#include "common/status.h"

namespace strata {
namespace {

constexpr int kFp8Arch = 89;  // the first tensor cores that take fp8

class CudaAccelerator : public Accelerator {
 public:
  CudaAccelerator(CudaApi& cuda, CudaMath math, const CudaDeviceInfo& info)
      : cuda_(cuda), math_(std::move(math)), info_(info) {}

  std::string description() const override { return info_.name; }
  int64_t memory_bytes() const override { return info_.memory_bytes; }
  absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) override {
    return CreateCudaDevice(cuda_, budget_bytes, math_.states);
  }
  absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) override { return math_.make_ops(compute); }
  absl::Status CheckFp8() const override {
    if (10 * info_.major + info_.minor >= kFp8Arch) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(info_.name, " has compute capability ", info_.major, ".", info_.minor,
                     ", products in fp8 need 8.9 or newer: use training.precision: bf16, or a worker with a "
                     "newer GPU or none"));
  }

 private:
  CudaApi& cuda_;
  const CudaMath math_;
  const CudaDeviceInfo info_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Accelerator>> CreateCudaAccelerator(CudaApi& cuda, CudaMath math) {
  const auto text = [&](int error) {
    return absl::StrCat(cuda.GetErrorString(error), " (CUDA error ", error, ")");
  };
  int count = 0;
  if (const int error = cuda.GetDeviceCount(&count); error != kCudaSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("no GPU: ", text(error),
                     "; install the NVIDIA driver (nvidia-smi shows whether it works) and see "
                     "CUDA_VISIBLE_DEVICES"));
  }
  if (count < 1) {
    return absl::FailedPreconditionError(
        "no GPU: the driver shows none; see nvidia-smi and CUDA_VISIBLE_DEVICES");
  }
  CudaDeviceInfo info;
  if (const int error = cuda.GetDeviceInfo(&info); error != kCudaSuccess) {
    return absl::FailedPreconditionError(absl::StrCat("no GPU: it does not answer: ", text(error)));
  }
  // What the kernels are compiled for (deploy/bazel/cuda.bzl): sm_80, which all of 8.x runs, and sm_90a.
  if (info.major != 8 && !(info.major == 9 && info.minor == 0)) {
    return absl::FailedPreconditionError(absl::StrCat("no GPU: ", info.name, " has compute capability ",
                                                      info.major, ".", info.minor,
                                                      ", there are kernels for 8.x and 9.0"));
  }
  return std::make_unique<CudaAccelerator>(cuda, std::move(math), info);
}

}  // namespace strata
