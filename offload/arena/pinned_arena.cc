#include "offload/arena/pinned_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/checked.h"
#include "common/fd.h"
#include "common/status.h"

// Linux 5.14; the C library's headers may be older than the kernel.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace strata {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr int64_t kProcFileLimit = int64_t{64} << 20;
constexpr int kCgroupLevelsMax = 64;

std::string Amount(uint64_t bytes) {
  return absl::StrCat(bytes, " bytes (", FormatBytes(static_cast<int64_t>(bytes)), ")");
}

// A limit on new memory, and what sets it.
struct Limit {
  uint64_t bytes = std::numeric_limits<uint64_t>::max();
  std::string what;
};

void Tighten(Limit& limit, uint64_t bytes, std::string what) {
  if (bytes < limit.bytes) limit = {bytes, std::move(what)};
}

// The value in bytes of "<key>  <n> kB" in text of the form of /proc/meminfo.
std::optional<uint64_t> KilobytesOf(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    uint64_t kilobytes;
    if (!absl::ConsumePrefix(&line, key) || !absl::ConsumeSuffix(&line, "kB")) continue;
    if (absl::SimpleAtoi(line, &kilobytes)) return kilobytes * 1024;
  }
  return std::nullopt;
}

std::optional<uint64_t> NumberInFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, /*limit_bytes=*/4096);
  uint64_t value;
  if (!text.ok() || !absl::SimpleAtoi(*text, &value)) return std::nullopt;  // Missing, or "max".
  return value;
}

// Where a hierarchy of control groups keeps its numbers.
struct CgroupFiles {
  const char* root;
  const char* limit;
  const char* used;
  const char* reclaimable[2];  // Keys of memory.stat: page cache, which gives way to new memory.
};
constexpr CgroupFiles kCgroupV2 = {
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file ", "active_file "}};
constexpr CgroupFiles kCgroupV1 = {"/sys/fs/cgroup/memory",
                                   "memory.limit_in_bytes",
                                   "memory.usage_in_bytes",
                                   {"total_inactive_file ", "total_active_file "}};

uint64_t ReclaimableBytes(const std::string& folder, const CgroupFiles& files) {
  const absl::StatusOr<std::string> stat = ReadFile(folder + "/memory.stat", /*limit_bytes=*/65536);
  if (!stat.ok()) return 0;
  uint64_t total = 0;
  for (const absl::string_view line : absl::StrSplit(*stat, '\n')) {
    for (const char* key : files.reclaimable) {
      absl::string_view rest = line;
      uint64_t bytes;
      if (absl::ConsumePrefix(&rest, key) && absl::SimpleAtoi(rest, &bytes)) total += bytes;
    }
  }
  return total;
}

// `group` and each of its ancestors may have a limit of its own.
void TightenByGroup(Limit& limit, std::string group, const CgroupFiles& files) {
  for (int level = 0; level < kCgroupLevelsMax; ++level) {
    const std::string folder = absl::StrCat(files.root, group == "/" ? "" : group);
    const std::optional<uint64_t> most = NumberInFile(absl::StrCat(folder, "/", files.limit));
    const std::optional<uint64_t> used = NumberInFile(absl::StrCat(folder, "/", files.used));
    if (most.has_value() && used.has_value()) {
      const uint64_t kept = *used - std::min(*used, ReclaimableBytes(folder, files));
      Tighten(limit, *most - std::min(*most, kept),
              absl::StrCat("free below ", files.limit, " of the control group ", folder));
    }
    const size_t slash = group.rfind('/');
    if (group.empty() || group == "/" || slash == std::string::npos) return;
    group.resize(slash);
  }
}

void TightenByCgroup(Limit& limit) {
  const absl::StatusOr<std::string> membership = ReadFile("/proc/self/cgroup", /*limit_bytes=*/65536);
  if (!membership.ok()) return;
  for (absl::string_view line : absl::StrSplit(*membership, '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) {
      TightenByGroup(limit, std::string(line), kCgroupV2);
    } else if (const size_t memory = line.find(":memory:"); memory != absl::string_view::npos) {
      TightenByGroup(limit, std::string(line.substr(memory + 8)), kCgroupV1);
    }
  }
}

Limit MemoryLimit() {
  Limit limit;
  if (const absl::StatusOr<std::string> meminfo = ReadFile("/proc/meminfo", /*limit_bytes=*/65536);
      meminfo.ok()) {
    if (const std::optional<uint64_t> available = KilobytesOf(*meminfo, "MemAvailable:")) {
      Tighten(limit, *available, "available in this machine's memory");
    }
  }
  TightenByCgroup(limit);
  rlimit address_space;
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    Tighten(limit, address_space.rlim_cur, "the limit of RLIMIT_AS (ulimit -v)");
  }
  return limit;
}

absl::Status OutOfMemory(uint64_t bytes, const Limit& limit, const char* doing) {
  return absl::ResourceExhaustedError(absl::StrCat(
      doing, " the host arena: ", Amount(bytes), " asked, ",
      limit.what.empty() ? "and no limit is known" : absl::StrCat(Amount(limit.bytes), " ", limit.what),
      "; lower memory.host, or free memory"));
}

// An aligned mapping of exactly `bytes`: a longer one of untouched address space is cut at both ends.
std::byte* MapAligned(uint64_t bytes) {
  const uint64_t padded = bytes + kHugePageBytes;
  void* raw =
      mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t start = RoundUp<uintptr_t>(begin, kHugePageBytes);
  if (start > begin) munmap(raw, start - begin);
  const uintptr_t end = begin + padded;
  if (end > start + bytes) munmap(reinterpret_cast<void*>(start + bytes), end - (start + bytes));
  return reinterpret_cast<std::byte*>(start);
}

