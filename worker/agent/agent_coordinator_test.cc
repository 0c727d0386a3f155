// An agent and its coordinator: one that is away, slow, forgetful or refuses (agent_testing.h).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "worker/agent/agent_testing.h"

namespace strata {
namespace {

TEST_F(AgentTest, ReportsTheEndUntilItIsForgotten) {
  coordinator_.Configure([](auto& b) { b.forget = false; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const int syncs = coordinator_.syncs();
  coordinator_.Want("other", 1, v1::DesiredTask::RUN, "steps=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "other"));
  ASSERT_TRUE(Eventually([&] { return coordinator_.syncs() > syncs + 2; }));
  EXPECT_EQ(coordinator_.LastReport("job").phase(), "STOPPED");
  EXPECT_EQ(agent->Records().size(), 2u);
  coordinator_.Configure([](auto& b) { b.forget = true; });
  coordinator_.Want("third", 1, v1::DesiredTask::RUN, "steps=1");
  EXPECT_TRUE(Eventually([&] { return agent->Records().empty(); }));
}

TEST_F(AgentTest, TrainsOnWhileTheCoordinatorIsAwayAndLosesNoStep) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=400,step_us=5000,commit_every=100");
  ASSERT_TRUE(coordinator_.WaitForStep(5, "job"));
  const std::vector<pid_t> before = agent->Trainers();
  coordinator_.Stop();
  coordinator_.ForgetWorkers();
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(coordinator_.LastReport("job").finished());
  EXPECT_EQ(coordinator_.Losses("job").size(), 400u);
  EXPECT_EQ(coordinator_.commits().size(), 4u);
  ASSERT_EQ(before.size(), 1u);
  const auto registers = coordinator_.registers();
  ASSERT_GE(registers.size(), 2u);
  EXPECT_EQ(registers.back().incarnation(), registers.front().incarnation());
  ASSERT_EQ(registers[1].running_size(), 1);
  // It may have come to a checkpoint, which waits for the coordinator; it has not ended.
  EXPECT_NE(registers[1].running(0).phase(), "STOPPED");
}

TEST_F(AgentTest, OrphanTimeoutKillsAndIsReportedLater) {
  coordinator_.Configure([](auto& b) {
    b.orphan_seconds = 1;
    b.lease_millis = 1000;
  });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Stop();
  ASSERT_TRUE(Eventually([&] { return agent->Trainers().empty(); }));
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::LEASE_EXPIRED);
}

TEST_F(AgentTest, CommitIsTriedAgainUntilItIsTaken) {
  coordinator_.Configure([](auto& b) { b.failing_commits = 3; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=4,commit_every=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(coordinator_.LastReport("job").finished());
  EXPECT_EQ(coordinator_.commits().size(), 2u);
}

TEST_F(AgentTest, StaleAttemptIsToldToTheTrainer) {
  coordinator_.Configure([](auto& b) { b.stale_commits = true; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=4,commit_every=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_FALSE(coordinator_.LastReport("job").finished());
  EXPECT_EQ(coordinator_.LastReport("job").failure().message(),
            "commit refused: STALE_ATTEMPT: attempt 1 is fenced");
}

TEST_F(AgentTest, BrokenTelemetryStreamsAreSentAgain) {
  coordinator_.Configure([](auto& b) { b.break_streams = 3; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=300,step_us=2000,log_bytes=100");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.Losses("job").size(), 300u);
  EXPECT_GT(coordinator_.duplicates(), 0);
  EXPECT_EQ(coordinator_.Log("job", "stdout").size(), std::string("begin job\n").size() + 300 * 100);
}

TEST_F(AgentTest, LogFloodIsBoundedAndLosesNoMetrics) {
  coordinator_.Configure([](auto& b) { b.ack_telemetry = false; });
  auto agent = StartAgent();
  // 60 MB of logs against 16 MiB of buffer, and nothing acknowledged.
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=60,step_us=0,log_bytes=1000000");
  ASSERT_TRUE(Eventually([&] { return coordinator_.LastReport("job").step() == 60; }));
  coordinator_.Configure([](auto& b) { b.ack_telemetry = true; });
  // Acks of new batches come only once the old stream is given up: a restart is quicker to watch.
  coordinator_.Stop();
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(Eventually([&] { return coordinator_.Losses("job").size() == 60; }));
}

TEST_F(AgentTest, SaysWhereNobodyAnswersAndWhatToDo) {
  coordinator_.Stop();
  auto agent = StartAgent();
  const std::string told = absl::StrCat("nobody answers at ", coordinator_.address());
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(agent->Log(), told); })) << agent->Log();
  EXPECT_TRUE(absl::StrContains(agent->Log(),
                                "start strata_server there, or name the coordinator's address with "
                                "--server; again in"));
  EXPECT_FALSE(absl::StrContains(agent->Log(), "last error"));
}

TEST_F(AgentTest, RefusedRegistrationIsAnErrorWithItsReason) {
  coordinator_.Configure([](auto& b) { b.refuse_register = true; });
  auto agent = StartAgent();
  EXPECT_EQ(WEXITSTATUS(agent->Wait()), 1);
  EXPECT_TRUE(absl::StrContains(*ReadFile(folder_ + "/agent.log", 1 << 20), "too old"));
}

TEST_F(AgentTest, WaitsForItsIdWhileAnotherAgentHasItAndTakesItThen) {
  coordinator_.Configure([](auto& b) { b.register_reason = "WORKER_ID_IN_USE"; });
  auto agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return coordinator_.refused_registers() >= 3; }));
  EXPECT_TRUE(coordinator_.registers().empty());
  coordinator_.Configure([](auto& b) { b.register_reason = ""; });
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.registers()[0].identity().size(), 32u);
  EXPECT_TRUE(absl::StrContains(agent->Log(), "the id is another's"));
}

TEST_F(AgentTest, AsksForItsIdNoSoonerThanTheLeaseOfTheOtherIsOverAndStopsAtOnceWhenTold) {
  coordinator_.Configure([](auto& b) {
    b.register_reason = "WORKER_ID_IN_USE";
    b.retry_seconds = 20;
  });
  auto agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(agent->Log(), "again in 20s"); })) << agent->Log();
  coordinator_.Configure([](auto& b) { b.retry_seconds = 3600; });
  agent->Kill(SIGTERM);
  EXPECT_EQ(agent->Wait(), 0);
  EXPECT_EQ(coordinator_.refused_registers(), 1);
  // The other one may stop before its lease is over.
  auto next = StartAgent();
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(next->Log(), "again in 30s"); })) << next->Log();
}

