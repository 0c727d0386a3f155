#include "common/bytes.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace strata {
namespace {

constexpr std::array<std::pair<absl::string_view, int64_t>, 4> kUnits = {{
    {"TiB", int64_t{1} << 40},
    {"GiB", int64_t{1} << 30},
    {"MiB", int64_t{1} << 20},
    {"KiB", int64_t{1} << 10},
}};
constexpr double kLimit = 4611686018427387904.0;  // 2^62

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  const auto invalid = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text,
                     "' is not a byte quantity: write a whole number of bytes or "
                     "a number with KiB, MiB, GiB or TiB, such as 48MiB"));
  };
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const size_t split = trimmed.find_first_not_of("0123456789.");
  const absl::string_view digits = trimmed.substr(0, split);
  const absl::string_view unit = split == absl::string_view::npos
                                     ? absl::string_view()
                                     : absl::StripAsciiWhitespace(trimmed.substr(split));
  int64_t scale = unit.empty() || unit == "B" ? 1 : 0;
  for (const auto& [name, bytes] : kUnits) {
    if (unit == name || unit == name.substr(0, 1)) scale = bytes;
  }
  double number = 0;
  if (scale == 0 || digits.empty() || !absl::SimpleAtod(digits, &number)) return invalid();
  const double bytes = number * static_cast<double>(scale);
  if (!(bytes < kLimit)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is too much: byte quantities are below 2^62, which is 4194304 TiB"));
  }
  if (bytes != std::floor(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not a whole number of bytes: leave out digits, or choose a smaller unit"));
  }
  int64_t whole = 0;
  if (scale == 1 && !absl::SimpleAtoi(digits, &whole)) return invalid();
  return scale == 1 ? whole : static_cast<int64_t>(bytes);
}

std::string FormatBytes(int64_t bytes) {
  for (const auto& [name, unit] : kUnits) {
    if (bytes < unit) continue;
    if (bytes % unit == 0) return absl::StrCat(bytes / unit, " ", name);
    return absl::StrFormat("%.2f %s", static_cast<double>(bytes) / static_cast<double>(unit), name);
  }
  return absl::StrCat(bytes, " B");
}

}  // namespace strata
