// The agent's folder of durable facts, used by one agent at a time:
//
//   lock                                 flock'ed while an agent runs
//   incarnation                          decimal; rewritten at every start
//   identity                             what tells this agent from others of the same worker id: its key, 32
//                                        random hex digits, and where the folder was then (below)
//   tasks/<job_uid>.<attempt>.<rank>     one record per task whose end the coordinator has not recorded
//
// A record is written before anything of its task exists (scratch folder, process), again with the process's
// identity before the program runs, and again with the final report; it goes away when the coordinator says
// `forget`. So after a crash the records name everything that could be left.
//
// The key is written at the first start and kept. A copy of the folder is another agent's: it is told by the
// inode of `lock` and the machine's id, one of which differs in a copy, and gets a key of its own. Its
// records are dropped, for what they name is the other agent's to end.
#ifndef WORKER_AGENT_STATE_DIR_H_
#define WORKER_AGENT_STATE_DIR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fd.h"
#include "common/memory_limit.h"
#include "worker/agent/process.h"

namespace strata {

struct TaskKey {
  std::string job_uid;
  int32_t attempt = 0;
  int32_t rank = 0;

  bool operator==(const TaskKey&) const = default;
  auto operator<=>(const TaskKey&) const = default;
  std::string ToString() const;  // "<job_uid>.<attempt>.<rank>"
};

// Whether `uid` may stand in a path: letters, digits, '-' and '_', 1 to 64 of them.
bool IsValidJobUid(absl::string_view uid);

struct TaskRecord {
  TaskKey key;
  std::vector<std::string> scratch;  // absolute folders, removed at the task's end
  ProcessIdentity process;           // pid 0: no program has run
  std::string boot_id;               // of the boot in which `process` and `memory_kills` mean something
  std::optional<MemoryKills> memory_kills;  // before the task; absent: not known
  std::string report;  // serialized strata.v1.TaskReport once the task has ended, else ""
};

class StateDir {
 public:
  // Makes and locks the folder, and takes the next incarnation. kFailedPrecondition when another agent has
  // it, kDataLoss when the incarnation file is not a number or the identity none. `unix_seconds` is a floor
  // for the incarnation, so that it grows even when the folder was lost with its machine.
  static absl::StatusOr<std::unique_ptr<StateDir>> Open(const std::string& path, int64_t unix_seconds);

  int64_t incarnation() const { return incarnation_; }
  const std::string& identity() const { return identity_; }
  const std::string& path() const { return path_; }

  // Durable when it returns. Any thread, one at a time per key.
  absl::Status Write(const TaskRecord& record) const;
  absl::Status Remove(const TaskKey& key) const;

  // Every record. Files that are none are removed and named, with why, in *unreadable: their tasks'
  // processes and scratch are still found by the marks these carry.
  absl::StatusOr<std::vector<TaskRecord>> ReadAll(std::vector<std::string>* unreadable) const;

 private:
  StateDir(std::string path, Fd lock, int64_t incarnation, std::string identity)
      : path_(std::move(path)),
        lock_(std::move(lock)),
        incarnation_(incarnation),
        identity_(std::move(identity)) {}

  const std::string path_;
  const Fd lock_;
  const int64_t incarnation_;
  const std::string identity_;
};

// The text form of a record, and back. Exposed for tests.
std::string FormatTaskRecord(const TaskRecord& record);
absl::StatusOr<TaskRecord> ParseTaskRecord(absl::string_view text);

}  // namespace strata

#endif  // WORKER_AGENT_STATE_DIR_H_