TEST_F(AgentTest, AnAgentWhosePlaceWasTakenStopsItsTrainersAndEndsWithACodeOfItsOwn) {
  for (const std::string reason : {"WORKER_ID_IN_USE", "STALE_INCARNATION"}) {
    auto agent = StartAgent();
    coordinator_.Want(reason, 1, v1::DesiredTask::RUN, "steps=0");
    ASSERT_TRUE(coordinator_.WaitForStep(2, reason));
    coordinator_.Configure([&](auto& b) { b.register_reason = reason; });
    coordinator_.ForgetWorkers();
    const int status = agent->Wait();
    ASSERT_TRUE(WIFEXITED(status)) << status;
    EXPECT_EQ(WEXITSTATUS(status), 3);
    EXPECT_TRUE(agent->Trainers().empty());
    EXPECT_TRUE(agent->Scratch().empty());
    EXPECT_TRUE(
        absl::StrContains(agent->Log(), "another agent has taken the place of worker w1: its 1 task(s)"));
    EXPECT_TRUE(absl::StrContains(agent->Log(), "the id is another's"));
    coordinator_.Configure([](auto& b) { b.register_reason = ""; });
    coordinator_.Unwant(reason, 1);
  }
}

TEST_F(AgentTest, AnAgentThatIsStaleAtItsStartEndsToo) {
  coordinator_.Configure([](auto& b) { b.register_reason = "STALE_INCARNATION"; });
  auto agent = StartAgent();
  EXPECT_EQ(WEXITSTATUS(agent->Wait()), 3);
  EXPECT_EQ(coordinator_.refused_registers(), 1);
}

TEST_F(AgentTest, RanksMeetThroughTheirAgentThoughTheCoordinatorRestartsInTheMiddle) {
  coordinator_.Configure([](auto& behaviour) { behaviour.failing_rendezvous = 2; });
  auto agent = StartAgent();
  const auto met = [&](int rank) { return coordinator_.Log("job", "stdout", 1, rank); };
  for (const int rank : {0, 1}) coordinator_.Want("job", 1, v1::DesiredTask::RUN, "ranks=3,steps=0", rank);
  ASSERT_TRUE(Eventually([&] { return coordinator_.LastReport("job", 1, 1).phase() == "LOADING"; }));
  coordinator_.Stop();
  coordinator_.Start();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "ranks=3,steps=0", 2);
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(Eventually([&] { return absl::StrContains(met(rank), "met id of rank 0\n"); })) << met(rank);
    EXPECT_TRUE(Eventually([&] { return coordinator_.LastReport("job", 1, rank).phase() == "STEPPING"; }));
  }
}

TEST_F(AgentTest, ARankThatDiesIsToldToTheOthersWithItsReason) {
  auto agent = StartAgent();
  for (const int rank : {0, 1, 2}) {
    coordinator_.Want("job", 1, v1::DesiredTask::RUN,
                      rank == 1 ? "ranks=3,steps=0,crash_at=20" : "ranks=3,steps=0", rank);
  }
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(Eventually([&] { return coordinator_.LastReport("job", 1, rank).phase() == "STOPPED"; }));
    EXPECT_EQ(
        coordinator_.LastReport("job", 1, rank).failure().message(),
        "group world, generation 1: rank 1: its trainer on worker w1 has ended: the trainer was killed by "
        "signal 11 (SEGV)");
  }
}

TEST_F(AgentTest, RanksOfAFencedAttemptDoNotMeet) {
  coordinator_.Configure([](auto& behaviour) { behaviour.stale_commits = true; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "ranks=2,steps=0");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().message(),
            "group world, generation 1: the coordinator refuses it: attempt 1 is fenced");
}

}  // namespace
}  // namespace strata
