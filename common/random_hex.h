// Names that nobody else has: digits from the kernel's generator.
#ifndef COMMON_RANDOM_HEX_H_
#define COMMON_RANDOM_HEX_H_

#include <string>

namespace strata {

// `digits` lower-case hexadecimal digits, at most 512.
std::string RandomHex(int digits);

}  // namespace strata

#endif  // COMMON_RANDOM_HEX_H_
