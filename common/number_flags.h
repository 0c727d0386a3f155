// Numbers on a command line, as CLI11 should read them. Its own conversion takes what does not fit a type for
// the type's limit, "-1" of an unsigned number for 2^64 - 1, "010" for eight, and NaN for any range's member.
#ifndef COMMON_NUMBER_FLAGS_H_
#define COMMON_NUMBER_FLAGS_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace strata {

// A decimal whole number from `least` to `most`, both of which the option's variable can hold. For
// CLI::Option::transform.
template <typename Int>
CLI::Validator WholeNumber(Int least, Int most = std::numeric_limits<Int>::max()) {
  static_assert(std::is_integral_v<Int>);
  return CLI::Validator(
      [least, most](std::string& text) {
        Int value;
        if (!absl::SimpleAtoi(text, &value) || value < least || value > most)
          return absl::StrCat(text, " is not a whole number from ", least, " to ", most);
        text = absl::StrCat(value);
        return std::string();
      },
      "");
}

// A finite decimal number from `least` to `most`. For CLI::Option::transform.
inline CLI::Validator RealNumber(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        double value;
        const bool decimal = text.find_first_of("xX") == std::string::npos;  // SimpleAtod takes both
        if (!decimal || !absl::SimpleAtod(text, &value) || !std::isfinite(value) || value < least ||
            value > most)
          return absl::StrCat(text, " is not a number from ", least, " to ", most);
        text = std::string(absl::StripAsciiWhitespace(text));
        return std::string();
      },
      "");
}

}  // namespace strata

#endif  // COMMON_NUMBER_FLAGS_H_
