// Arithmetic of CRC-32C, for hosts and devices. A CRC is a polynomial over GF(2) modulo the checksum's, with
// bit 31 - i as the coefficient of x^i. It is linear in the message, and what follows a part of the message
// multiplies that part's CRC by x for each of its bits: so parts can be summed apart and joined.
#ifndef KERNELS_CHECKSUM_CRC32C_FIELD_H_
#define KERNELS_CHECKSUM_CRC32C_FIELD_H_

#include <cstdint>

#include "kernels/kx/target.h"

namespace strata {

KX_HOST_DEVICE constexpr uint32_t Crc32cTimes(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    product ^= (0u - (a >> bit & 1)) & b;
    b = b >> 1 ^ ((0u - (b & 1)) & 0x82F63B78u);
  }
  return product;
}

// x^n.
KX_HOST_DEVICE constexpr uint32_t Crc32cPower(uint64_t n) {
  uint32_t power = uint32_t{1} << 31, square = uint32_t{1} << 30;
  for (; n > 0; n >>= 1) {
    if ((n & 1) != 0) power = Crc32cTimes(power, square);
    square = Crc32cTimes(square, square);
  }
  return power;
}

}  // namespace strata

#endif  // KERNELS_CHECKSUM_CRC32C_FIELD_H_
