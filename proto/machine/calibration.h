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

// What the source of speeds ends with that were measured while others computed, so that they are less than
// the machine can do.
inline constexpr char kMeasuredWhileBusy[] = ", while others computed: measured again when they do not";
bool WasMeasuredWhileBusy(const v1::MachineProfile& profile);

// The calibration kept in `cache`, if it is of this CPU, number of CPUs and threads, of the file system that
// `nvme_paths` are on, and of the card and driver of `gpu` (null: the CPU computes), and was not made while
// others computed unless they still do; else a new one, which is then kept. A cache that cannot be read or
// written only costs the time to measure again; one that is there and is not what we wrote is told to `warn`,
// with the reason. No path: NVMe is not measured.
absl::StatusOr<v1::MachineProfile> LoadOrCalibrate(const std::string& cache,
                                                   const std::vector<NvmePath>& nvme_paths, int threads,
                                                   Accelerator* gpu,
                                                   const std::function<void(const std::string&)>& warn);

}  // namespace strata

#endif  // PROTO_MACHINE_CALIBRATION_H_
