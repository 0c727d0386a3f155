#include "worker/agent/leftovers.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"
#include "worker/agent/process.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMarkerLimitBytes = 8 << 10;  // a worker id and a path

// Ranks of one job share its folder: one must not remove it while another makes its own in it. A few
// metadata operations are all that happens under this lock.
Mutex job_folder_mu;

bool CarriesOurVariables(pid_t pid, const std::string& state_dir) {
  auto environment = ReadFile(absl::StrCat("/proc/", pid, "/environ"), 4 << 20);
  if (!environment.ok()) return false;
  bool task = false, ours = false;
  const std::string wanted = absl::StrCat(kStateDirVariable, "=", state_dir);
  const std::string task_prefix = absl::StrCat(kTaskVariable, "=");
  for (absl::string_view entry : absl::StrSplit(*environment, '\0')) {
    task = task || entry.substr(0, task_prefix.size()) == task_prefix;
    ours = ours || entry == wanted;
  }
  return task && ours;
}

std::vector<ProcessIdentity> FindLeftovers(const std::string& state_dir,
                                           const std::vector<TaskRecord>& records) {
  const std::string boot = BootId();
  const std::vector<ProcessStat> processes = ListProcesses();
  std::set<pid_t> groups;
  for (const ProcessStat& process : processes) {
    for (const TaskRecord& record : records) {
      // The leader holds its group's number, also as a zombie.
      if (record.process.pid == process.identity.pid &&
          record.process.start_ticks == process.identity.start_ticks && record.boot_id == boot &&
          record.process.pid > 1) {
        groups.insert(process.identity.pid);
      }
    }
  }
  std::vector<ProcessIdentity> found;
  for (const ProcessStat& process : processes) {
    if (process.zombie || process.identity.pid == getpid()) continue;
    if (groups.contains(process.identity.pid) || groups.contains(process.group) ||
        CarriesOurVariables(process.identity.pid, state_dir)) {
      found.push_back(process.identity);
    }
  }
  return found;
}

}  // namespace

absl::Status KillLeftovers(const std::string& state_dir, const std::vector<TaskRecord>& records,
                           absl::Duration timeout) {
  const int64_t deadline = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(timeout);
  while (true) {
    const std::vector<ProcessIdentity> found = FindLeftovers(state_dir, records);
    if (found.empty()) return absl::OkStatus();
    for (const ProcessIdentity& identity : found) KillExactly(identity);
    if (Clock::Real().MonotonicNanos() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("process ", found.front().pid,
                       " of an earlier trainer does not end after SIGKILL: it hangs in the kernel, probably "
                       "on its disk; see /proc/",
                       found.front().pid, "/stack"));
    }
    // The kernel tells nobody but the parent when a process is gone.
    absl::SleepFor(absl::Milliseconds(10));
  }
}

std::string ScratchPath(const std::string& nvme_path, const TaskKey& key) {
  return absl::StrCat(nvme_path, "/", key.job_uid, "/", key.attempt, ".", key.rank);
}

std::string ScratchOwner(const std::string& worker_id, const std::string& state_dir) {
  return absl::StrCat(worker_id, "\n", state_dir, "\n");
}

absl::StatusOr<std::string> MakeScratch(const std::string& nvme_path, const std::string& owner,
                                        const TaskKey& key) {
  const std::string scratch = ScratchPath(nvme_path, key);
  MutexLock lock(job_folder_mu);
  STRATA_RETURN_IF_ERROR(MakeDirectories(scratch), "NVMe scratch (--nvme-path)");
  const std::string marker = absl::StrCat(nvme_path, "/", key.job_uid, "/", kScratchMarker);
  STRATA_ASSIGN_OR_RETURN(const Fd file, OpenFile(marker, O_WRONLY | O_CREAT | O_TRUNC),
                          "NVMe scratch (--nvme-path)");
  STRATA_RETURN_IF_ERROR(WriteAll(file, owner, marker), "NVMe scratch (--nvme-path)");
  return scratch;
}

absl::Status RemoveScratch(const std::string& scratch) {
  STRATA_RETURN_IF_ERROR(RemoveTree(scratch));
  const std::string job_folder = fs::path(scratch).parent_path().string();
  MutexLock lock(job_folder_mu);
  const auto names = ListDirectory(job_folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (name != kScratchMarker) return absl::OkStatus();  // another rank's
  }
  return RemoveTree(job_folder);
}

absl::StatusOr<std::vector<std::string>> SweepScratch(const std::vector<std::string>& nvme_paths,
                                                      const std::string& owner,
                                                      const std::vector<TaskRecord>& records) {
  std::vector<std::string> removed;
  for (const TaskRecord& record : records) {
    for (const std::string& scratch : record.scratch) {
      std::error_code error;
      if (fs::exists(scratch, error)) removed.push_back(scratch);
      STRATA_RETURN_IF_ERROR(RemoveScratch(scratch));
    }
  }
  for (const std::string& nvme_path : nvme_paths) {
    STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(nvme_path));
    for (const std::string& name : names) {
      const fs::path folder = fs::path(nvme_path) / name;
      std::error_code error;
      if (fs::is_symlink(folder, error) || !fs::is_directory(folder, error)) continue;
      const auto marker = ReadFile((folder / kScratchMarker).string(), kMarkerLimitBytes);
      if (!marker.ok() || *marker != owner) continue;
      STRATA_RETURN_IF_ERROR(RemoveTree(folder.string()));
      removed.push_back(folder.string());
    }
  }
  return removed;
}

}  // namespace strata