// Reserved huge pages; nullptr when there are not enough. Never for a size that would need a part of one.
std::byte* MapHugeTlb(uint64_t bytes) {
  if (bytes % kHugePageBytes != 0) return nullptr;
  constexpr int kTwoMiB = 21 << MAP_HUGE_SHIFT;
  void* raw = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | kTwoMiB, -1, 0);
  return raw == MAP_FAILED ? nullptr : static_cast<std::byte*>(raw);
}

// Bytes of [data, data + bytes) that are in transparent huge pages.
uint64_t TransparentHugeBytes(const std::byte* data, uint64_t bytes) {
  const absl::StatusOr<std::string> maps = ReadFile("/proc/self/smaps", kProcFileLimit);
  if (!maps.ok()) return 0;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  bool inside = false;
  uint64_t total = 0;
  for (absl::string_view line : absl::StrSplit(*maps, '\n')) {
    uint64_t from, to;
    if (sscanf(std::string(line.substr(0, 64)).c_str(), "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2) {
      inside = from >= begin && to <= begin + bytes;
    } else if (inside) {
      total += KilobytesOf(line, "AnonHugePages:").value_or(0);
    }
  }
  return total;
}

// Makes every page present. MADV_POPULATE_WRITE reports a lack of memory; without it (before Linux 5.14) a
// write to each page does the work.
absl::Status Populate(std::byte* data, uint64_t bytes) {
  int result;
  do {
    result = madvise(data, bytes, MADV_POPULATE_WRITE);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return absl::OkStatus();
  if (errno == EINVAL) {
    for (uint64_t i = 0; i < bytes; i += kPageBytes) {
      *reinterpret_cast<volatile unsigned char*>(data + i) = 0;
    }
    return absl::OkStatus();
  }
  return OutOfMemory(bytes, MemoryLimit(), absl::StrCat("populating (", strerror(errno), ")").c_str());
}

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedArena>> PinnedArena::Create(const PinnedArenaOptions& options) {
  const uint64_t bytes = options.bytes;
  if (bytes == 0 || bytes % kPageBytes != 0 || bytes > uint64_t{1} << 46) {
    return absl::InvalidArgumentError(absl::StrCat("a host arena of ", bytes,
                                                   " bytes: the size is a multiple of ", kPageBytes,
                                                   " between that and 64 TiB"));
  }
  PinnedArenaReport report;
  std::byte* data = options.use_huge_pages ? MapHugeTlb(bytes) : nullptr;
  if (data != nullptr) {
    report.pages = PageKind::kHugeTlb;  // Taken from a reserve, so no limit of free memory applies.
  } else {
    const Limit limit = MemoryLimit();
    if (bytes > limit.bytes) return OutOfMemory(bytes, limit, "reserving");
    data = MapAligned(bytes);
    if (data == nullptr)
      return OutOfMemory(bytes, limit, absl::StrCat("mapping (", strerror(errno), ")").c_str());
  }
  std::unique_ptr<PinnedArena> arena(new PinnedArena(data, bytes));  // Unmaps on every return from here on.
  if (options.use_huge_pages && report.pages != PageKind::kHugeTlb &&
      madvise(data, bytes, MADV_HUGEPAGE) != 0) {
    report.why_not_huge = absl::StrCat("no transparent huge pages: madvise says ", strerror(errno),
                                       " (the kernel needs CONFIG_TRANSPARENT_HUGEPAGE); ");
  }
  // A fork would make the next write to each page copy it, and move it away from where a device looks for it.
  if (madvise(data, bytes, MADV_DONTFORK) != 0) return ErrnoStatus(errno, "MADV_DONTFORK of the host arena");
  if (madvise(data, bytes, MADV_DONTDUMP) != 0) return ErrnoStatus(errno, "MADV_DONTDUMP of the host arena");
  STRATA_RETURN_IF_ERROR(Populate(data, bytes));

  report.huge_page_bytes = report.pages == PageKind::kHugeTlb ? bytes : TransparentHugeBytes(data, bytes);
  if (report.pages != PageKind::kHugeTlb && report.huge_page_bytes > 0)
    report.pages = PageKind::kTransparentHuge;
  const uint64_t huge_possible = bytes / kHugePageBytes * kHugePageBytes;
  if (!options.use_huge_pages) {
    report.why_not_huge = "not asked for";
  } else if (report.huge_page_bytes < huge_possible / 10 * 9) {
    absl::StrAppend(
        &report.why_not_huge, "only ", Amount(report.huge_page_bytes), " of ", Amount(bytes),
        " are in huge pages: set /sys/kernel/mm/transparent_hugepage/enabled to madvise or always, or "
        "reserve ",
        CeilDiv(bytes, kHugePageBytes), " pages in /proc/sys/vm/nr_hugepages");
  }
  if (!options.use_lock) {
    report.why_not_locked = "not asked for";
  } else {
    report.locked = mlock(data, bytes) == 0;
    if (!report.locked) {
      const int error = errno;
      rlimit memlock{};
      getrlimit(RLIMIT_MEMLOCK, &memlock);
      report.why_not_locked =
          absl::StrCat("mlock of ", Amount(bytes), " says ", strerror(error), "; RLIMIT_MEMLOCK is ",
                       memlock.rlim_cur, " bytes: raise it (ulimit -l), or give CAP_IPC_LOCK");
    }
  }
  arena->report_ = std::move(report);
  return arena;
}

PinnedArena::~PinnedArena() { munmap(data_, size_); }

const char* PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kSmall:
      return "small";
    case PageKind::kTransparentHuge:
      return "transparent huge";
    case PageKind::kHugeTlb:
      return "hugetlb";
  }
  return "unknown";
}

}  // namespace strata
