// Accelerator: what a process may train on beside its CPU. The one implementation is a CUDA GPU through the
// plugin (cuda_plugin.h); tests put a FakeCuda behind the same seam.
#ifndef OFFLOAD_DEVICE_ACCELERATOR_H_
#define OFFLOAD_DEVICE_ACCELERATOR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "offload/device/device.h"

namespace strata {

// Outlives what it creates. Threads: one at a time.
class Accelerator {
 public:
  virtual ~Accelerator() = default;

  virtual std::string description() const = 0;
  virtual int64_t memory_bytes() const = 0;  // all it has, free or not
  // As CreateCudaDevice (cuda_device.h).
  virtual absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) = 0;
  // Whether its Ops multiply in fp8 (GemmArgs): kFailedPrecondition with the remedy.
  virtual absl::Status CheckFp8() const = 0;
};

// What a run trains on: an accelerator, or the CPU and why not an accelerator.
struct AcceleratorChoice {
  Accelerator* accelerator = nullptr;
  std::string why_not;
};

}  // namespace strata

#endif  // OFFLOAD_DEVICE_ACCELERATOR_H_
