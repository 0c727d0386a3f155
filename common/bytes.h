// Byte quantities as people write them: "48MiB", "1.5 GiB", "1000". Binary units only (KiB, MiB, GiB, TiB).
#ifndef COMMON_BYTES_H_
#define COMMON_BYTES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// Accepts digits with an optional fraction and unit (B, KiB, MiB, GiB, TiB, also K, M, G, T for the same).
// The result must be a whole number of bytes below 2^62; anything else is kInvalidArgument.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// Exact when a unit divides it ("48 MiB"), else two decimals ("1.57 GiB"); below 1 KiB "17 B".
std::string FormatBytes(int64_t bytes);

}  // namespace strata

#endif  // COMMON_BYTES_H_
