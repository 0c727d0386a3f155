#include "offload/device/cuda_accelerator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/status.h"
#include "offload/device/gpudirect.h"

namespace strata {
namespace {

constexpr int kFp8Arch = 89;  // the first tensor cores that take fp8

class CudaAccelerator : public Accelerator {
 public:
  CudaAccelerator(CudaApi& cuda, CudaMath math, CufileLoader cufile, const CudaDeviceInfo& info)
      : cuda_(cuda), math_(std::move(math)), cufile_(std::move(cufile)), info_(info) {}

  std::string description() const override { return info_.name; }
  std::string identity() const override { return absl::StrCat(info_.name, ", driver ", info_.driver); }
  int64_t memory_bytes() const override { return info_.memory_bytes; }
  absl::StatusOr<std::string> gpudirect() override {
    STRATA_ASSIGN_OR_RETURN(CufileApi* const cufile, cufile_());
    return CheckGpuDirect(*cufile);
  }
  absl::StatusOr<int64_t> FreeForJobs() override {
    STRATA_RETURN_IF_ERROR(NotReleased());
    size_t free_bytes = 0, total_bytes = 0;
    if (const int error = cuda_.MemGetInfo(&free_bytes, &total_bytes); error != kCudaSuccess) {
      return absl::FailedPreconditionError(absl::StrCat(
          info_.name, " does not say how much memory is free: cudaMemGetInfo: ", cuda_.GetErrorString(error),
          " (CUDA error ", error, "); see nvidia-smi"));
    }
    const int64_t beside = math_.states.scratch_bytes + kLibraryBytes;
    return std::max<int64_t>(0, static_cast<int64_t>(free_bytes) - beside);
  }
  absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) override {
    STRATA_RETURN_IF_ERROR(NotReleased());
    return CreateCudaDevice(cuda_, budget_bytes, math_.states, cufile_);
  }
  absl::Status CheckFp8() const override {
    if (10 * info_.major + info_.minor >= kFp8Arch) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat(info_.name, " has compute capability ", info_.major, ".", info_.minor,
                     ", products in fp8 need 8.9 or newer: use training.precision: bf16, or a worker with a "
                     "newer GPU or none"));
  }
  absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) override {
    STRATA_RETURN_IF_ERROR(NotReleased());
    return math_.make_ops(compute);
  }
  absl::Status Release() override {
    if (std::exchange(released_, true)) return absl::OkStatus();
    const int error = cuda_.DeviceReset();
    if (error == kCudaSuccess) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("cudaDeviceReset: ", cuda_.GetErrorString(error), " (CUDA error ", error, ")"));
  }

 private:
  // Libraries load the code of a kernel to the device when it is first used.
  static constexpr int64_t kLibraryBytes = int64_t{256} << 20;

  absl::Status NotReleased() const {
    if (!released_) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(info_.name, " was given back by this process"));
  }

  CudaApi& cuda_;
  const CudaMath math_;
  const CufileLoader cufile_;
  const CudaDeviceInfo info_;
  bool released_ = false;
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
