// What an earlier incarnation of this agent may have left on the machine: trainer processes and scratch
// folders. Both go before the agent registers, so that the coordinator never counts on resources still in
// use.
#ifndef WORKER_AGENT_LEFTOVERS_H_
#define WORKER_AGENT_LEFTOVERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/agent/state_dir.h"

namespace strata {

// Every trainer's environment carries these two, so its processes are known even where their leader died.
inline constexpr char kTaskVariable[] = "STRATA_TASK";
inline constexpr char kStateDirVariable[] = "STRATA_WORKER_STATE_DIR";

// This file in a folder says: the folder is scratch of the agent that it names, which may remove it.
inline constexpr char kScratchMarker[] = ".strata-scratch";
// What the file holds. Of two agents of one worker id each has a state folder of its own; one that lost its
// state has the same folder again.
std::string ScratchOwner(const std::string& worker_id, const std::string& state_dir);

// SIGKILLs every process that belongs to one of the records - the recorded process itself (pid, start time
// and boot all equal), its process group, and any process that carries this state folder's variables - and
// returns once none is left. Never touches a process that only has a recorded number. kDeadlineExceeded
// names the process that would not go.
absl::Status KillLeftovers(const std::string& state_dir, const std::vector<TaskRecord>& records,
                           absl::Duration timeout);

// Makes `<nvme_path>/<job_uid>` with its marker, and the task's folder in it, which is returned. Several
// ranks of one job share the job's folder.
absl::StatusOr<std::string> MakeScratch(const std::string& nvme_path, const std::string& owner,
                                        const TaskKey& key);
// The same path without making it.
std::string ScratchPath(const std::string& nvme_path, const TaskKey& key);

// Removes a task's folder, and the job's folder with it when that was its last one.
absl::Status RemoveScratch(const std::string& scratch);

// Removes the scratch of the records, and every folder in the NVMe paths whose marker names `owner` (found
// even when what was in the state folder was lost); anything else there is not ours. Returns what it removed.
absl::StatusOr<std::vector<std::string>> SweepScratch(const std::vector<std::string>& nvme_paths,
                                                      const std::string& owner,
                                                      const std::vector<TaskRecord>& records);

}  // namespace strata

#endif  // WORKER_AGENT_LEFTOVERS_H_
