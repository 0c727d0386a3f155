#include "worker/agent/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/fd.h"
#include "common/status.h"
#include "offload/io/io_factory.h"
#include "offload/io/path_probe.h"

namespace strata {
namespace {

// The limit of the control group this process is in, or INT64_MAX. Both versions say it as one number in a
// file; "max" and numbers near 2^63 mean none.
int64_t ControlGroupLimit() {
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    auto text = ReadFile(path, 64);
    int64_t limit;
    if (text.ok() && absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &limit) && limit > 0) return limit;
  }
  return INT64_MAX;
}

}  // namespace

absl::StatusOr<int64_t> AvailableMemoryBytes() {
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadFile("/proc/meminfo", 1 << 16));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, "MemTotal:")) continue;
    (void)absl::ConsumeSuffix(&line, "kB");
    int64_t kib;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kib)) {
      return std::min(kib * 1024, ControlGroupLimit());
    }
  }
  return absl::InternalError("/proc/meminfo has no MemTotal: give --device-bytes and --host-bytes");
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Machines with more CPUs than cpu_set_t holds give EINVAL; then count what is online.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

absl::StatusOr<Machine> InspectMachine(const AgentOptions& options) {
  Machine machine;
  STRATA_ASSIGN_OR_RETURN(const int64_t memory, AvailableMemoryBytes());
  v1::Capacity& capacity = machine.capacity;
  capacity.set_cpus(AvailableCpus());
  capacity.set_device_bytes(options.device_bytes > 0 ? options.device_bytes : memory / 4);
  capacity.set_host_bytes(options.host_bytes > 0 ? options.host_bytes : memory / 5 * 3);
  // Both tiers of a CPU worker are in the same RAM.
  if (capacity.device_bytes() > memory - std::min(memory, capacity.host_bytes())) {
    return absl::InvalidArgumentError(absl::StrCat("--device-bytes (", FormatBytes(capacity.device_bytes()),
                                                   ") and --host-bytes (", FormatBytes(capacity.host_bytes()),
                                                   ") together exceed the ", FormatBytes(memory),
                                                   " of memory this process may use: lower one of them"));
  }
  const auto probed = ProbePath(options.nvme_path);
  if (!probed.ok()) return Annotate(probed.status(), "--nvme-path");
  v1::NvmeVolume& volume = *capacity.add_nvme();
  volume.set_path(options.nvme_path);
  const int64_t free_bytes = static_cast<int64_t>(probed->free_bytes);
  volume.set_free_bytes(free_bytes);
  volume.set_bytes(options.nvme_bytes > 0 ? options.nvme_bytes : free_bytes / 5 * 4);
  if (volume.bytes() > free_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("--nvme-bytes (", FormatBytes(volume.bytes()),
                                                   "): ", options.nvme_path, " has ", FormatBytes(free_bytes),
                                                   " free: lower it, or free space"));
  }
  volume.set_o_direct(probed->o_direct);
  volume.set_fs_type(probed->fs_type);
  if (!probed->o_direct) (*capacity.mutable_labels())["o_direct_why_not"] = probed->o_direct_why_not;

  STRATA_ASSIGN_OR_RETURN(const auto engine, CreateIoEngine(IoEngineOptions{.depth = 2}));
  machine.io_backend = engine->report().backend;
  machine.io_backend_why = absl::StrJoin(engine->report().notes, "; ");
  return machine;
}

void RefreshFreeBytes(v1::Capacity* capacity) {
  for (v1::NvmeVolume& volume : *capacity->mutable_nvme()) {
    struct statvfs info;
    if (statvfs(volume.path().c_str(), &info) == 0) {
      volume.set_free_bytes(static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize));
    }
  }
}

absl::Status RaiseFileLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "reading the limit of open files");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return ErrnoStatus(errno, "raising the limit of open files");
  return absl::OkStatus();
}

}  // namespace strata
