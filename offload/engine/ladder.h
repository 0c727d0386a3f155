// The ladder: for each thing that makes offloading fast there is a next best, which gives the same bits (but
// for the GPU, whose math rounds in another order than the CPU's). What was chosen, and why not the first
// choice, is one list, in the status of a job and of a worker. A job may insist on a first choice
// (memory.require).
#ifndef OFFLOAD_ENGINE_LADDER_H_
#define OFFLOAD_ENGINE_LADDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "offload/arena/pinned_arena.h"
#include "offload/device/accelerator.h"
#include "offload/io/io_engine.h"
#include "offload/store/nvme_store.h"

namespace strata {

enum class Feature : uint8_t {
  kIoUring,            // else a pool of threads
  kODirect,            // else through the page cache
  kRegisteredBuffers,  // else pages are looked up for each request
  kLockedMemory,       // else the kernel may page the host arena out
  kHugePages,          // else pages of 4 KiB
  kGpu,                // else the CPU
  kCudaHostRegister,   // else copies to and from the GPU go through the driver's staging memory
  kGpuDirect,  // else bytes between NVMe and a GPU go through the host arena; only for jobs that require it
};
inline constexpr int kFeatureCount = 8;

// "io_uring", "o_direct", "registered_buffers", "locked_memory", "huge_pages", "gpu", "cuda_host_register",
// "gpudirect": as in the job file.
const char* FeatureName(Feature feature);

struct Rung {
  Feature feature = Feature::kIoUring;
  std::string chosen;  // "io_uring" or "threads", ...
  std::string why;     // why not the first choice; "" when it is that
};
using Ladder = std::vector<Rung>;  // at most one rung per feature, in their order

struct DeviceReport {
  std::string gpu;  // what it is; "" for the CPU
  std::string why_not_gpu;
  std::string why_not_registered;  // the host arena with the GPU; "" when it is, and without a GPU
  std::string gpudirect;           // by what GPUDirect Storage could go; "" where it cannot
  std::string why_not_gpudirect;   // else: what is missing, and the remedy
  // A plan has no operations between NVMe and device memory unless the job asks for them, since no GPU has
  // seen that path (deploy/docs/kernels_gpu.md).
  bool gpudirect_asked = false;
};

// kGpuDirect of a run with NVMe on these paths.
Rung GpuDirectRung(const DeviceReport& device, const std::vector<NvmePathReport>& paths);

// What a run has. `engines`, of the host's memory, and `paths` are empty when it keeps nothing on NVMe.
Ladder LadderOf(const PinnedArenaReport& arena, const std::vector<IoEngineReport>& engines,
                const std::vector<NvmePathReport>& paths, const DeviceReport& device);

// Fills in what `accelerator` says of GPUDirect Storage.
void AskForGpuDirect(Accelerator& accelerator, DeviceReport& report);

// What this machine offers a run with these NVMe folders. Tries everything on a small scale; errors are the
// paths'.
absl::StatusOr<Ladder> OfferedLadder(const std::vector<std::string>& nvme_paths,
                                     const AcceleratorChoice& accelerator);

// kFailedPrecondition, with the reason and the remedy, when a feature of `required` is not on its first rung.
// A feature that the run does not use is not missed.
absl::Status CheckRequired(const Ladder& ladder, const std::vector<Feature>& required);

}  // namespace strata

#endif  // OFFLOAD_ENGINE_LADDER_H_
