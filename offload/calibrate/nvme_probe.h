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

// Of the files that ProbeNvme makes with an arena of `arena_bytes`.
int64_t NvmeProbeFileBytes(int64_t arena_bytes);

// Fills in the profile's nvme_* fields; under a second, but on a disk that is slower than 100 MB/s. Uses all
// of `arena` up to 96 MiB (at least 64 KiB; items are as large as it allows) and files on the paths, of which
// nothing is left. Errors: the store's.
absl::Status ProbeNvme(const std::vector<NvmePath>& paths, PinnedArena& arena, MachineProfile* profile);

}  // namespace strata

#endif  // OFFLOAD_CALIBRATE_NVME_PROBE_H_
