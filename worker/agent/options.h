// What a worker agent is told: flags, their defaults and their checks.
#ifndef WORKER_AGENT_OPTIONS_H_
#define WORKER_AGENT_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace strata {

struct AgentOptions {
  std::string server;     // address of the coordinator as gRPC takes it
  std::string worker_id;  // default: the host's name
  std::string state_dir;
  std::vector<std::string> nvme_paths;  // default: <state_dir>/nvme; jobs' scratch is striped over them
  std::vector<double> nvme_weights;     // one per path; none: by measured speed
  std::string
      checkpoint_root;  // default: <state_dir>/checkpoints; shared storage when there are several workers
  int64_t device_bytes = 0;                              // 0: 90 % of what is free of the GPU's memory, or
                                                         // 25 % of what memory this process may have
  int64_t host_bytes = 0;                                // 0: 60 % of it; both less where less is free
  int64_t nvme_bytes = 0;                                // 0: 80 % of what is free at start
  std::string trainer;                                   // default: strata_trainer near this executable
  bool require_gpu = false;                              // no GPU: do not start
  absl::Duration stop_grace = absl::Seconds(10);         // STOP message to SIGTERM
  absl::Duration checkpoint_grace = absl::Seconds(120);  // CHECKPOINT_AND_STOP to STOP
  bool check_config = false;
};

// nullopt when only help was asked for (and printed). kInvalidArgument names the flag.
absl::StatusOr<std::optional<AgentOptions>> ParseAgentOptions(int argc, const char* const* argv);

// Fills in defaults, makes paths absolute and checks every value. Touches nothing on disk.
absl::Status ResolveAgentOptions(AgentOptions* options);

// Makes and checks the folders and finds the trainer; errors name the flag and a remedy. With check_config
// nothing is made: a folder that is not there yet is fine when it could stand there. The trainer is then
// looked for only with require_gpu, because a GPU is looked for beside it.
absl::Status PreparePaths(AgentOptions* options);

}  // namespace strata

#endif  // WORKER_AGENT_OPTIONS_H_
