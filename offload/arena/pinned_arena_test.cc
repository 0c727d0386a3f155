#include "offload/arena/pinned_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// The size of the mapping that begins at `data`, 0 when none does.
uint64_t MappingBytes(const std::byte* data) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uint64_t from, to;
    if (sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &from, &to) != 2) continue;
    if (from == reinterpret_cast<uintptr_t>(data)) return to - from;
  }
  return 0;
}

TEST(PinnedArena, HasExactlyTheSizeAskedAndIsPresentAndZero) {
  const uint64_t bytes = 9 * kMiB + 3 * 4096;
  auto arena = PinnedArena::Create({.bytes = bytes});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ((*arena)->size(), bytes);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*arena)->data()) % (2 * kMiB), 0);
  std::string present(bytes / 4096, '\0');
  ASSERT_EQ(mincore((*arena)->data(), bytes, reinterpret_cast<unsigned char*>(present.data())), 0);
  for (const char page : present) ASSERT_TRUE(page & 1);
  EXPECT_EQ(MappingBytes((*arena)->data()), bytes) << "rounded up behind the budget's back";
  for (const std::byte byte : (*arena)->span()) ASSERT_EQ(byte, std::byte{0});
}

TEST(PinnedArena, ReportsWhatItGot) {
  auto arena = PinnedArena::Create({.bytes = 16 * kMiB});
  ASSERT_TRUE(arena.ok()) << arena.status();
  const PinnedArenaReport& report = (*arena)->report();
  EXPECT_EQ(report.huge_page_bytes > 0, report.pages != PageKind::kSmall);
  EXPECT_LE(report.huge_page_bytes, 16 * kMiB);
  EXPECT_EQ(report.locked, report.why_not_locked.empty());
  EXPECT_EQ(report.huge_page_bytes >= 16 * kMiB / 10 * 9, report.why_not_huge.empty());
  printf("not locked: %s\nnot huge: %s\n", report.why_not_locked.c_str(), report.why_not_huge.c_str());
}

TEST(PinnedArena, SmallPagesOnDemand) {
  auto arena = PinnedArena::Create({.bytes = 4 * kMiB, .use_huge_pages = false, .use_lock = false});
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_FALSE((*arena)->report().locked);
  EXPECT_EQ((*arena)->report().why_not_locked, "not asked for");
  EXPECT_EQ((*arena)->report().why_not_huge, "not asked for");
}

TEST(PinnedArena, RefusesSizesThatAreNoWholePages) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, 4 * kMiB + 1, UINT64_MAX}) {
    EXPECT_TRUE(absl::IsInvalidArgument(PinnedArena::Create({.bytes = bytes}).status())) << bytes;
  }
}

TEST(PinnedArena, MoreThanTheMachineHasNamesBytesAskedAndTheLimit) {
  const uint64_t bytes = uint64_t{1} << 45;
  const absl::Status status = PinnedArena::Create({.bytes = bytes}).status();
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(bytes)));
  EXPECT_THAT(status.message(), HasSubstr("memory"));
  EXPECT_THAT(status.message(), HasSubstr("lower memory.host"));
}

#ifndef STRATA_SANITIZE  // Sanitizers need more address space than the limit below.
TEST(PinnedArena, LimitsOfTheProcessAreTypedAndLockingDegradesAlone) {
  // In a child, since limits cannot be raised again.
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit no_lock{0, 0};
    if (setrlimit(RLIMIT_MEMLOCK, &no_lock) != 0) _exit(10);
    // A process with CAP_IPC_LOCK may lock whatever the limit; then there is nothing to see here.
    static char page[4096];
    if (mlock(page, sizeof(page)) != 0) {
      auto unlocked = PinnedArena::Create({.bytes = 4 * kMiB});
      if (!unlocked.ok() || (*unlocked)->report().locked) _exit(12);
      if (!absl::StrContains((*unlocked)->report().why_not_locked, "ulimit -l")) _exit(13);
    }
    const rlimit small{64 * kMiB, 64 * kMiB};
    if (setrlimit(RLIMIT_AS, &small) != 0) _exit(14);
    const absl::Status status = PinnedArena::Create({.bytes = 128 * kMiB}).status();
    _exit(absl::IsResourceExhausted(status) && absl::StrContains(status.message(), "RLIMIT_AS") ? 0 : 15);
  }
  int result = 0;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0) << "child's result " << WEXITSTATUS(result);
}
#endif

}  // namespace
}  // namespace strata
