#include "server/state/worker_claim.h"

#include <gtest/gtest.h>

namespace strata::server {
namespace {

Worker HolderOf(const std::string& identity, WorkerState state = WorkerState::kReady) {
  Worker holder;
  holder.id = "w1";
  holder.identity = identity;
  holder.incarnation = 10;
  holder.state = state;
  return holder;
}

TEST(WorkerClaimTest, ARestartHasItsIdBackAtOnceAndAnOlderProcessDoesNot) {
  for (const WorkerState state :
       {WorkerState::kExpected, WorkerState::kReady, WorkerState::kQuarantined, WorkerState::kLost}) {
    const Worker holder = HolderOf("a", state);
    for (const bool holds_jobs : {false, true}) {
      EXPECT_EQ(JudgeClaim(holder, holds_jobs, "a", 11), Claim::kGranted);
      EXPECT_EQ(JudgeClaim(holder, holds_jobs, "a", 10), Claim::kGranted) << "the same process again";
      EXPECT_EQ(JudgeClaim(holder, holds_jobs, "a", 9), Claim::kSuperseded);
    }
  }
}

TEST(WorkerClaimTest, AnotherAgentWaitsForTheEndOfTheLeaseWhateverItsIncarnation) {
  for (const int64_t incarnation : {1, 10, 99}) {
    for (const std::string identity : {"b", ""}) {
      for (const WorkerState state :
           {WorkerState::kExpected, WorkerState::kReady, WorkerState::kQuarantined}) {
        EXPECT_EQ(JudgeClaim(HolderOf("a", state), false, identity, incarnation), Claim::kHeld);
      }
      EXPECT_EQ(JudgeClaim(HolderOf("a", WorkerState::kLost), true, identity, incarnation), Claim::kGranted);
    }
  }
}

TEST(WorkerClaimTest, AHolderThatIsStoppingGivesTheIdUpWithTheLastOfItsJobs) {
  Worker holder = HolderOf("a");
  holder.draining = true;
  EXPECT_EQ(JudgeClaim(holder, /*holds_jobs=*/true, "b", 1), Claim::kHeld);
  holder.leftovers = {"job/1"};
  EXPECT_EQ(JudgeClaim(holder, /*holds_jobs=*/false, "b", 1), Claim::kHeld);
  holder.leftovers.clear();
  EXPECT_EQ(JudgeClaim(holder, /*holds_jobs=*/false, "b", 1), Claim::kGranted);
}

TEST(WorkerClaimTest, AHolderWithoutAnIdentityIsJudgedByItsIncarnation) {
  for (const std::string identity : {"b", ""}) {
    EXPECT_EQ(JudgeClaim(HolderOf(""), true, identity, 10), Claim::kGranted);
    EXPECT_EQ(JudgeClaim(HolderOf(""), true, identity, 9), Claim::kSuperseded);
  }
}

TEST(WorkerClaimTest, OnlyTwoKnownIdentitiesTellAgentsApart) {
  EXPECT_TRUE(MayBeSameAgent("a", "a"));
  EXPECT_TRUE(MayBeSameAgent("", "a"));
  EXPECT_TRUE(MayBeSameAgent("a", ""));
  EXPECT_FALSE(MayBeSameAgent("a", "b"));
}

}  // namespace
}  // namespace strata::server
