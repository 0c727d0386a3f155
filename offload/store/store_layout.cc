#include "offload/store/store_layout.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/checked.h"

namespace strata {
namespace {

constexpr uint64_t kBytesMax = uint64_t{1} << 62;

}  // namespace

absl::StatusOr<uint64_t> CapacityBytes(const StoreLayout& layout) {
  absl::flat_hash_set<uint32_t> ids;
  std::map<uint64_t, uint64_t> versioned;  // Stored size -> items of that size.
  uint64_t total = 0;
  const auto add = [&total](uint64_t size, uint64_t count) {
    const std::optional<uint64_t> bytes = CheckedMul(size, count);
    const std::optional<uint64_t> sum = bytes.has_value() ? CheckedAdd(total, *bytes) : std::nullopt;
    if (!sum.has_value() || *sum > kBytesMax) {
      return absl::InvalidArgumentError("the NVMe store would be larger than 2^62 bytes");
    }
    total = *sum;
    return absl::OkStatus();
  };
  for (const StoreItem& item : layout.items) {
    const auto id = static_cast<uint32_t>(item.id);
    if (item.bytes == 0 || item.bytes > kBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("NVMe item ", id, " has ", item.bytes, " bytes"));
    }
    if (!ids.insert(id).second) {
      return absl::InvalidArgumentError(absl::StrCat("NVMe item ", id, " is in the layout twice"));
    }
    if (item.kind == ItemKind::kVersioned) {
      ++versioned[StoredBytes(item.bytes)];
    } else if (absl::Status status = add(StoredBytes(item.bytes), 1); !status.ok()) {
      return status;
    }
  }
  for (const auto& [size, items] : versioned) {
    if (absl::Status status = add(size, ClassExtents(items, layout.write_ahead_items)); !status.ok())
      return status;
  }
  return total;
}

}  // namespace strata
