// How much memory this process may take: the machine's, and what the limits of its control groups leave.
#ifndef COMMON_MEMORY_LIMIT_H_
#define COMMON_MEMORY_LIMIT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace strata {

struct MemoryLimit {
  int64_t bytes = 0;
  std::string
      of;  // what sets it: "this machine's memory", "memory.max of the control group /sys/fs/cgroup/a"
};

struct MemoryLimits {
  MemoryLimit total;      // that this process and those it shares control groups with may ever have together
  MemoryLimit available;  // of it now: free, or page cache that gives way
};

// The machine by /proc/meminfo, lowered by the limits of the control group (version 1 or 2) that this process
// is in and of every group above it: a group's limit binds whoever is below it. `root` stands before /proc
// and /sys. Version 2's memory.high is a limit like memory.max: who is above it is held up until it is below.
// Swap raises no limit here: what jobs pin is never swapped. Cheap; any thread. kInternal, naming the file,
// when /proc/meminfo says nothing.
absl::StatusOr<MemoryLimits> ReadMemoryLimits(const std::string& root = "");

// How often the kernel has killed a process of this process's control group for lack of memory, its limit's
// or the machine's.
struct MemoryKills {
  std::string group;  // its folder
  int64_t count = 0;  // since the group was made
};
// Absent where the kernel does not tell. `root` as above. Cheap; any thread.
std::optional<MemoryKills> ReadMemoryKills(const std::string& root = "");

}  // namespace strata

#endif  // COMMON_MEMORY_LIMIT_H_
