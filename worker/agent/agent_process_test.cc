// The agent's own life: what it finds at its start, how it dies and how it stops (agent_testing.h).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "absl/strings/match.h"
#include "common/fd.h"
#include "worker/agent/agent_testing.h"

namespace strata {
namespace {

TEST_F(AgentTest, RegistersWithWhatTheMachineHas) {
  auto agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  const v1::RegisterRequest request = coordinator_.registers()[0];
  EXPECT_EQ(request.worker_id(), "w1");
  EXPECT_GT(request.incarnation(), 0);
  EXPECT_EQ(request.capacity().device_bytes(), 64 << 20);
  EXPECT_GT(request.capacity().cpus(), 0);
  ASSERT_EQ(request.capacity().nvme_size(), 1);
  EXPECT_FALSE(request.capacity().nvme(0).fs_type().empty());
  EXPECT_GT(request.capacity().nvme(0).free_bytes(), 0);
  ASSERT_EQ(request.capacity().ladder_size(), 7);  // without a GPU, no memory registered with one
  EXPECT_EQ(request.capacity().ladder(0).rung(), "io_uring");
}

TEST_F(AgentTest, KilledAgentTakesItsTrainersWithItAndTheNextOneTellsTheTruth) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  ASSERT_EQ(agent->Trainers().size(), 1u);
  agent->Kill(SIGKILL);
  agent->Wait();
  EXPECT_TRUE(Eventually([&] { return agent->Trainers().empty(); }));
  EXPECT_FALSE(agent->Scratch().empty());

  auto next = StartAgent();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const auto registers = coordinator_.registers();
  ASSERT_EQ(registers.size(), 2u);
  EXPECT_GT(registers[1].incarnation(), registers[0].incarnation());
  EXPECT_EQ(registers[1].identity(), registers[0].identity());
  ASSERT_EQ(registers[1].running_size(), 1);
  EXPECT_EQ(registers[1].running(0).phase(), "STOPPED");
  EXPECT_EQ(registers[1].running(0).failure().cause(), v1::WORKER_LOST);
  ExpectNothingLeft(*next);
  // The same job again, as its next attempt.
  coordinator_.Want("job", 2, v1::DesiredTask::RUN, "steps=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job", 2));
  EXPECT_TRUE(coordinator_.LastReport("job", 2).finished());
}

TEST_F(AgentTest, AnotherAgentOfTheSameIdLeavesItsScratchAlone) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Configure([](auto& b) { b.register_reason = "WORKER_ID_IN_USE"; });
  AgentProcess other(coordinator_.address(), folder_ + "/other", {"--nvme-path=" + folder_ + "/nvme"});
  ASSERT_TRUE(Eventually([&] { return coordinator_.refused_registers() > 0; }));
  EXPECT_FALSE(agent->Scratch().empty());
  EXPECT_EQ(agent->Trainers().size(), 1u);
}

TEST_F(AgentTest, EndThatTheCoordinatorDidNotHearSurvivesTheAgent) {
  coordinator_.Configure([](auto& b) { b.forget = false; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  agent->Kill(SIGKILL);
  agent->Wait();
  auto next = StartAgent();
  ASSERT_TRUE(Eventually([&] { return coordinator_.registers().size() == 2; }));
  const v1::RegisterRequest request = coordinator_.registers()[1];
  ASSERT_EQ(request.running_size(), 1);
  EXPECT_TRUE(request.running(0).finished());
  EXPECT_EQ(request.running(0).result().train_loss(), 0.5);
}

TEST_F(AgentTest, SigtermStopsTasksWithACheckpointAndExitsCleanly) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  agent->Kill(SIGTERM);
  const int status = agent->Wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(coordinator_.commits().size(), 1u);
  EXPECT_EQ(coordinator_.LastReport("job").phase(), "STOPPED");
  EXPECT_FALSE(coordinator_.LastReport("job").finished());
  EXPECT_TRUE(agent->Scratch().empty());
  EXPECT_TRUE(agent->Trainers().empty());
}

TEST_F(AgentTest, SecondSigtermDoesNotWait) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,ignore_stop=1,ignore_term=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  agent->Kill(SIGTERM);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPING", "job"));
  agent->Kill(SIGTERM);
  EXPECT_EQ(agent->Wait(), 0);
  EXPECT_TRUE(agent->Trainers().empty());
  EXPECT_TRUE(agent->Scratch().empty());
}

TEST_F(AgentTest, SecondAgentOnTheSameStateIsRefused) {
  auto agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  auto second = StartAgent();
  EXPECT_EQ(WEXITSTATUS(second->Wait()), 1);
  EXPECT_TRUE(
      absl::StrContains(*ReadFile(folder_ + "/agent.log", 1 << 20), "in use by another strata_worker"));
}

}  // namespace
}  // namespace strata
