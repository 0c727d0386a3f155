// LocalService: a coordinator and a worker on this machine, kept alive by one small supervisor process.
//
//   strata (CLI) --fork--> supervisor --fork, exec--> strata_server, strata_worker --> trainers
//
// The supervisor is its own session, so Ctrl-C of the terminal reaches only the CLI. It starts the server,
// waits for its port, starts the worker, and starts either again when it dies (the server on the same port),
// with backoff and a bound. Who dies, and what follows:
//   CLI, not detached    the control socket ends: the supervisor stops worker and server in an orderly way.
//   supervisor           the kernel kills server and worker (PR_SET_PDEATHSIG); trainers see the end of their
//                        agent and stop.
//   server or worker     is started again.
// What a dead worker leaves (trainers) is adopted by the supervisor (PR_SET_CHILD_SUBREAPER) and killed at
// the end at the latest: when the supervisor is gone, no process is left.
//
// The folder is locked for the supervisor's life: `lock` holds the lock, `supervisor.pid` its process.
#ifndef CLIENT_CLI_SUPERVISOR_H_
#define CLIENT_CLI_SUPERVISOR_H_

#include <sys/types.h>

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/fd.h"

namespace strata {

struct LocalServiceOptions {
  std::string state_dir;  // absolute; made if missing
  std::string server_binary;
  std::string worker_binary;
  // Without --listen, --port-file and --server, which the supervisor adds.
  std::vector<std::string> server_args;
  std::vector<std::string> worker_args;
};

class LocalService {
 public:
  // Locks the folder and forks the supervisor. Call it before the process has other threads. kAborted when
  // another supervisor holds the folder.
  static absl::StatusOr<LocalService> Start(const LocalServiceOptions& options);
  // Stops all, unless Detach or Stop came before.
  ~LocalService();
  LocalService(LocalService&& other);
  LocalService& operator=(LocalService&&) = delete;

  // host:port of the server, once its process has written it. kDeadlineExceeded, kCancelled by `stop`, or
  // what the supervisor gave up with.
  absl::StatusOr<std::string> WaitForAddress(absl::Duration timeout, std::stop_token stop);

  // Calls `on_event` for each line the supervisor has sent and nobody has taken: "restarted server: ...",
  // "failed worker: ...". Does not block. kUnavailable once the supervisor has given up or is gone.
  absl::Status TakeEvents(const std::function<void(const std::string&)>& on_event);

  // All goes on without this process; DetachedAddress finds it. Returns the supervisor's process id, to which
  // a SIGTERM stops all.
  pid_t Detach();
  // Worker first (it may write a checkpoint), then server; returns when every process is gone.
  absl::Status Stop();

 private:
  LocalService(Fd control, pid_t supervisor, std::string state_dir)
      : control_(std::move(control)), supervisor_(supervisor), state_dir_(std::move(state_dir)) {}
  // Reads what is there into lines_; false at the end of the stream. Waits at most `timeout`.
  bool Receive(absl::Duration timeout);

  Fd control_;
  pid_t supervisor_ = -1;
  std::string state_dir_;
  std::string partial_;
  std::vector<std::string> lines_;
  std::string address_;
  std::string failure_;
};

// host:port of the server of a run in `state_dir` that goes on without a command: Detach was called, and the
// supervisor lives. kNotFound: there is none.
absl::StatusOr<std::string> DetachedAddress(const std::string& state_dir);

// Asks the supervisor that holds `state_dir` to stop and waits until it is gone. kNotFound when none does.
absl::Status StopLocalService(const std::string& state_dir);

}  // namespace strata

#endif  // CLIENT_CLI_SUPERVISOR_H_
