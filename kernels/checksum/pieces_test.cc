#include "kernels/checksum/pieces.h"

#include <algorithm>
#include <vector>

#include "common/crc32c.h"
#include "common/random.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(ChecksumPiecesTest, JoinedTheyAreTheChecksumOfTheWhole) {
  const CounterRandom random(11, 0);
  for (const int64_t bytes : {int64_t{0}, int64_t{4}, kChecksumBlockBytes, kChecksumPieceBytes - 4,
                              kChecksumPieceBytes, 2 * kChecksumPieceBytes + kChecksumBlockBytes}) {
    std::vector<uint32_t> message(bytes / 4);
    for (size_t i = 0; i < message.size(); ++i)
      message[i] = static_cast<uint32_t>(random.Below(i, uint64_t{1} << 32));
    const auto* data = reinterpret_cast<const unsigned char*>(message.data());
    std::vector<uint32_t> crcs;
    for (int64_t at = 0; at < bytes; at += kChecksumPieceBytes)
      crcs.push_back(Crc32c(data + at, static_cast<size_t>(std::min(kChecksumPieceBytes, bytes - at))));
    EXPECT_EQ(static_cast<int64_t>(crcs.size()), ChecksumPieces(bytes));
    for (const uint32_t before : {uint32_t{0}, uint32_t{0x12345678}})
      EXPECT_EQ(JoinPieces(before, crcs.data(), bytes), Crc32c(data, bytes, before)) << bytes;
  }
}

TEST(ChecksumPiecesTest, PowersMultiply) {
  EXPECT_EQ(Crc32cPower(0), 0x80000000u);
  for (const uint64_t n : {uint64_t{1}, uint64_t{31}, uint64_t{32}, uint64_t{1000}, uint64_t{1} << 40}) {
    EXPECT_EQ(Crc32cTimes(Crc32cPower(n), Crc32cPower(n + 5)), Crc32cPower(2 * n + 5)) << n;
    EXPECT_EQ(Crc32cTimes(Crc32cPower(0), Crc32cPower(n)), Crc32cPower(n)) << n;
  }
}

}  // namespace
}  // namespace strata
