#include "common/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// A machine of 1024 MiB, 800 of them free, with control groups of its own.
class MemoryLimitTest : public ::testing::Test {
 protected:
  MemoryLimitTest() {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal:        1048576 kB\nMemFree:  1 kB\nMemAvailable:     819200 kB\n");
  }
  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Group2(const std::string& group, const std::string& most, int64_t used) {
    Write("/sys/fs/cgroup" + group + "/memory.max", most + "\n");
    Write("/sys/fs/cgroup" + group + "/memory.current", std::to_string(used) + "\n");
  }
  void Group1(const std::string& group, int64_t most, int64_t used) {
    Write("/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", std::to_string(most) + "\n");
    Write("/sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
  }
  MemoryLimits Read() {
    const auto limits = ReadMemoryLimits(root_);
    EXPECT_TRUE(limits.ok()) << limits.status();
    return limits.value_or(MemoryLimits());
  }

  const std::string root_ = testing::TempDir() + "/memory_limit";
};

TEST_F(MemoryLimitTest, WithoutControlGroupsItIsTheMachine) {
  for (const bool unlimited : {false, true}) {
    if (unlimited) {
      Write("/proc/self/cgroup", "0::/a\n");
      Group2("/a", "max", 5 * kMiB);
    }
    const MemoryLimits limits = Read();
    EXPECT_EQ(limits.total.bytes, 1024 * kMiB);
    EXPECT_EQ(limits.total.of, "this machine's memory");
    EXPECT_EQ(limits.available.bytes, 800 * kMiB);
    EXPECT_EQ(limits.available.of, "what is free in this machine's memory");
  }
}

TEST_F(MemoryLimitTest, ASubgroupOfVersion2BindsAndItsPageCacheGivesWay) {
  Write("/proc/self/cgroup", "0::/pods/job\n");
  Group2("/pods", "max", 900 * kMiB);
  Group2("/pods/job", std::to_string(300 * kMiB), 250 * kMiB);
  Write("/sys/fs/cgroup/pods/job/memory.stat",
        "anon 1\nfile 99\ninactive_file 104857600\nactive_file 52428800\n");  // 100 and 50 MiB
  const MemoryLimits limits = Read();
  EXPECT_EQ(limits.total.bytes, 300 * kMiB);
  EXPECT_EQ(limits.total.of, "memory.max of the control group /sys/fs/cgroup/pods/job");
  EXPECT_EQ(limits.available.bytes, 200 * kMiB);
  EXPECT_EQ(limits.available.of,
            "what is free below memory.max of the control group /sys/fs/cgroup/pods/job");
}

TEST_F(MemoryLimitTest, AGroupAboveThatIsTighterBinds) {
  Write("/proc/self/cgroup", "0::/pods/job\n");
  Group2("/pods", std::to_string(400 * kMiB), 390 * kMiB);
  Group2("/pods/job", std::to_string(600 * kMiB), 10 * kMiB);
  MemoryLimits limits = Read();
  EXPECT_EQ(limits.total.bytes, 400 * kMiB);
  EXPECT_EQ(limits.available.bytes, 10 * kMiB);
  EXPECT_THAT(limits.available.of, HasSubstr("/sys/fs/cgroup/pods"));
  // Different groups may bind what there is and what is left of it.
  Group2("/pods/job", std::to_string(100 * kMiB), 10 * kMiB);
  limits = Read();
  EXPECT_THAT(limits.total.of, HasSubstr("/sys/fs/cgroup/pods/job"));
  EXPECT_EQ(limits.available.bytes, 10 * kMiB);
}

TEST_F(MemoryLimitTest, ASubgroupOfVersion1BindsWhoeverSharesItsHierarchy) {
  for (const char* const membership :
       {"7:memory:/docker/job\n1:cpu:/\n0::/system\n", "3:cpuset,memory:/docker/job\n"}) {
    Write("/proc/self/cgroup", membership);
    Group1("", 9223372036854771712, 700 * kMiB);
    Group1("/docker/job", 200 * kMiB, 50 * kMiB);
    Write("/sys/fs/cgroup/memory/docker/job/memory.stat", "inactive_file 5\ntotal_inactive_file 10485760\n");
    const MemoryLimits limits = Read();
    EXPECT_EQ(limits.total.bytes, 200 * kMiB);
    EXPECT_EQ(limits.total.of, "memory.limit_in_bytes of the control group /sys/fs/cgroup/memory/docker/job");
    EXPECT_EQ(limits.available.bytes, 160 * kMiB);
  }
}

// A container of version 1 is told the host's path of its group, which it does not see: its own is the root.
TEST_F(MemoryLimitTest, AContainerWithoutItsPathHasTheLimitOfItsRoot) {
  Write("/proc/self/cgroup", "7:memory:/docker/0123456789abcdef\n");
  Group1("", 100 * kMiB, 30 * kMiB);
  EXPECT_EQ(Read().total.bytes, 100 * kMiB);
  EXPECT_EQ(Read().available.bytes, 70 * kMiB);
}

TEST_F(MemoryLimitTest, MoreThanItsLimitInUseLeavesNothing) {
  Write("/proc/self/cgroup", "0::/a\n");
  Group2("/a", std::to_string(100 * kMiB), 120 * kMiB);
  EXPECT_EQ(Read().available.bytes, 0);
  Write("/sys/fs/cgroup/a/memory.current", "what\n");  // not known: then only the limit is
  EXPECT_EQ(Read().available.bytes, 100 * kMiB);
  Write("/sys/fs/cgroup/a/memory.max", "-1\n");
  EXPECT_EQ(Read().total.bytes, 1024 * kMiB);
}

// Above memory.high nobody is killed, but held up for as long as it lasts: no budget should count on that.
TEST_F(MemoryLimitTest, TheHighMarkOfVersion2Binds) {
  Write("/proc/self/cgroup", "0::/a\n");
  Group2("/a", std::to_string(300 * kMiB), 50 * kMiB);
  Write("/sys/fs/cgroup/a/memory.high", std::to_string(200 * kMiB) + "\n");
  EXPECT_EQ(Read().total.bytes, 200 * kMiB);
  EXPECT_EQ(Read().total.of, "memory.high of the control group /sys/fs/cgroup/a");
  EXPECT_EQ(Read().available.bytes, 150 * kMiB);
  Write("/sys/fs/cgroup/a/memory.high", "max\n");
  EXPECT_EQ(Read().total.bytes, 300 * kMiB);
}

TEST_F(MemoryLimitTest, KillsAreThoseOfTheProcessesOwnGroup) {
  EXPECT_FALSE(ReadMemoryKills(root_).has_value());
  Write("/proc/self/cgroup", "7:memory:/docker/job\n0::/\n");
  Group1("", 100 * kMiB, 0);
  Write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
  EXPECT_EQ(ReadMemoryKills(root_)->count, 7) << "a container's root is its own group";
  Group1("/docker/job", 100 * kMiB, 0);
  Write("/sys/fs/cgroup/memory/docker/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
  EXPECT_EQ(ReadMemoryKills(root_)->count, 2);
  EXPECT_EQ(ReadMemoryKills(root_)->group, "/sys/fs/cgroup/memory/docker/job");

  // Version 2 counts those of groups below as well, but in one file.
  Write("/proc/self/cgroup", "0::/pods/job\n");
  Write("/sys/fs/cgroup/pods/job/memory.events",
        "low 0\nhigh 0\nmax 9\noom 5\noom_kill 4\noom_group_kill 0\n");
  EXPECT_EQ(ReadMemoryKills(root_)->count, 4);
  Write("/sys/fs/cgroup/pods/job/memory.events.local", "max 9\noom 5\noom_kill 3\noom_group_kill 0\n");
  EXPECT_EQ(ReadMemoryKills(root_)->count, 3);
  EXPECT_EQ(ReadMemoryKills(root_)->group, "/sys/fs/cgroup/pods/job");
}

TEST_F(MemoryLimitTest, AMachineThatSaysNothingIsAnErrorWithTheFile) {
  Write("/proc/meminfo", "MemTotal: lots\n");
  const absl::Status silent = ReadMemoryLimits(root_).status();
  EXPECT_EQ(silent.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(silent.message(), HasSubstr(root_ + "/proc/meminfo has no MemTotal"));
  EXPECT_FALSE(ReadMemoryLimits(root_ + "/nowhere").ok());
}

TEST(MemoryLimitsTest, ThisMachineHasMemory) {
  const auto limits = ReadMemoryLimits();
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_GT(limits->available.bytes, 0);
  EXPECT_GE(limits->total.bytes, limits->available.bytes);
}

}  // namespace
}  // namespace strata
