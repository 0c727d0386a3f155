#include "offload/device/cuda_accelerator.h"

#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "offload/device/cuda_device.h"

namespace strata {
namespace {

class CudaAccelerator : public Accelerator {
 public:
  CudaAccelerator(CudaApi& cuda, CudaMath math, const CudaDeviceInfo& info)
      : cuda_(cuda), math_(std::move(math)), info_(info) {}

  std::string description() const override { return info_.name; }

  int64_t memory_bytes() const override { return info_.memory_bytes; }

  absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) override {
    STRATA_ASSIGN_OR_RETURN(std::unique_ptr<StateOps> state_ops, math_.make_state_ops());
    STRATA_ASSIGN_OR_RETURN(auto device, CreateCudaDevice(cuda_, budget_bytes, *state_ops));
    state_ops_.push_back(std::move(state_ops));
    return device;
  }
  absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) override { return math_.make_ops(compute); }

 private:
  CudaApi& cuda_;
  const CudaMath math_;
  const CudaDeviceInfo info_;
  std::vector<std::unique_ptr<StateOps>> state_ops_;  // of the devices that were created
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
    return absl::FailedPreconditionError(absl::StrCat("the GPU does not answer: ", text(error)));
  }
  if (info.major < 8) {
    return absl::FailedPreconditionError(absl::StrCat(info.name, " has compute capability ", info.major, ".",
                                                      info.minor,
                                                      ": the kernels need 8.0 (Ampere) or newer"));
  }
  return std::make_unique<CudaAccelerator>(cuda, std::move(math), info);
}

}  // namespace strata
