// Calibration: how fast this machine is at what plans are made of, measured with the kernels, the copies and
// the NVMe store that runs use.
//
// It takes a second or two: every measurement has a slice of time and is the best of what fits into it (of
// the optimizer's work and of copies the lower quartile, from memory that is in no cache), so a busy machine
// gives slower numbers, not a longer wait. NVMe is driven as runs drive it, two lanes each way, for a fifth
// of a second. Numbers depend on the machine and the memory lent to the measurements: the result may be kept
// (proto/machine) as long as CPU, threads, the path's device, the GPU and its driver stay the same.
#ifndef OFFLOAD_CALIBRATE_CALIBRATE_H_
#define OFFLOAD_CALIBRATE_CALIBRATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/memory_limit.h"
#include "offload/device/accelerator.h"
#include "offload/plan/machine_profile.h"
#include "offload/store/nvme_store.h"

namespace strata {

// Of the buffers of the measurements. Half, a quarter and an eighth will do where there is less: of sizes
// that do not fit, smaller ones then speak (compute_probe.h).
inline constexpr int64_t kCalibrationBytes = int64_t{96} << 20;
inline constexpr int64_t kCalibrationLeastBytes = kCalibrationBytes / 8;

// The most of these that `available` has room for, beside what kernels and libraries take themselves and a
// reserve for others in the control group; `files_in_memory`: NVMe is measured on a path whose files are in
// memory (tmpfs). kResourceExhausted with need, have and remedy: not even the least.
absl::StatusOr<int64_t> CalibrationMemory(const MemoryLimit& available, bool files_in_memory);

// The same of this process now. What the kernel does not tell does not bind.
absl::StatusOr<int64_t> CalibrationMemoryNow(const std::vector<NvmePath>& nvme_paths);

struct CalibrationOptions {
  std::vector<NvmePath> nvme_paths;          // scratch is made there and removed; none: NVMe stays a guess
  int threads = 2;                           // of a compute or optimizer operation
  Accelerator* gpu = nullptr;                // what computes instead of the CPU (gpu_probe.h)
  int64_t memory_bytes = kCalibrationBytes;  // as CalibrationMemory says
};

// The profile's source says when `memory_bytes` is less than usual. Errors: memory for the measurements (and
// the GPU's) or space on the path (2.5 times `memory_bytes`) cannot be had, or a kernel or the disk fails.
absl::StatusOr<MachineProfile> Calibrate(const CalibrationOptions& options);

// Others compute now: what is measured is less than what the machine can do.
bool MachineIsBusy();

// CPUs this process may run on.
int AvailableCpus();
// As /proc/cpuinfo names it, and the instruction set that the kernels use.
std::string CpuModel();

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_CALIBRATE_H_
