// What this machine can give to jobs.
#ifndef WORKER_AGENT_MACHINE_H_
#define WORKER_AGENT_MACHINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/strata/v1/fleet.pb.h"
#include "worker/agent/options.h"

namespace strata {

// Memory this process may use: the machine's, or its control group's limit where that is lower.
absl::StatusOr<int64_t> AvailableMemoryBytes();

struct Machine {
  v1::Capacity capacity;             // One volume per NVMe path, with its share of the scratch.
  std::vector<double> nvme_weights;  // Of the paths, as jobs stripe over them.
  std::string speeds_why_not;        // "": `capacity` says how fast this machine is
  bool gpu = false;                  // Device memory is a GPU's, and jobs train on it.
  std::string why_no_gpu;
};

// Capacity by the options, derived where they say so; probes each NVMe path by writing to it, and measures
// their speeds when there are several without weights. Looks for a GPU by the plugin beside the trainer
// (offload/device/cuda_plugin.h). Errors name the flag to change.
absl::StatusOr<Machine> InspectMachine(const AgentOptions& options);

// How fast this machine is, into `capacity` or `speeds_why_not`; `nvme_weights` are set. What is kept in the
// state folder is taken where it still holds, else it takes a second or two.
void MeasureSpeeds(const AgentOptions& options, Machine* machine);

// Free bytes of the NVMe paths now, into their volumes in `capacity`. Cheap; for every Sync.
void RefreshFreeBytes(v1::Capacity* capacity);

// Raises the soft limit of open files to the hard one.
absl::Status RaiseFileLimit();

}  // namespace strata

#endif  // WORKER_AGENT_MACHINE_H_
