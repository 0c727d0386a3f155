// How fast the NVMe store is, driven as runs drive it: two lanes each way, each with several checked
// operations in flight.
#ifndef OFFLOAD_CALIBRATE_NVME_PROBE_H_
#define OFFLOAD_CALIBRATE_NVME_PROBE_H_

#include <vector>

#include "absl/status/status.h"
#include "offload/arena/pinned_arena.h"
#include "offload/plan/machine_profile.h"
#include "offload/store/nvme_store.h"

namespace strata {

inline constexpr int64_t kNvmeProbeArenaBytes = int64_t{96} << 20;

// Fills in the profile's nvme_* fields; under a second, but on a disk that is slower than 100 MB/s. Uses all
// of `arena` (kNvmeProbeArenaBytes) and under 256 MiB on the paths, where nothing is left. Errors: the
// store's.
absl::Status ProbeNvme(const std::vector<NvmePath>& paths, PinnedArena& arena, MachineProfile* profile);

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_NVME_PROBE_H_
