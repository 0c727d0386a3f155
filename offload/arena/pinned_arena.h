// PinnedArena: the host memory of a job, one mapping of exactly its budget, present before the first step.
//
// Guarantee: size() is exactly the bytes asked for (a multiple of 4096), and that is also what the mapping
// can ever hold resident. Its start is aligned to 2 MiB so that transparent huge pages fit, by cutting
// address space, not by adding memory: a tail shorter than 2 MiB is made of 4 KiB pages. (Page tables and the
// kernel's bookkeeping, about 0.2 %, are outside of the budget.)
//
// All of it is written to (populated) in Create, because a first touch costs 13-26 us per 4 KiB page; a step
// never faults. Not inherited by fork and not part of core dumps. The address and the size suit
// cudaHostRegister.
#ifndef OFFLOAD_ARENA_PINNED_ARENA_H_
#define OFFLOAD_ARENA_PINNED_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace strata {

struct PinnedArenaOptions {
  uint64_t bytes = 0;  // A multiple of 4096, > 0.
  bool use_huge_pages =
      true;              // Try hugetlb pages (where the administrator reserved some), then transparent ones.
  bool use_lock = true;  // Try mlock.
  // The budget whose memory this is, which the remedy of an arena that cannot be had tells to lower; "": no
  // budget's.
  std::string budget = "memory.host";
};

enum class PageKind : uint8_t { kSmall, kTransparentHuge, kHugeTlb };

struct PinnedArenaReport {
  PageKind pages = PageKind::kSmall;
  uint64_t huge_page_bytes = 0;  // Of size(), as the kernel reports after populating.
  bool locked = false;
  // Why and what to do; "" when there is nothing to say.
  std::string why_not_huge;  // Less than nine tenths of it are in huge pages.
  std::string why_not_locked;
};

class PinnedArena {
 public:
  // kInvalidArgument for a size that is no multiple of 4096; kResourceExhausted, naming the bytes asked and
  // the limit (free memory, the cgroup's or RLIMIT_AS), when they cannot be had - checked before touching
  // anything, since the alternative is the kernel's OOM killer.
  static absl::StatusOr<std::unique_ptr<PinnedArena>> Create(const PinnedArenaOptions& options);
  // Whoever lent parts to an engine or a device has taken them back by now.
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // Aligned to 2 MiB. Zero-filled by Create.
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }
  const PinnedArenaReport& report() const { return report_; }

 private:
  PinnedArena(std::byte* data, uint64_t size) : data_(data), size_(size) {}

  std::byte* const data_;
  const uint64_t size_;
  PinnedArenaReport report_;
};

// "small", "transparent huge" or "hugetlb".
const char* PageKindName(PageKind kind);

}  // namespace strata

#endif  // OFFLOAD_ARENA_PINNED_ARENA_H_
