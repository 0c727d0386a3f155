#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "common/bfloat16.h"
#include "common/bytes.h"
#include "common/checked.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/fd.h"
#include "common/float16.h"
#include "common/process_usage.h"
#include "common/random.h"
#include "common/random_hex.h"
#include "common/seconds.h"
#include "common/status.h"
#include "common/thread.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

TEST(SecondsTest, ThreeDigitsWhateverTheSize) {
  EXPECT_EQ(FormatSeconds(0), "0 ms");
  EXPECT_EQ(FormatSeconds(0.00153), "1.53 ms");
  EXPECT_EQ(FormatSeconds(0.009996), "10.0 ms");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(0.527), "527 ms");
  EXPECT_EQ(FormatSeconds(0.9997), "1.00 s");
  EXPECT_EQ(FormatSeconds(59.9), "59.9 s");
  EXPECT_EQ(FormatSeconds(59.96), "1m 00s");
  EXPECT_EQ(FormatSeconds(185), "3m 05s");
  EXPECT_EQ(FormatSeconds(3720), "1h 02m");
  EXPECT_EQ(FormatSeconds(-1), "-");
  EXPECT_EQ(FormatSeconds(NAN), "-");
  EXPECT_EQ(FormatSeconds(1e300), FormatSeconds(1e15));
}

TEST(RandomHexTest, AsManyDigitsAsAskedForAndNeverTheSame) {
  for (const int digits : {0, 1, 31, 32, 512}) {
    const std::string text = RandomHex(digits);
    EXPECT_EQ(text.size(), static_cast<size_t>(digits));
    EXPECT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos) << text;
  }
  EXPECT_NE(RandomHex(32), RandomHex(32));
}

TEST(StatusTest, AnnotationKeepsCodeAndPayload) {
  absl::Status status = absl::NotFoundError("no such job");
  status.SetPayload("type", absl::Cord("x"));
  const absl::Status annotated = Annotate(status, "reading");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(annotated.message(), "reading: no such job");
  EXPECT_TRUE(annotated.GetPayload("type").has_value());
}

TEST(StatusTest, MacroReturnsWithItsContext) {
  const auto f = [](int n) -> absl::Status {
    STRATA_RETURN_IF_ERROR(n > 1 ? absl::InternalError("boom") : absl::OkStatus(), "step ", n);
    return absl::OkStatus();
  };
  EXPECT_TRUE(f(1).ok());
  EXPECT_EQ(f(2).message(), "step 2: boom");
}

TEST(BytesTest, ParsesWhatPeopleWrite) {
  EXPECT_EQ(*ParseBytes("48MiB"), 48 << 20);
  EXPECT_EQ(*ParseBytes(" 1.5 GiB "), int64_t{3} << 29);
  EXPECT_EQ(*ParseBytes("1000"), 1000);
  EXPECT_EQ(*ParseBytes("2G"), int64_t{2} << 30);
  for (const char* bad : {"", "MiB", "-1", "1.5", "1e3", "48MB", "9999999TiB", "1.2.3MiB", "nan", "0.3KiB"}) {
    EXPECT_FALSE(ParseBytes(bad).ok()) << bad;
  }
  // The limit itself is told, and is where it is said to be.
  EXPECT_NE(ParseBytes("99999999TiB").status().message().find("below 2^62"), absl::string_view::npos);
  EXPECT_NE(ParseBytes("4194304TiB").status().message().find("4194304 TiB"), absl::string_view::npos);
  EXPECT_EQ(*ParseBytes("4194303TiB"), int64_t{4194303} << 40);
  EXPECT_NE(ParseBytes("0.3KiB").status().message().find("whole number"), absl::string_view::npos);
}

TEST(BytesTest, FormatsExactlyWhereAUnitDivides) {
  EXPECT_EQ(FormatBytes(48 << 20), "48 MiB");
  EXPECT_EQ(FormatBytes((48 << 20) + 1), "48.00 MiB");
  EXPECT_EQ(FormatBytes(17), "17 B");
}

TEST(CheckedTest, OverflowIsNullopt) {
  EXPECT_EQ(CheckedMul<int64_t>(1 << 30, 4), int64_t{1} << 32);
  EXPECT_EQ(CheckedMul<int64_t>(int64_t{1} << 40, int64_t{1} << 40), std::nullopt);
  EXPECT_EQ(CheckedAdd(std::numeric_limits<int64_t>::max(), int64_t{1}), std::nullopt);
  EXPECT_EQ(RoundUp(5, 4), 8);
}

TEST(Crc32cTest, MatchesThePublishedVectorsAtEveryLengthAndSplit) {
  EXPECT_EQ(Crc32c("123456789", 9), 0xE3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF').data(), 32), 0x62A8AB43u);
  std::string data(20000, 0);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 31 + (i >> 8));
  const uint32_t whole = Crc32c(data.data(), data.size());
  for (size_t split : {0, 1, 7, 2047, 6143, 6144, 6145, 12288, 19999}) {
    EXPECT_EQ(Crc32c(data.data() + split, data.size() - split, Crc32c(data.data(), split)), whole) << split;
  }
}

