// Trainer processes: starting them so that they cannot outlive this agent or go unrecorded, and ending whole
// process groups with proof.
#ifndef WORKER_AGENT_PROCESS_H_
#define WORKER_AGENT_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/thread.h"

namespace strata {

// A process for as long as the machine is up: a pid alone is used again, a pid with its start time is not.
struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat, clock ticks since boot
};

struct ProcessStat {
  ProcessIdentity identity;
  pid_t parent = 0;
  pid_t group = 0;
  bool zombie = false;  // dead, its memory and files are gone, only the entry is left
};

// kNotFound when there is no such process.
absl::StatusOr<ProcessStat> ReadProcessStat(pid_t pid);

// All processes that /proc shows now.
std::vector<ProcessStat> ListProcesses();

// A descriptor that stays with this very process; invalid where the process or the kernel's support is
// missing. Readable once the process has ended.
Fd OpenPidfd(pid_t pid);

// SIGKILLs exactly this process: through a descriptor that was checked after it was opened, so a number that
// changes hands in between cannot be hit. A process that is gone already is fine.
void KillExactly(const ProcessIdentity& identity);

// Differs between two boots of the machine; "" where the kernel does not tell.
std::string BootId();

struct SpawnRequest {
  std::vector<std::string> argv;         // argv[0] is the path
  std::vector<std::string> environment;  // all of it, "NAME=value"
};

// A started process with this side's ends of what connects to it. Nobody has reaped it yet.
struct ChildProcess {
  ProcessIdentity identity;  // also the leader of its own process group
  Fd channel;                // non-blocking; the child's end is descriptor kTrainerAgentFd
  Fd stdout_pipe;            // non-blocking
  Fd stderr_pipe;            // non-blocking
  Fd pidfd;                  // readable once the process ended; invalid where the kernel has none
};

// Starts processes from one thread of its own. PR_SET_PDEATHSIG is about the *thread* that forked: it must
// live as long as the agent, or the kernel would kill trainers when some short-lived thread ends.
class Spawner {
 public:
  Spawner();
  ~Spawner();  // ends the thread, and with it everything it started (PDEATHSIG)

  // Starts a process in its own group, with SIGKILL when this agent dies, stdin from /dev/null, no core
  // file, default signals, and no descriptor but 0-3; where memory ends, the kernel kills it rather than this
  // agent. `record` runs when the process exists but has not become the program yet; if it fails, or this
  // agent dies meanwhile, the program never runs. Any thread; blocks for the record's fsync. Errors name
  // argv[0].
  absl::StatusOr<ChildProcess> Spawn(const SpawnRequest& request,
                                     const std::function<absl::Status(const ProcessIdentity&)>& record);

 private:
  void Loop();

  Mutex mu_;
  CondVar wake_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  Thread thread_;
};

// Sends `signal` to the group of a leader that has not been reaped (so its number cannot be anyone else's).
void SignalGroup(pid_t group, int signal);

// One step of ending a group whose leader, our child, has ended but is not reaped: SIGKILLs the other
// members, reaps those that came to us. When no other member is left, reaps the leader into *wait_status
// and returns true; else false, to be called again. The process must be a child subreaper.
bool EndGroup(pid_t leader, int* wait_status);

// Whether the child ended; does not reap.
bool HasEnded(pid_t child);

}  // namespace strata

#endif  // WORKER_AGENT_PROCESS_H_
