#include "common/memory_limit.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/fd.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr int64_t kNumberFileMaxBytes = 4096;
constexpr int64_t kTextFileMaxBytes = 1 << 20;
constexpr int kLevelsMax = 64;

// Where a hierarchy of control groups keeps its numbers.
struct GroupFiles {
  const char* folder;
  std::vector<const char*> limits;
  const char* used;
  std::vector<const char*> reclaimable;  // keys of memory.stat: page cache, which gives way to new memory
  std::vector<const char*> kills;        // the first that is there counts those of the group itself
};
const GroupFiles& Version2() {
  static const auto* const files = new GroupFiles{"/sys/fs/cgroup",
                                                  {"memory.max", "memory.high"},
                                                  "memory.current",
                                                  {"inactive_file ", "active_file "},
                                                  {"memory.events.local", "memory.events"}};
  return *files;
}
const GroupFiles& Version1() {
  static const auto* const files = new GroupFiles{"/sys/fs/cgroup/memory",
                                                  {"memory.limit_in_bytes"},
                                                  "memory.usage_in_bytes",
                                                  {"total_inactive_file ", "total_active_file "},
                                                  {"memory.oom_control"}};
  return *files;
}

void Tighten(MemoryLimit& limit, int64_t bytes, std::string of) {
  if (bytes < limit.bytes) limit = {bytes, std::move(of)};
}

// Absent where there is no such file or no limit: "max". Version 1 writes a number near 2^63 for that.
std::optional<int64_t> NumberInFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kNumberFileMaxBytes);
  int64_t value;
  if (!text.ok() || !absl::SimpleAtoi(*text, &value) || value < 0) return std::nullopt;
  return value;
}

// The sum of the numbers behind these keys in a file of lines of "key number"; absent where none is there.
std::optional<int64_t> SumOfKeys(const std::string& path, const std::vector<const char*>& keys) {
  const absl::StatusOr<std::string> text = ReadFile(path, kTextFileMaxBytes);
  if (!text.ok()) return std::nullopt;
  std::optional<int64_t> total;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    for (const char* const key : keys) {
      absl::string_view rest = line;
      int64_t number;
      if (absl::ConsumePrefix(&rest, key) && absl::SimpleAtoi(rest, &number))
        total = total.value_or(0) + number;
    }
  }
  return total;
}

// Calls `visit` with the folder of `group` and of each of its ancestors, until it returns false. In a
// container that does not see the host's hierarchy the folders below the first do not exist; the first is
// then the container's own.
void ForEachGroup(std::string group, const GroupFiles& files,
                  const std::function<bool(const std::string& folder)>& visit) {
  for (int level = 0; level < kLevelsMax; ++level) {
    if (!visit(absl::StrCat(files.folder, group == "/" ? "" : group))) return;
    const size_t slash = group.rfind('/');
    if (group.empty() || group == "/" || slash == std::string::npos) return;
    group.resize(slash);
  }
}

// Each group may have limits of its own.
void TightenByGroup(MemoryLimits& limits, const std::string& root, const std::string& folder,
                    const GroupFiles& files) {
  const std::optional<int64_t> used = NumberInFile(absl::StrCat(root, folder, "/", files.used));
  for (const char* const file : files.limits) {
    const std::optional<int64_t> most = NumberInFile(absl::StrCat(root, folder, "/", file));
    if (!most.has_value()) continue;
    const std::string of = absl::StrCat(file, " of the control group ", folder);
    Tighten(limits.total, *most, of);
    const int64_t reclaimable =
        SumOfKeys(absl::StrCat(root, folder, "/memory.stat"), files.reclaimable).value_or(0);
    const int64_t kept = std::max<int64_t>(0, used.value_or(0) - reclaimable);
    Tighten(limits.available, std::max<int64_t>(0, *most - kept), absl::StrCat("what is free below ", of));
  }
}

// Calls `visit` with the group of each hierarchy that accounts for memory. Lines of /proc/self/cgroup are
// "number:controllers:group"; version 2 is number 0 without controllers.
void ForEachHierarchy(const std::string& root,
                      const std::function<void(const std::string& group, const GroupFiles& files)>& visit) {
  const absl::StatusOr<std::string> membership = ReadFile(root + "/proc/self/cgroup", kTextFileMaxBytes);
  if (!membership.ok()) return;
  for (const absl::string_view line : absl::StrSplit(*membership, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (fields[0] == "0" && fields[1].empty()) {
      visit(fields[2], Version2());
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      visit(fields[2], Version1());
    }
  }
}

}  // namespace

absl::StatusOr<MemoryLimits> ReadMemoryLimits(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kTextFileMaxBytes));
  MemoryLimits limits = {.total = {0, "this machine's memory"},
                         .available = {0, "what is free in this machine's memory"}};
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    for (const auto& [key, limit] :
         {std::pair{"MemTotal:", &limits.total}, {"MemAvailable:", &limits.available}}) {
      absl::string_view rest = line;
      int64_t kib = 0;
      if (absl::ConsumePrefix(&rest, key) && absl::ConsumeSuffix(&rest, "kB") && absl::SimpleAtoi(rest, &kib))
        limit->bytes = kib * 1024;
    }
  }
  if (limits.total.bytes <= 0) return absl::InternalError(absl::StrCat(path, " has no MemTotal"));
  ForEachHierarchy(root, [&](const std::string& group, const GroupFiles& files) {
    ForEachGroup(group, files, [&](const std::string& folder) {
      TightenByGroup(limits, root, folder, files);
      return true;
    });
  });
  limits.available.bytes = std::min(limits.available.bytes, limits.total.bytes);
  return limits;
}

std::optional<MemoryKills> ReadMemoryKills(const std::string& root) {
  std::optional<MemoryKills> kills;
  ForEachHierarchy(root, [&](const std::string& group, const GroupFiles& files) {
    // The process's own group is the lowest that is there.
    ForEachGroup(group, files, [&](const std::string& folder) {
      for (const char* const file : files.kills) {
        if (kills.has_value()) break;
        const std::optional<int64_t> count = SumOfKeys(absl::StrCat(root, folder, "/", file), {"oom_kill "});
        if (count.has_value()) kills = MemoryKills{folder, *count};
      }
      return !kills.has_value();
    });
  });
  return kills;
}

}  // namespace strata
