#include "common/memory_limit.h"

#include <algorithm>
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
  const char* limit;
  const char* used;
  const char* reclaimable[2];  // keys of memory.stat: page cache, which gives way to new memory
};
constexpr GroupFiles kVersion2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory",
                                  "memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  {"total_inactive_file ", "total_active_file "}};

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

int64_t ReclaimableBytes(const std::string& folder, const GroupFiles& files) {
  const absl::StatusOr<std::string> stat = ReadFile(folder + "/memory.stat", kTextFileMaxBytes);
  if (!stat.ok()) return 0;
  int64_t total = 0;
  for (const absl::string_view line : absl::StrSplit(*stat, '\n')) {
    for (const char* const key : files.reclaimable) {
      absl::string_view rest = line;
      int64_t bytes;
      if (absl::ConsumePrefix(&rest, key) && absl::SimpleAtoi(rest, &bytes)) total += bytes;
    }
  }
  return total;
}

// `group` and each of its ancestors may have a limit of its own. In a container that does not see the host's
// hierarchy the folders below the first do not exist; the first is then the container's own.
void TightenByGroup(MemoryLimits& limits, const std::string& root, std::string group,
                    const GroupFiles& files) {
  for (int level = 0; level < kLevelsMax; ++level) {
    const std::string folder = absl::StrCat(files.folder, group == "/" ? "" : group);
    const std::optional<int64_t> most = NumberInFile(absl::StrCat(root, folder, "/", files.limit));
    const std::optional<int64_t> used = NumberInFile(absl::StrCat(root, folder, "/", files.used));
    const std::string of = absl::StrCat(files.limit, " of the control group ", folder);
    if (most.has_value()) {
      Tighten(limits.total, *most, of);
      const int64_t kept =
          used.has_value() ? std::max<int64_t>(0, *used - ReclaimableBytes(root + folder, files)) : 0;
      Tighten(limits.available, std::max<int64_t>(0, *most - kept), absl::StrCat("what is free below ", of));
    }
    const size_t slash = group.rfind('/');
    if (group.empty() || group == "/" || slash == std::string::npos) return;
    group.resize(slash);
  }
}

// Lines of "number:controllers:group"; version 2 is number 0 without controllers.
void TightenByGroups(MemoryLimits& limits, const std::string& root) {
  const absl::StatusOr<std::string> membership = ReadFile(root + "/proc/self/cgroup", kTextFileMaxBytes);
  if (!membership.ok()) return;
  for (const absl::string_view line : absl::StrSplit(*membership, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (fields[0] == "0" && fields[1].empty()) {
      TightenByGroup(limits, root, fields[2], kVersion2);
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      TightenByGroup(limits, root, fields[2], kVersion1);
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
  TightenByGroups(limits, root);
  limits.available.bytes = std::min(limits.available.bytes, limits.total.bytes);
  return limits;
}

}  // namespace strata
