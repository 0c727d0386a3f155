// Calibration: how fast this machine is at what plans are made of, measured with the kernels, the copies and
// the NVMe store that runs use.
//
// It takes a second or two: every measurement has a slice of time and is the best of what fits into it (of
// the optimizer's work and of copies the lower quartile, from memory that is in no cache), so a busy machine
// gives slower numbers, not a longer wait. NVMe is driven as runs drive it, two lanes each way, for a fifth
// of a second. Numbers depend on the machine alone: the result may be kept (proto/machine) as long as CPU,
// threads, the path's device, the GPU and its driver stay the same.
#ifndef OFFLOAD_CALIBRATE_CALIBRATE_H_
#define OFFLOAD_CALIBRATE_CALIBRATE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/device/accelerator.h"
#include "offload/plan/machine_profile.h"
#include "offload/store/nvme_store.h"

namespace strata {

struct CalibrationOptions {
  std::vector<NvmePath> nvme_paths;  // scratch is made there and removed; none: NVMe stays a guess
  int threads = 2;                   // of a compute or optimizer operation
  Accelerator* gpu = nullptr;        // what computes instead of the CPU (gpu_probe.h)
};

// Errors: memory for the measurements (under 200 MiB, and the GPU's) or space on the path (under 256 MiB)
// cannot be had, or a kernel or the disk fails.
absl::StatusOr<MachineProfile> Calibrate(const CalibrationOptions& options);

// Others compute now: what is measured is less than what the machine can do.
bool MachineIsBusy();

// CPUs this process may run on.
int AvailableCpus();
// As /proc/cpuinfo names it, and the instruction set that the kernels use.
std::string CpuModel();

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_CALIBRATE_H_
