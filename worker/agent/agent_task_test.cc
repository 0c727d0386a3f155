// Tasks of an agent: how they run, end, fail and are stopped (agent_testing.h).
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "worker/agent/agent_testing.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

TEST_F(AgentTest, RunsATaskToItsEndAndLeavesNothing) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=20,commit_every=8,log_bytes=10");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const v1::TaskReport report = coordinator_.LastReport("job");
  EXPECT_TRUE(report.finished());
  EXPECT_EQ(report.result().train_loss(), 0.5);
  EXPECT_FALSE(report.has_failure());
  EXPECT_EQ(report.step(), 20);
  EXPECT_EQ(report.loss(), 0.25);
  ASSERT_EQ(report.ladder_size(), 1);
  EXPECT_EQ(report.ladder(0).chosen(), "stub");
  EXPECT_EQ(report.started_from(), "from the stub's checkpoint");
  // The end is reported only after the telemetry: all of it must be here now.
  EXPECT_EQ(coordinator_.Losses("job").size(), 20u);
  EXPECT_EQ(coordinator_.Log("job", "stdout").size(), std::string("begin job\n").size() + 200);
  EXPECT_EQ(coordinator_.Log("job", "stderr"), "stub error text \xff\n");
  ASSERT_EQ(coordinator_.commits().size(), 3u);
  EXPECT_EQ(coordinator_.commits()[2].step(), 20);
  EXPECT_EQ(coordinator_.commits()[2].job_uid(), "job");
  EXPECT_FALSE(coordinator_.commits()[2].request_id().empty());
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, StripesScratchOverSeveralPathsAndRemovesItFromEach) {
  const std::string second = folder_ + "/second drive";
  auto agent = StartAgent({"--nvme-path=" + second, "--nvme-weight=3", "--nvme-weight=1"});
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  const v1::Capacity capacity = coordinator_.registers()[0].capacity();
  ASSERT_EQ(capacity.nvme_size(), 2);
  EXPECT_EQ(capacity.nvme(0).bytes(), 48 << 20);
  EXPECT_EQ(capacity.nvme(1).bytes(), 16 << 20);
  EXPECT_EQ(capacity.nvme(1).path(), second);
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForPhase("STEPPING", "job"));
  EXPECT_EQ(agent->Scratch().size(), 1u);
  EXPECT_EQ(ListDirectory(second)->size(), 1u);
  coordinator_.Want("job", 1, v1::DesiredTask::KILL, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(ListDirectory(second)->empty());
  ExpectNothingLeft(*agent);
  // What the job wrote is counted per path, and known to the next life of the agent.
  agent->Kill(SIGTERM);
  agent->Wait();
  const size_t registers = coordinator_.registers().size();
  agent = StartAgent({"--nvme-path=" + second, "--nvme-weight=3", "--nvme-weight=1"});
  ASSERT_TRUE(Eventually([&] { return coordinator_.registers().size() > registers; }));
  const v1::Capacity later = coordinator_.registers().back().capacity();
  EXPECT_EQ(later.nvme(0).lifetime_written_bytes(), 1000);
  EXPECT_EQ(later.nvme(1).lifetime_written_bytes(), 2000);
}

TEST_F(AgentTest, CrashIsReportedWithSignalAndStderr) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "crash_at=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const v1::Failure failure = coordinator_.LastReport("job").failure();
  EXPECT_EQ(failure.cause(), v1::TRAINER_CRASHED);
  EXPECT_EQ(failure.signal(), SIGSEGV);
  EXPECT_EQ(failure.log_tail(), "stub error text ?\n");
  EXPECT_EQ(failure.worker(), "w1");
  EXPECT_EQ(coordinator_.Losses("job").size(), 2u);
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, ExitCodeWithoutAWordIsACrash) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "exit_at=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::TRAINER_CRASHED);
  EXPECT_EQ(coordinator_.LastReport("job").failure().exit_code(), 7);
}

