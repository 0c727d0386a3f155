// bfloat16 storage type: the upper half of an IEEE binary32. Rounding is to nearest, ties to even; a NaN
// stays a (quiet) NaN.
#ifndef COMMON_BFLOAT16_H_
#define COMMON_BFLOAT16_H_

#include <bit>
#include <cstdint>

namespace strata {

struct BFloat16 {
  uint16_t bits = 0;
};

inline float ToFloat(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}

}  // namespace strata

#endif  // COMMON_BFLOAT16_H_
