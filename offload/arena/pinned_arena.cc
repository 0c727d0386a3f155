#include "offload/arena/pinned_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/checked.h"
#include "common/fd.h"
#include "common/memory_limit.h"
#include "common/status.h"

// Linux 5.14; the C library's headers may be older than the kernel.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace strata {
namespace {

constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr uint64_t kArenaMaxBytes = uint64_t{1} << 46;
constexpr int64_t kProcFileLimit = int64_t{64} << 20;

std::string Amount(uint64_t bytes) {
  return absl::StrCat(bytes, " bytes (", FormatBytes(static_cast<int64_t>(bytes)), ")");
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

// On new memory, and what sets it; nothing when nothing is known.
std::optional<MemoryLimit> LimitOfNewMemory() {
  std::optional<MemoryLimit> limit;
  if (absl::StatusOr<MemoryLimits> limits = ReadMemoryLimits(); limits.ok())
    limit = std::move(limits->available);
  rlimit address_space;
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const auto bytes = static_cast<int64_t>(std::min<uint64_t>(address_space.rlim_cur, kArenaMaxBytes));
    if (!limit.has_value() || bytes < limit->bytes) limit = {bytes, "RLIMIT_AS (ulimit -v)"};
  }
  return limit;
}

absl::Status OutOfMemory(const PinnedArenaOptions& options, const std::optional<MemoryLimit>& limit,
                         absl::string_view doing) {
  return absl::ResourceExhaustedError(absl::StrCat(
      doing, " an arena: ", Amount(options.bytes), " asked, ",
      limit.has_value() ? absl::StrCat(Amount(limit->bytes), " are ", limit->of) : "and no limit is known",
      options.budget.empty() ? "; free memory"
                             : absl::StrCat("; lower ", options.budget, ", or free memory")));
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
absl::Status Populate(std::byte* data, const PinnedArenaOptions& options) {
  const uint64_t bytes = options.bytes;
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
  return OutOfMemory(options, LimitOfNewMemory(), absl::StrCat("populating (", strerror(errno), ")"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedArena>> PinnedArena::Create(const PinnedArenaOptions& options) {
  const uint64_t bytes = options.bytes;
  if (bytes == 0 || bytes % kPageBytes != 0 || bytes > kArenaMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a host arena of ", bytes,
                                                   " bytes: the size is a multiple of ", kPageBytes,
                                                   " between that and 64 TiB"));
  }
  PinnedArenaReport report;
  std::byte* data = options.use_huge_pages ? MapHugeTlb(bytes) : nullptr;
  if (data != nullptr) {
    report.pages = PageKind::kHugeTlb;  // Taken from a reserve, so no limit of free memory applies.
  } else {
    const std::optional<MemoryLimit> limit = LimitOfNewMemory();
    if (limit.has_value() && bytes > static_cast<uint64_t>(limit->bytes))
      return OutOfMemory(options, limit, "reserving");
    data = MapAligned(bytes);
    if (data == nullptr) return OutOfMemory(options, limit, absl::StrCat("mapping (", strerror(errno), ")"));
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
  STRATA_RETURN_IF_ERROR(Populate(data, options));

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
