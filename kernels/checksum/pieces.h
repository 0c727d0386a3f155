// How memory is cut for its checksum, and the pieces' checksums joined.
#ifndef KERNELS_CHECKSUM_PIECES_H_
#define KERNELS_CHECKSUM_PIECES_H_

#include <cstdint>

#include "kernels/checksum/crc32c_field.h"

namespace strata {

// Memory is whole blocks, and each piece but the last of this size.
inline constexpr int64_t kChecksumBlockBytes = 4096;
inline constexpr int64_t kChecksumPieceBytes = int64_t{1} << 18;

constexpr int64_t ChecksumPieces(int64_t bytes) {
  return (bytes + kChecksumPieceBytes - 1) / kChecksumPieceBytes;
}

// The CRC-32C of `bytes` of memory, whose pieces have `crcs`, following bytes whose CRC-32C was `crc` (0 to
// start): as Crc32c of common/crc32c.h.
constexpr uint32_t JoinPieces(uint32_t crc, const uint32_t* crcs, int64_t bytes) {
  constexpr uint32_t kPastPiece = Crc32cPower(8 * kChecksumPieceBytes);
  for (; bytes >= kChecksumPieceBytes; bytes -= kChecksumPieceBytes)
    crc = Crc32cTimes(kPastPiece, crc) ^ *crcs++;
  return bytes > 0 ? Crc32cTimes(Crc32cPower(8 * static_cast<uint64_t>(bytes)), crc) ^ *crcs : crc;
}

}  // namespace strata

#endif  // KERNELS_CHECKSUM_PIECES_H_
