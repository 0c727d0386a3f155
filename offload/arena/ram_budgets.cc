#include "offload/arena/ram_budgets.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"

namespace strata {
namespace {

constexpr int64_t kLeastBytes = int64_t{1} << 20;

// Of `room`, the part that `of` is of `all`.
int64_t Part(int64_t room, int64_t of, int64_t all) {
  return static_cast<int64_t>(static_cast<double>(room) * static_cast<double>(of) / static_cast<double>(all));
}

}  // namespace

int64_t LeftOfRam(const MemoryLimit& free, int64_t own_bytes, const RamBudgets& budgets) {
  return std::max<int64_t>(0, free.bytes - own_bytes - budgets.device - budgets.host);
}

absl::StatusOr<RamBudgets> OfferRam(const RamOffer& offer) {
  RamBudgets budgets = offer.wanted;
  const bool auto_device = budgets.device == 0 && offer.usual.device > 0, auto_host = budgets.host == 0;
  const int64_t room = LeftOfRam(offer.free, offer.own_bytes, budgets);
  const int64_t usual = (auto_device ? offer.usual.device : 0) + (auto_host ? offer.usual.host : 0);
  const auto part = [&](int64_t of) { return usual <= room ? of : Part(room, of, usual); };
  if (auto_device) budgets.device = part(offer.usual.device);
  if (auto_host) budgets.host = part(offer.usual.host);
  const bool short_of_device = auto_device && budgets.device < kLeastBytes;
  if (!short_of_device && !(auto_host && budgets.host < kLeastBytes)) return budgets;
  const std::string named = offer.wanted.device + offer.wanted.host == 0
                                ? ""
                                : absl::StrCat(", and ", FormatBytes(offer.wanted.device + offer.wanted.host),
                                               " are the other budget's");
  return absl::ResourceExhaustedError(absl::StrCat(
      "auto finds no memory for the ", short_of_device ? "device" : "host",
      " tier: ", FormatBytes(offer.free.bytes), " are ", offer.free.of, ", the programs themselves take ",
      FormatBytes(offer.own_bytes), " of them", named, ": raise the limit, or free memory"));
}

}  // namespace strata
