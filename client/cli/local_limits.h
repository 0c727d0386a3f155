// This machine as the worker of a local run finds it, and what it offers to one job.
#ifndef CLIENT_CLI_LOCAL_LIMITS_H_
#define CLIENT_CLI_LOCAL_LIMITS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/memory_limit.h"
#include "offload/arena/ram_budgets.h"
#include "offload/device/accelerator.h"
#include "proto/job_spec/violation.h"
#include "proto/strata/v1/machine.pb.h"
#include "proto/strata/v1/plan.pb.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {

struct LocalMachine {
  MemoryLimits memory;
  std::unique_ptr<Accelerator> gpu;  // null: jobs train on the CPU, because:
  std::string why_no_gpu;
  int64_t gpu_free_bytes = 0;  // of the GPU's memory, that jobs can have
};
// Looks for a GPU by the plugin beside the trainer that a worker would start; `bin_dir` as FindProgram has
// it.
absl::StatusOr<LocalMachine> LookAtMachine(const std::string& bin_dir);

// Explicit budgets fit: of the device into the GPU's free memory, of the host, and of a CPU as the device,
// into the RAM that this process may have.
std::vector<FieldViolation> CheckMemory(const v1::JobSpec& spec, const LocalMachine& machine);

// memory.require has no gpu where there is none: "" or `why_no_gpu` that a machine trains on its CPU.
std::vector<FieldViolation> CheckRequiredGpu(const v1::JobSpec& spec, const std::string& why_no_gpu);

// training.precision is not fp8 where the GPU does not multiply in it.
std::vector<FieldViolation> CheckFp8(const v1::JobSpec& spec, const LocalMachine& machine);

// What programs take beside the budgets: of a local run; of a bench, which is a trainer itself.
inline constexpr int64_t kLocalRunBytes = kClientBytes + kCoordinatorBytes + kAgentBytes + kTrainerBytes;
inline constexpr int64_t kBenchBytes = kTrainerBytes;

// The budgets of `spec`, and for each that is auto a share of what the machine has free, at most what
// `own_bytes` leave: the rest is for the page cache and everybody else. Scratch is counted on the file system
// of `nvme_path`, which need not exist yet, and where that is in memory as memory. A GPU's speeds are a guess
// (LocalSpeeds measures). kResourceExhausted: auto finds nothing; with tier, bytes and remedy.
absl::StatusOr<v1::ResourceRequest> LocalLimits(const v1::JobSpec& spec, const LocalMachine& machine,
                                                const std::string& nvme_path, int64_t own_bytes);

// What the machine of a file offers.
v1::ResourceRequest LimitsOf(const v1::MachineFile& machine);

// How fast this machine is, with `gpu` (null: none) as the device: measured the first time (which takes a
// second or two, and is said), then kept in the user's cache folder. NVMe is measured there too. With a note
// on stderr a guess that says so when that fails: then a plan's times are one.
v1::MachineProfile LocalSpeeds(Accelerator* gpu);

}  // namespace strata

#endif  // CLIENT_CLI_LOCAL_LIMITS_H_
