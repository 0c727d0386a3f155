#include "common/seconds.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace strata {
namespace {

// Three digits of a number below 1000 that is not rounded up to 1000.
std::string ThreeDigits(double value) {
  return absl::StrFormat("%.*f", value < 9.995 ? 2 : value < 99.95 ? 1 : 0, value);
}

}  // namespace

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds == 0) return "0 ms";
  if (seconds * 1e3 < 999.5) return absl::StrCat(ThreeDigits(seconds * 1e3), " ms");
  if (seconds < 59.95) return absl::StrCat(ThreeDigits(seconds), " s");
  const auto whole = static_cast<int64_t>(std::min(seconds, 1e15) + 0.5);
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh %02dm", whole / 3600, whole / 60 % 60);
}

}  // namespace strata
