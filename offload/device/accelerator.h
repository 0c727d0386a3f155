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
  // What its speed depends on: the card and the driver.
  virtual std::string identity() const = 0;
  virtual int64_t memory_bytes() const = 0;  // all it has, free or not
  // By what GPUDirect Storage goes on this machine, or, kFailedPrecondition, what is missing and the remedy.
  // Nothing of it stays open.
  virtual absl::StatusOr<std::string> gpudirect() = 0;
  // The largest budget of a job now: what is free of its memory, less what stands beside a budget (this
  // process's context is taken for the one that the job's would have). 0 when there is not even that.
  virtual absl::StatusOr<int64_t> FreeForJobs() = 0;
  // As CreateCudaDevice (cuda_device.h).
  virtual absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) = 0;
  // Whether its Ops multiply in fp8 (GemmArgs): kFailedPrecondition with the remedy.
  virtual absl::Status CheckFp8() const = 0;
  // Gives back what this process holds of it, for one that has looked and trains elsewhere. What was created
  // is gone by now; nothing can be created afterwards.
  virtual absl::Status Release() = 0;
};

// A budget that nobody has named, of FreeForJobs: the rest is for other programs' short needs.
inline int64_t AutoDeviceBudget(int64_t free_for_jobs_bytes) { return free_for_jobs_bytes / 10 * 9; }

// What a run trains on: an accelerator, or the CPU and why not an accelerator.
struct AcceleratorChoice {
  Accelerator* accelerator = nullptr;
  std::string why_not;
};

}  // namespace strata

#endif  // OFFLOAD_DEVICE_ACCELERATOR_H_