// One bit at a time, straight from the definition: the oracle of the fast paths (tables, instruction,
// folding).
uint32_t Crc32cByBits(const char* data, size_t size, uint32_t crc) {
  crc = ~crc;
  for (size_t i = 0; i < size; ++i) {
    crc ^= static_cast<unsigned char>(data[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78 : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, EveryLengthAndAlignmentAgreesWithTheDefinition) {
  std::string data(20000, 0);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * i * 31 + (i >> 7));
  for (size_t size = 0; size < 2100; ++size) {
    const char* begin = data.data() + size % 67;
    const auto crc = static_cast<uint32_t>(size * 2654435761u);
    ASSERT_EQ(Crc32c(begin, size, crc), Crc32cByBits(begin, size, crc)) << size;
  }
  for (size_t size = 6100; size < data.size() - 67; size += 251) {
    ASSERT_EQ(Crc32c(data.data() + size % 67, size, 5), Crc32cByBits(data.data() + size % 67, size, 5))
        << size;
  }
}

TEST(RandomTest, PhiloxMatchesItsKnownAnswer) {
  // Known-answer vectors of the Random123 distribution for philox4x32-10.
  const std::array<uint32_t, 4> zeros = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}), zeros);
  const std::array<uint32_t, 4> ones = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), ones);
}

TEST(RandomTest, NormalHasUnitMoments) {
  const CounterRandom random(7, 1);
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double x = random.Normal(i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.03);
}

TEST(Float16Test, EveryValueSurvivesAndEveryFloatGoesToTheNearest) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    const bool nan = (bits & 0x7FFF) > 0x7C00;
    ASSERT_EQ(std::isnan(value), nan) << bits;
    ASSERT_EQ(ToFloat16(value).bits, nan ? (bits | 0x200) : bits) << bits;
    if (nan || (bits & 0x7FFF) >= 0x7C00) continue;
    // Between it and the next one (2^16 stands for infinity) lies a tie, which goes to the even one.
    const uint16_t next = static_cast<uint16_t>(bits + 1);
    const float above = (next & 0x7FFF) == 0x7C00 ? std::copysign(65536.0f, value) : ToFloat(Float16{next});
    const float tie = value + (above - value) / 2;
    ASSERT_EQ(ToFloat16(tie).bits, bits % 2 == 0 ? bits : next) << bits;
    ASSERT_EQ(ToFloat16(std::nextafter(tie, value)).bits, bits) << bits;
    ASSERT_EQ(ToFloat16(std::nextafter(tie, above)).bits, next) << bits;
  }
  EXPECT_EQ(ToFloat16(1.0f).bits, 0x3C00);
  EXPECT_EQ(ToFloat16(-65504.0f).bits, 0xFBFF);
  EXPECT_EQ(ToFloat16(0x1p-24f).bits, 0x0001);
  EXPECT_EQ(ToFloat16(0x1p-25f).bits, 0x0000);
  EXPECT_EQ(ToFloat16(std::numeric_limits<float>::denorm_min()).bits, 0x0000);
  EXPECT_EQ(ToFloat16(std::bit_cast<float>(0xFF800001u)).bits, 0xFE00);
}

TEST(BFloat16Test, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(ToBFloat16(1.0f).bits, 0x3F80);
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3F808000u)).bits, 0x3F80);
  EXPECT_EQ(ToBFloat16(std::bit_cast<float>(0x3F818000u)).bits, 0x3F82);
  EXPECT_EQ(ToBFloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::bit_cast<float>(0x7F800001u)))));
}

TEST(FdTest, DurableWriteReplacesAndTheLimitIsChecked) {
  const std::string directory = ::testing::TempDir() + "/fd_test_" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirectories(directory + "/a/b").ok());
  const std::string path = directory + "/a/b/file";
  ASSERT_TRUE(WriteFileDurably(path, "one").ok());
  ASSERT_TRUE(WriteFileDurably(path, "three").ok());
  EXPECT_EQ(*ReadFile(path, 100), "three");
  EXPECT_FALSE(WriteFileDurably(directory + "/a/b", "a folder stands there").ok());
  EXPECT_EQ(*ListDirectory(directory + "/a"), std::vector<std::string>{"b"}) << "no temporary file stays";
  EXPECT_EQ(ReadFile(path, 4).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReadFile(directory, 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(RemoveTree(directory).ok());
  EXPECT_EQ(ReadFile(path, 100).status().code(), absl::StatusCode::kNotFound);
}

TEST(ThreadTest, DestructionWithoutJoinAborts) {
  EXPECT_DEATH({ Thread thread("t", [] {}); }, "check failed");
}

TEST(ClockTest, FakeClockMovesOnlyWhenTold) {
  FakeClock clock(5);
  EXPECT_EQ(clock.MonotonicNanos(), 5);
  clock.Advance(absl::Seconds(1));
  EXPECT_EQ(clock.MonotonicNanos(), 1'000'000'005);
}

TEST(ProcessUsageTest, MemoryThatIsTouchedIsResident) {
  const ProcessUsage before = ReadProcessUsage();
  EXPECT_GT(before.rss_bytes, 0);
  EXPECT_GE(before.rss_peak_bytes, before.rss_bytes);
  constexpr int64_t kBytes = 64 << 20;
  std::vector<char> memory(kBytes);
  for (int64_t i = 0; i < kBytes; i += 4096) memory[i] = static_cast<char>(i >> 12);
  EXPECT_GE(ReadProcessUsage().rss_bytes, before.rss_bytes + kBytes * 9 / 10);
}

}  // namespace
}  // namespace strata
