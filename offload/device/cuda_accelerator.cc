#include "offload/device/cuda_accelerator.h"

#include <string>
#include <utility>

#include "common/status.h"
#include "offload/device/gpudirect.h"

namespace strata {
namespace {

class CudaAccelerator : public Accelerator {
 public:
  CudaAccelerator(CudaApi& cuda, CudaMath math, CufileLoader cufile, const CudaDeviceInfo& info)
      : cuda_(cuda), math_(std::move(math)), cufile_(std::move(cufile)), info_(info) {}

  std::string description() const override { return info_.name; }
  int64_t memory_bytes() const override { return info_.memory_bytes; }
  std::string gpudirect() override {
    const auto cufile = cufile_();
    return cufile.ok() ? DescribeGpuDirect(**cufile) : std::string(cufile.status().message());
  }
  absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) override {
    return CreateCudaDevice(cuda_, budget_bytes, math_.states);
  }
  absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) override { return math_.make_ops(compute); }

 private:
  CudaApi& cuda_;
  const CudaMath math_;
  const CufileLoader cufile_;
  const CudaDeviceInfo info_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Accelerator>> CreateCudaAccelerator(CudaApi& cuda, CudaMath math,
                                                                   CufileLoader cufile) {
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
  return std::make_unique<CudaAccelerator>(cuda, std::move(math), std::move(cufile), info);
}

}  // namespace strata
