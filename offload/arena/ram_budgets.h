// How much of a machine's memory jobs are offered where nobody said how much.
#ifndef OFFLOAD_ARENA_RAM_BUDGETS_H_
#define OFFLOAD_ARENA_RAM_BUDGETS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/memory_limit.h"

namespace strata {

// What programs take of memory beside the budgets of a job, and beside page cache, which gives way. Of a
// local run 20 MiB of their own were measured (the trainer's half of it, whatever its budgets) and 10 of the
// kernel's for them; this is a little more, and tests/small_memory_test.py holds budgets that are auto to it.
inline constexpr int64_t kAgentBytes = int64_t{8} << 20;
inline constexpr int64_t kTrainerBytes = int64_t{16} << 20;
inline constexpr int64_t kCoordinatorBytes = int64_t{8} << 20;
inline constexpr int64_t kClientBytes = int64_t{4} << 20;  // and its supervisor

struct RamBudgets {
  int64_t device = 0;  // stays 0 where the device has memory of its own
  int64_t host = 0;
};

struct RamOffer {
  MemoryLimit free;       // now
  int64_t own_bytes = 0;  // of it, for programs that are still to start or to grow
  RamBudgets wanted;      // 0: auto
  RamBudgets usual;       // what auto is where there is enough; a device of 0 is not in this memory
};

// `wanted`, and where it is auto what is usual, or less: together no more than what is free beside the
// programs. kResourceExhausted where that is not even a MiB, with tier, bytes, what sets them and the remedy.
absl::StatusOr<RamBudgets> OfferRam(const RamOffer& offer);

// What `budgets` leave of `free`, beside the programs: all that files in memory (tmpfs) may take.
int64_t LeftOfRam(const MemoryLimit& free, int64_t own_bytes, const RamBudgets& budgets);

}  // namespace strata

#endif  // OFFLOAD_ARENA_RAM_BUDGETS_H_
