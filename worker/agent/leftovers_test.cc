#include "worker/agent/leftovers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/fd.h"
#include "worker/agent/process.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// A process in its own group with exactly this environment.
ProcessIdentity StartSleeper(const std::vector<std::string>& environment) {
  std::vector<char*> env;
  for (const std::string& entry : environment) env.push_back(const_cast<char*>(entry.c_str()));
  env.push_back(nullptr);
  int fds[2];
  EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd read_end(fds[0]);
  Fd write_end(fds[1]);
  const pid_t pid = fork();
  if (pid == 0) {
    setpgid(0, 0);
    char* argv[] = {const_cast<char*>("/bin/sleep"), const_cast<char*>("1000"), nullptr};
    execve(argv[0], argv, env.data());
    _exit(127);
  }
  write_end = Fd();
  char byte;
  EXPECT_EQ(read(read_end.get(), &byte, 1), 0);  // closed by the exec
  return ReadProcessStat(pid)->identity;
}

void Reap(const ProcessIdentity& identity) {
  kill(identity.pid, SIGKILL);
  waitpid(identity.pid, nullptr, 0);
}

TaskRecord RecordOf(const ProcessIdentity& identity) {
  TaskRecord record;
  record.key = {"job", 1, 0};
  record.scratch = {"/nowhere"};
  record.process = identity;
  record.boot_id = BootId();
  return record;
}

TEST(KillLeftoversTest, EndsTheRecordedProcess) {
  const ProcessIdentity sleeper = StartSleeper({});
  EXPECT_TRUE(KillLeftovers("/state", {RecordOf(sleeper)}, absl::Seconds(30)).ok());
  EXPECT_TRUE(HasEnded(sleeper.pid));
  Reap(sleeper);
}

TEST(KillLeftoversTest, SparesAProcessThatGotTheRecordedNumberLater) {
  const ProcessIdentity sleeper = StartSleeper({});
  TaskRecord other_start = RecordOf(sleeper);
  --other_start.process.start_ticks;
  TaskRecord other_boot = RecordOf(sleeper);
  other_boot.boot_id = "another boot";
  TaskRecord never_started = RecordOf(sleeper);
  never_started.process = {};
  EXPECT_TRUE(KillLeftovers("/state", {other_start, other_boot, never_started}, absl::Seconds(30)).ok());
  EXPECT_FALSE(HasEnded(sleeper.pid));
  Reap(sleeper);
}

TEST(KillLeftoversTest, FindsProcessesWithoutRecordByTheirVariables) {
  const ProcessIdentity ours = StartSleeper({"STRATA_TASK=job.1.0", "STRATA_WORKER_STATE_DIR=/state"});
  const ProcessIdentity others = StartSleeper({"STRATA_TASK=job.1.0", "STRATA_WORKER_STATE_DIR=/state2"});
  EXPECT_TRUE(KillLeftovers("/state", {}, absl::Seconds(30)).ok());
  EXPECT_TRUE(HasEnded(ours.pid));
  EXPECT_FALSE(HasEnded(others.pid));
  Reap(ours);
  Reap(others);
}

class ScratchTest : public ::testing::Test {
 protected:
  ScratchTest()
      : nvme_(
            (fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name())
                .string()) {
    fs::remove_all(nvme_);
    fs::create_directories(nvme_);
  }
  const std::string nvme_;
};

TEST_F(ScratchTest, LastRankTakesTheJobsFolderWithIt) {
  auto first = MakeScratch(nvme_, "w1", {"job", 1, 0});
  auto second = MakeScratch(nvme_, "w1", {"job", 1, 1});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, nvme_ + "/job/1.0");
  std::ofstream(*first + "/extent") << "x";
  ASSERT_TRUE(RemoveScratch(*first).ok());
  EXPECT_TRUE(fs::exists(*second));
  ASSERT_TRUE(RemoveScratch(*second).ok());
  EXPECT_TRUE(fs::is_empty(nvme_));
  EXPECT_TRUE(RemoveScratch(*second).ok());  // again is fine
}

TEST_F(ScratchTest, SweepTakesWhatIsMarkedOrRecordedAndNothingElse) {
  const std::string ours = ScratchOwner("w1", "/state");
  ASSERT_TRUE(MakeScratch(nvme_, ours, {"marked", 1, 0}).ok());
  ASSERT_TRUE(MakeScratch(nvme_, ScratchOwner("w2", "/state"), {"neighbours", 1, 0}).ok());
  ASSERT_TRUE(MakeScratch(nvme_, ScratchOwner("w1", "/state2"), {"namesakes", 1, 0}).ok());
  fs::create_directories(nvme_ + "/unmarked/1.0");  // a crash before the marker
  fs::create_directories(nvme_ + "/precious");
  std::ofstream(nvme_ + "/precious/data") << "x";
  fs::create_directory_symlink(nvme_ + "/precious", nvme_ + "/link");
  std::ofstream(nvme_ + "/precious/.strata-scratch") << "someone else";
  TaskRecord record;
  record.key = {"unmarked", 1, 0};
  record.scratch = {nvme_ + "/unmarked/1.0"};
  TaskRecord never_made;
  never_made.key = {"never", 1, 0};
  never_made.scratch = {nvme_ + "/never/1.0"};
  const std::string second = nvme_ + "/a_second_drive";
  ASSERT_TRUE(MakeScratch(second, ours, {"marked", 1, 0}).ok());
  auto removed = SweepScratch({nvme_, second}, ours, {record, never_made});
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_EQ(removed->size(), 3u);
  EXPECT_TRUE(fs::is_empty(second));
  EXPECT_FALSE(fs::exists(nvme_ + "/marked"));
  EXPECT_FALSE(fs::exists(nvme_ + "/unmarked"));
  EXPECT_TRUE(fs::exists(nvme_ + "/neighbours/1.0"));
  EXPECT_TRUE(fs::exists(nvme_ + "/namesakes/1.0"));
  EXPECT_TRUE(fs::exists(nvme_ + "/precious/data"));
}

}  // namespace
}  // namespace strata
