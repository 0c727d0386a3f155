// A time as people read it, the same everywhere: in tables, notes and progress lines.
#ifndef COMMON_SECONDS_H_
#define COMMON_SECONDS_H_

#include <string>

namespace strata {

// Three digits below a minute ("1.53 ms", "527 ms", "9.80 s"), then "3m 05s", "1h 02m". "-" for what is no
// time: negative, infinite or NaN. Never throws.
std::string FormatSeconds(double seconds);

}  // namespace strata

#endif  // COMMON_SECONDS_H_
