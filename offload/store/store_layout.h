// What an NVMe store holds, and the exact bytes it takes: pure functions, shared by the planner and the
// store.
#ifndef OFFLOAD_STORE_STORE_LAYOUT_H_
#define OFFLOAD_STORE_STORE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"

namespace strata {

// A thing with a home on NVMe: an optimizer record of one chunk, the parameters of one block, ...
enum class ItemId : uint32_t {};
// Which state of an item: for versioned items the optimizer steps completed, so 0 is the initial load.
enum class Generation : uint64_t {};

enum class ItemKind : uint8_t {
  // Survives a rollback: a write goes to a free extent, Commit makes it the state, Rollback forgets it.
  kVersioned,
  // One extent, overwritten in place; Commit and Rollback leave it alone. For what is made anew after a
  // rollback
  // (gradients, activations) and for what is written only once (frozen parameters).
  kScratch,
};

struct StoreItem {
  ItemId id{};
  uint64_t bytes = 0;  // > 0
  ItemKind kind = ItemKind::kVersioned;
};

// Paths that a store may stripe over.
constexpr size_t kNvmePathsMax = 8;
// Extents are multiples of this, and so are the buffers of Read and Write.
constexpr uint64_t kStoreBlockBytes = 4096;

struct StoreLayout {
  std::vector<StoreItem> items;  // Ids are unique.
  // The greatest number of items of one stored size that hold two uncommitted generations at one time:
  // written by step t+1 before Commit(t). 0 when Commit(t) always precedes the writes of step t+1 (mode
  // `sync`).
  uint64_t write_ahead_items = std::numeric_limits<uint64_t>::max();
};

// `bytes` rounded up to kStoreBlockBytes: what one version of an item takes, moves and needs as a buffer.
constexpr uint64_t StoredBytes(uint64_t bytes) {
  return (bytes + kStoreBlockBytes - 1) / kStoreBlockBytes * kStoreBlockBytes;
}

// Extents for `items` versioned items of one stored size.
constexpr uint64_t ClassExtents(uint64_t items, uint64_t write_ahead_items) {
  return 2 * items + (items < write_ahead_items ? items : write_ahead_items);
}

// Exactly the bytes the store preallocates, and its peak: for n versioned items of stored size s,
//   s * ClassExtents(n, write_ahead_items) = s * (2 n + min(n, write_ahead_items)),
// and s for each scratch item. It is the least that is safe: until Commit(t) every item keeps its committed
// version (for a rollback) and its version of step t (for step t+1), and each item written ahead one more.
// Items of one stored size share their extents. kInvalidArgument: an id twice, a size of 0, or a sum above
// 2^62.
absl::StatusOr<uint64_t> CapacityBytes(const StoreLayout& layout);

}  // namespace strata

#endif  // OFFLOAD_STORE_STORE_LAYOUT_H_
