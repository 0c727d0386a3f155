// The calibration that is kept on disk.
#ifndef PROTO_MACHINE_CALIBRATION_H_
#define PROTO_MACHINE_CALIBRATION_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "offload/device/accelerator.h"
#include "offload/store/nvme_store.h"
#include "proto/strata/v1/machine.pb.h"

namespace strata {

// The calibration kept in `cache`, if it is of this CPU, number of CPUs and threads, of the file system that
// `nvme_paths` are on, and of the card and driver of `gpu` (null: the CPU computes), and was not made while
// others computed, or with less memory than there is now, unless others compute now; else a new one, which is
// then kept. Where there is not the memory to measure at all (kResourceExhausted, calibrate.h), any that is
// kept of this machine is taken. A cache that cannot be read or written only costs the time to measure again;
// one that is there and is not what we wrote is told to `warn`, with the reason. No path: NVMe is not
// measured.
absl::StatusOr<v1::MachineProfile> LoadOrCalibrate(const std::string& cache,
                                                   const std::vector<NvmePath>& nvme_paths, int threads,
                                                   Accelerator* gpu,
                                                   const std::function<void(const std::string&)>& warn);

// Whether LoadOrCalibrate takes what is kept of this machine. `memory`: for a new measurement, or why there
// is none. `others_compute` is asked only where it decides, for it takes a tenth of a second.
bool TakeKept(const v1::CalibrationCache& kept, const absl::StatusOr<int64_t>& memory,
              const std::function<bool()>& others_compute);

}  // namespace strata

#endif  // PROTO_MACHINE_CALIBRATION_H_
