// IEEE binary16 storage type. Rounding is to nearest, ties to even, denormals included; a NaN stays a (quiet)
// NaN with the upper bits of its payload: bit for bit what the conversion instructions of F16C and AVX-512
// do.
#ifndef COMMON_FLOAT16_H_
#define COMMON_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace strata {

struct Float16 {
  uint16_t bits = 0;
};

inline float ToFloat(Float16 value) {
  const uint32_t sign = uint32_t{value.bits} >> 15 << 31;
  const uint32_t exponent = value.bits >> 10 & 0x1F;
  const uint32_t mantissa = value.bits & 0x3FF;
  if (exponent == 0) {  // zero or denormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent < 31) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13 | (mantissa != 0 ? 0x400000 : 0));
}

inline Float16 ToFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t half;
  if (magnitude > 0x7F800000) {
    half = 0x7E00 | (magnitude >> 13 & 0x3FF);
  } else if (magnitude >= 0x477FF000) {  // from 65520 on the nearest is infinity
    half = 0x7C00;
  } else if (magnitude < 0x38800000) {  // below 2^-14: the last place of 0.5 + x is that of a denormal, 2^-24
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
  } else {
    half = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

}  // namespace strata

#endif  // COMMON_FLOAT16_H_
