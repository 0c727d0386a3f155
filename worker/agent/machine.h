// What this machine can give to jobs.
#ifndef WORKER_AGENT_MACHINE_H_
#define WORKER_AGENT_MACHINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/memory_limit.h"
#include "offload/arena/ram_budgets.h"
#include "offload/device/accelerator.h"
#include "proto/strata/v1/fleet.pb.h"
#include "worker/agent/options.h"

namespace strata {

// The GPU beside the trainer, which loads what is there: kFailedPrecondition with the reason and the remedy
// where there is none. The error names --require-gpu where the options have it.
absl::StatusOr<std::unique_ptr<Accelerator>> OpenGpu(const AgentOptions& options);

struct GpuMemory {
  std::string name;
  int64_t bytes = 0;
  int64_t free_for_jobs_bytes = 0;
};
// What jobs may have of both memories: the flags', and where they are auto a share of what there is, as far
// as what is free now has room for it beside the other and the programs themselves. `gpu` is null where the
// device is the CPU, which takes both from `memory`. kInvalidArgument names the flag to lower, and what sets
// the limit; kResourceExhausted says what auto found.
absl::StatusOr<RamBudgets> OfferMemory(const AgentOptions& options, const MemoryLimits& memory,
                                       const GpuMemory* gpu);

// What InspectMachine would say of the GPU that the options require, and of the budgets.
absl::Status CheckGpuAndBudgets(const AgentOptions& options);

struct Machine {
  v1::Capacity capacity;             // One volume per NVMe path, with its share of the scratch.
  std::vector<double> nvme_weights;  // Of the paths, as jobs stripe over them.
  std::string speeds_why_not;        // "": `capacity` says how fast this machine is
  std::optional<GpuMemory> gpu;      // Device memory is a GPU's, and jobs train on it.
  std::string why_no_gpu;
  MemoryLimit memory;  // By which budgets that are auto were found.
};

// Capacity by the options, derived where they say so; probes each NVMe path by writing to it, and measures
// their speeds when there are several without weights. Looks for a GPU by the plugin beside the trainer
// (offload/device/cuda_plugin.h). Errors name the flag to change.
absl::StatusOr<Machine> InspectMachine(const AgentOptions& options);

// How fast this machine is now; `on_gpu`: with the GPU that InspectMachine found, which is given back. What
// is kept in the state folder is taken where it still holds, else it takes a second or two.
absl::StatusOr<v1::MachineProfile> MeasureSpeedsAgain(const AgentOptions& options, bool on_gpu,
                                                      const std::vector<double>& nvme_weights);

// Where the limit of memory differs from `memory`: makes it that, and finds budgets that are auto anew, into
// `capacity`; a byte each where auto finds nothing. Cheap; for every Sync while no task runs.
void RefreshMemory(const AgentOptions& options, const std::optional<GpuMemory>& gpu, MemoryLimit* memory,
                   v1::Capacity* capacity);

// Free bytes of the NVMe paths now, into their volumes in `capacity`. Cheap; for every Sync.
void RefreshFreeBytes(v1::Capacity* capacity);

// Raises the soft limit of open files to the hard one.
absl::Status RaiseFileLimit();

}  // namespace strata

#endif  // WORKER_AGENT_MACHINE_H_