TEST_F(AgentTest, FailureOfTheTrainerKeepsItsCause) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "fail_at=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::INVALID_DATA);
  EXPECT_EQ(coordinator_.LastReport("job").failure().message(), "the stub was told to fail");
}

TEST_F(AgentTest, BytesThatAreNoFrameEndTheTrainer) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,garbage_at=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::TRAINER_CRASHED);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), "frame"));
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, TrainerKilledFromOutsideIsReportedAndItsChildrenGoWithIt) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,child=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  std::vector<pid_t> trainers = agent->Trainers();
  ASSERT_EQ(trainers.size(), 2u);
  for (const pid_t pid : trainers) {
    if (getpgid(pid) == pid) kill(pid, SIGKILL);  // the leader only
  }
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), "out-of-memory"));
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, StopIsGracefulAndNoFailure) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_FALSE(coordinator_.LastReport("job").finished());
  EXPECT_FALSE(coordinator_.LastReport("job").has_failure());
  EXPECT_TRUE(coordinator_.commits().empty());
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, CheckpointAndStopCommitsFirst) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::CHECKPOINT_AND_STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.commits().size(), 1u);
  EXPECT_FALSE(coordinator_.LastReport("job").has_failure());
}

TEST_F(AgentTest, TrainerThatIgnoresStopGetsSigterm) {
  auto agent = StartAgent({"--stop-grace=0.2"});
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,ignore_stop=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGTERM);
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::FAILURE_CAUSE_UNSPECIFIED);
}

TEST_F(AgentTest, KillEndsATrainerThatTakesNoPart) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "hang_at=3,ignore_term=1,ignore_stop=1,child=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::KILL);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, TaskThatIsNoLongerDesiredIsKilled) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Unwant("job", 1);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, NextAttemptStartsOnlyWhenTheOldOneIsGone) {
  coordinator_.Configure([](auto& b) { b.forget = false; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Unwant("job", 1);
  coordinator_.Want("job", 2, v1::DesiredTask::RUN, "steps=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job", 2));
  EXPECT_EQ(coordinator_.LastReport("job", 1).phase(), "STOPPED");
  EXPECT_TRUE(coordinator_.LastReport("job", 2).finished());
}

TEST_F(AgentTest, StopOfATaskThatNeverStartedIsAnswered) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_FALSE(coordinator_.LastReport("job").has_failure());
}

TEST_F(AgentTest, UidThatCouldLeaveTheScratchFolderIsRefused) {
  auto agent = StartAgent();
  coordinator_.Want("../escape", 1, v1::DesiredTask::RUN, "steps=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "../escape"));
  EXPECT_EQ(coordinator_.LastReport("../escape").failure().cause(), v1::COORDINATOR_ERROR);
}

TEST_F(AgentTest, WorkerThatCannotStartTrainersBlamesItselfNotTheJob) {
  const std::string trainer = folder_ + "/trainer";
  fs::create_symlink(Runfile("worker/trainer_stub_for_tests/trainer_stub"), trainer);
  auto agent = StartAgent({"--trainer=" + trainer});
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  fs::remove(trainer);
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::DEVICE_FAULT);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), trainer));
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, TrainerThatClosesItsChannelAndStaysIsKilled) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,close_at=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));  // after the 10 s it has for ending by itself
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::TRAINER_CRASHED);
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), "closed its channel"));
}

TEST_F(AgentTest, ManyTasksRunBesideEachOther) {
  auto agent = StartAgent();
  constexpr int kTasks = 8;
  for (int i = 0; i < kTasks; ++i) {
    coordinator_.Want(absl::StrCat("job", i), 1, v1::DesiredTask::RUN, "steps=10,commit_every=5");
  }
  for (int i = 0; i < kTasks; ++i) {
    ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", absl::StrCat("job", i)));
    EXPECT_TRUE(coordinator_.LastReport(absl::StrCat("job", i)).finished());
    EXPECT_EQ(coordinator_.Losses(absl::StrCat("job", i)).size(), 10u);
  }
  ExpectNothingLeft(*agent);
}

}  // namespace
}  // namespace strata
