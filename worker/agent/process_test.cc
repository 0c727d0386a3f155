#include "worker/agent/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "common/fd.h"

namespace strata {
namespace {

absl::Status Recorded(const ProcessIdentity&) { return absl::OkStatus(); }

// All of a pipe until its end.
std::string Drain(const Fd& pipe) {
  std::string text;
  char buffer[4096];
  while (true) {
    pollfd poll_fd = {pipe.get(), POLLIN, 0};
    (void)poll(&poll_fd, 1, -1);
    const ssize_t n = read(pipe.get(), buffer, sizeof(buffer));
    if (n == 0) return text;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
}

int End(const ChildProcess& child) {
  pollfd poll_fd = {child.pidfd.get(), POLLIN, 0};
  (void)poll(&poll_fd, 1, -1);
  int status = 0;
  while (!EndGroup(child.identity.pid, &status)) (void)poll(nullptr, 0, 5);
  return status;
}

SpawnRequest Shell(const std::string& script) {
  return {{"/bin/sh", "-c", script}, {"PATH=/usr/bin:/bin", "MARK=yes"}};
}

class ProcessTest : public ::testing::Test {
 protected:
  ProcessTest() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  Spawner spawner_;
};

TEST_F(ProcessTest, ChildHasItsPipesEnvironmentAndFourDescriptorsOnly) {
  auto child =
      spawner_.Spawn(Shell("echo out $MARK; echo err >&2; ls /proc/self/fd | tr '\\n' ' '"), Recorded);
  ASSERT_TRUE(child.ok()) << child.status();
  const std::string out = Drain(child->stdout_pipe);
  EXPECT_EQ(Drain(child->stderr_pipe), "err\n");
  // ls itself opens the folder it lists, as the lowest free number.
  EXPECT_EQ(out, "out yes\n0 1 2 3 4 ");
  EXPECT_EQ(End(*child), 0);
}

TEST_F(ProcessTest, WhereMemoryEndsTheChildGoesBeforeTheAgent) {
  const auto text = ReadFile("/proc/self/oom_score_adj", 64);
  ASSERT_TRUE(text.ok()) << text.status();
  const int own = std::atoi(text->c_str());
  auto child = spawner_.Spawn(Shell("cat /proc/self/oom_score_adj"), Recorded);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(Drain(child->stdout_pipe), absl::StrCat(std::min(own + 500, 1000), "\n"));
  EXPECT_EQ(End(*child), 0);
}

TEST_F(ProcessTest, SignalsAndTheirMaskAreDefault) {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &mask, nullptr);
  signal(SIGPIPE, SIG_IGN);
  Spawner spawner;  // its thread inherits the mask
  auto child = spawner.Spawn(Shell("grep -E 'SigBlk|SigIgn' /proc/self/status"), Recorded);
  ASSERT_TRUE(child.ok());
  // Numbers 32 and 33 (the digits left out) belong to the C library, which lets nobody change them.
  const std::string out = Drain(child->stdout_pipe);
  EXPECT_NE(out.find("SigBlk:\t0000000000000000\n"), std::string::npos) << out;
  const size_t ignored = out.find("SigIgn:\t");
  ASSERT_NE(ignored, std::string::npos) << out;
  EXPECT_EQ(std::stoull(out.substr(ignored + 8, 16), nullptr, 16) & 0x7FFFFFFF, 0u) << out;
  EXPECT_EQ(End(*child), 0);
  pthread_sigmask(SIG_UNBLOCK, &mask, nullptr);
}

TEST_F(ProcessTest, ProgramDoesNotRunWhenItsRecordFails) {
  ProcessIdentity seen;
  auto child =
      spawner_.Spawn(Shell("echo ran > " + ::testing::TempDir() + "/ran"), [&](const ProcessIdentity& id) {
        seen = id;
        return absl::ResourceExhaustedError("disk full");
      });
  EXPECT_EQ(child.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(seen.pid, 0);
  EXPECT_NE(access((::testing::TempDir() + "/ran").c_str(), F_OK), 0);
  EXPECT_FALSE(ReadProcessStat(seen.pid).ok());  // reaped
}

TEST_F(ProcessTest, MissingProgramIsAnErrorThatNamesIt) {
  auto child = spawner_.Spawn({{"/does/not/exist"}, {}}, Recorded);
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(child.status().message().find("/does/not/exist"), std::string::npos);
}

TEST_F(ProcessTest, RecordedIdentityIsThatOfTheProgram) {
  ProcessIdentity recorded;
  auto child = spawner_.Spawn(Shell("exec sleep 1000"), [&](const ProcessIdentity& id) {
    recorded = id;
    return absl::OkStatus();
  });
  ASSERT_TRUE(child.ok());
  const auto stat = ReadProcessStat(recorded.pid);
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->identity.start_ticks, recorded.start_ticks);
  EXPECT_EQ(stat->group, recorded.pid);
  EXPECT_EQ(stat->parent, getpid());
  KillExactly(recorded);
  EXPECT_EQ(WTERMSIG(End(*child)), SIGKILL);
}

TEST_F(ProcessTest, EndGroupTakesGrandchildrenThatLostTheirParent) {
  auto child = spawner_.Spawn(Shell("sleep 1000 & sleep 1000 & echo started"), Recorded);
  ASSERT_TRUE(child.ok());
  EXPECT_EQ(WEXITSTATUS(End(*child)), 0);
  for (const ProcessStat& process : ListProcesses()) {
    EXPECT_FALSE(process.group == child->identity.pid && !process.zombie) << process.identity.pid;
  }
  EXPECT_EQ(Drain(child->stdout_pipe), "started\n");  // nobody holds the pipe any more
}

TEST_F(ProcessTest, EndOfTheSpawnerKillsWhatItStarted) {
  ChildProcess child;
  {
    Spawner spawner;
    auto started = spawner.Spawn(Shell("exec sleep 1000"), Recorded);
    ASSERT_TRUE(started.ok());
    child = *std::move(started);
  }
  EXPECT_EQ(WTERMSIG(End(child)), SIGKILL);
}

TEST(ReadProcessStatTest, ReadsNamesWithSpacesAndParentheses) {
  prctl(PR_SET_NAME, ") R 1 (x");
  const auto stat = ReadProcessStat(getpid());
  ASSERT_TRUE(stat.ok());
  EXPECT_EQ(stat->parent, getppid());
  EXPECT_EQ(stat->group, getpgrp());
}

}  // namespace
}  // namespace strata
