// CRC-32C (Castagnoli polynomial, RFC 3720 appendix B.4), by the SSE4.2 instruction where present.
#ifndef COMMON_CRC32C_H_
#define COMMON_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace strata {

// The checksum of `data` following bytes whose checksum was `crc` (0 to start).
// Crc32c("123456789") == 0xE3069283.
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0);

}  // namespace strata

#endif  // COMMON_CRC32C_H_
