// Ranks that meet at the coordinator: in every order, and what ends it for all of them.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "proto/duration/duration.h"
#include "server/service/coordinator_testing.h"

namespace strata::server {
namespace {

using ::testing::HasSubstr;

class RendezvousTest : public CoordinatorTest {
 protected:
  v1::Job StartJob(const std::string& id = "a") {
    EXPECT_TRUE(Register("w1", 1).ok());
    EXPECT_TRUE(Create(id).ok());
    coordinator_->Tick();
    Sync("w1", 1);
    return Get(id);
  }
  static v1::GroupMember Rank(int rank, int size, int64_t generation = 1) {
    v1::GroupMember member;
    member.set_group("world");
    member.set_generation(generation);
    member.set_rank(rank);
    member.set_size(size);
    member.set_token(absl::StrCat("process ", rank));
    *member.mutable_time_left() = strata::ToProto(absl::Seconds(60));
    if (rank == 0) member.set_id(absl::StrCat("id of generation ", generation));
    return member;
  }
  // As a relay does: what is known is told.
  static void Learn(v1::GroupMember& member, const v1::GroupState& state) {
    member.set_known(state.state());
    if (state.state() == v1::GroupState::COMPLETE) member.set_id(state.id());
  }
  absl::StatusOr<v1::RendezvousResponse> AskAll(const v1::Job& job,
                                                const std::vector<v1::GroupMember>& members,
                                                absl::Duration wait = absl::ZeroDuration()) {
    v1::RendezvousRequest request;
    request.set_job_uid(job.uid());
    request.set_attempt(job.status().attempt());
    for (const v1::GroupMember& member : members) *request.add_members() = member;
    *request.mutable_max_wait() = strata::ToProto(wait);
    return coordinator_->Rendezvous(request, CallContext());
  }
  v1::GroupState Ask(const v1::Job& job, const v1::GroupMember& member,
                     absl::Duration wait = absl::ZeroDuration()) {
    const auto response = AskAll(job, {member}, wait);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.ok() ? response->groups(0) : v1::GroupState();
  }
  // Ranks whose calls are held until there is news; `meanwhile` runs when all of them have called.
  std::vector<v1::GroupState> Held(const v1::Job& job, std::vector<v1::GroupMember> members,
                                   const std::function<void()>& meanwhile) {
    std::vector<v1::GroupState> states(members.size());
    std::vector<Thread> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      Ask(job, members[i]);
      threads.emplace_back("rank", [&, i] { states[i] = Ask(job, members[i], absl::Seconds(10)); });
    }
    meanwhile();
    for (Thread& thread : threads) thread.Join();
    return states;
  }
};

TEST_F(RendezvousTest, RanksMeetInEveryOrderAndTheJobShowsWhoIsMissing) {
  const v1::Job job = StartJob();
  std::vector<int> order = {0, 1, 2};
  int64_t generation = 0;
  do {
    ++generation;
    const v1::GroupMember last = Rank(order[2], 3, generation);
    const auto states = Held(job, {Rank(order[0], 3, generation), Rank(order[1], 3, generation)}, [&] {
      const v1::GroupStatus shown = Get("a").status().groups(0);
      EXPECT_EQ(shown.group(), "world");
      EXPECT_EQ(shown.generation(), generation);
      EXPECT_EQ(shown.state(), v1::GroupState::FORMING);
      EXPECT_EQ(shown.size(), 3);
      ASSERT_EQ(shown.missing_size(), 1);
      EXPECT_EQ(shown.missing(0), order[2]);
      EXPECT_EQ(Ask(job, last).state(), v1::GroupState::COMPLETE);
    });
    for (const v1::GroupState& state : states) {
      EXPECT_EQ(state.state(), v1::GroupState::COMPLETE);
      EXPECT_EQ(state.id(), absl::StrCat("id of generation ", generation));
    }
    EXPECT_EQ(Get("a").status().groups(0).state(), v1::GroupState::COMPLETE);
    // A lost answer: the same question again.
    EXPECT_EQ(Ask(job, Rank(order[0], 3, generation)).id(), states[0].id());
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(RendezvousTest, AMissingRankIsNamedToAllWhenTheTimeIsOver) {
  const v1::Job job = StartJob();
  v1::GroupMember hasty = Rank(2, 4);
  *hasty.mutable_time_left() = strata::ToProto(absl::Seconds(8));  // within the worker's lease
  const auto states = Held(job, {Rank(0, 4), hasty}, [&] { Advance(absl::Seconds(9)); });
  for (const v1::GroupState& state : states) {
    EXPECT_EQ(state.cause(), v1::GroupState::DEADLINE);
    EXPECT_EQ(state.message(), "ranks 1, 3 of 4 have not arrived in time");
  }
  EXPECT_EQ(Ask(job, Rank(1, 4)).cause(), v1::GroupState::DEADLINE) << "late";
  EXPECT_EQ(Get("a").status().groups(0).message(), states[0].message());
  EXPECT_EQ(Ask(job, Rank(1, 4, 2)).state(), v1::GroupState::FORMING) << "the next one is open";
}

TEST_F(RendezvousTest, AnotherSizeOrASecondProcessOfARankEndsItForAll) {
  const v1::Job job = StartJob();
  v1::GroupMember twice = Rank(1, 3);
  twice.set_token("another");
  const std::vector<std::pair<v1::GroupMember, v1::GroupState::Cause>> cases = {
      {Rank(2, 4), v1::GroupState::SIZE_MISMATCH}, {twice, v1::GroupState::RANK_TWICE}};
  int64_t generation = 1;
  for (auto [wrong, cause] : cases) {
    wrong.set_generation(generation);
    const auto states =
        Held(job, {Rank(0, 3, generation), Rank(1, 3, generation)},
             [&, wrong = wrong, cause = cause] { EXPECT_EQ(Ask(job, wrong).cause(), cause); });
    for (const v1::GroupState& state : states) EXPECT_EQ(state.cause(), cause);
    ++generation;
  }
}

TEST_F(RendezvousTest, OnlyTheCurrentAttemptIsServed) {
  const v1::Job first = StartJob();
  for (const int attempt : {0, 2, -1}) {
    v1::Job other = first;
    other.mutable_status()->set_attempt(attempt);
    EXPECT_EQ(ReasonOf(AskAll(other, {Rank(0, 2)}).status()), "STALE_ATTEMPT") << attempt;
  }
  v1::Job nobody = first;
  nobody.set_uid("nobody");
  EXPECT_EQ(ReasonOf(AskAll(nobody, {Rank(0, 2)}).status()), "NOT_FOUND");

  // The first attempt fails while a rank waits; what the second one forms is not for the first.
  v1::TaskReport crashed = Stopped(first);
  crashed.mutable_failure()->set_cause(v1::TRAINER_CRASHED);
  crashed.mutable_failure()->set_rank(1);
  crashed.mutable_failure()->set_worker("w1");
  crashed.mutable_failure()->set_message("the trainer was killed by signal 9 (KILL)");
  const auto states = Held(first, {Rank(0, 2)}, [&] { Sync("w1", 1, {crashed}); });
  EXPECT_EQ(states[0].cause(), v1::GroupState::ATTEMPT_OVER);
  EXPECT_THAT(states[0].message(),
              HasSubstr("rank 1 on worker w1: TRAINER_CRASHED: the trainer was killed by "
                        "signal 9 (KILL)"));
  EXPECT_EQ(Get("a").status().groups_size(), 0);
  Advance(absl::Minutes(2));
  ASSERT_TRUE(Register("w1", 1).ok());
  Advance(absl::Seconds(1));
  const v1::Job second = Get("a");
  ASSERT_EQ(second.status().attempt(), 2);
  ASSERT_EQ(second.status().state(), v1::Job::STARTING);
  EXPECT_EQ(Ask(second, Rank(0, 2)).state(), v1::GroupState::FORMING);
  EXPECT_EQ(Ask(second, Rank(1, 2)).state(), v1::GroupState::COMPLETE);
  EXPECT_EQ(ReasonOf(AskAll(first, {Rank(0, 2)}).status()), "STALE_ATTEMPT");
}

TEST_F(RendezvousTest, EachFieldBeyondItsLimitsIsRefusedByName) {
  const v1::Job job = StartJob();
  v1::GroupMember bad = Rank(1, 2);
  bad.set_id(std::string(1000, 'x'));
  const absl::Status refused = AskAll(job, {Rank(0, 2), bad}).status();
  EXPECT_EQ(ReasonOf(refused), "INVALID_REQUEST");
  EXPECT_THAT(refused.message(), HasSubstr("members[1].id: 1000 bytes"));
  absl::Status full;
  v1::GroupMember member = Rank(0, 2);
  for (int i = 0; full.ok() && i < 2000; ++i) {
    member.set_group(absl::StrCat("g", i));
    full = AskAll(job, {member}).status();
  }
  EXPECT_EQ(ReasonOf(full), "QUOTA_EXCEEDED");
  EXPECT_THAT(full.message(), HasSubstr("group g1024 is one more than the 1024"));
}

TEST_F(RendezvousTest, ACancelInTheMiddleEndsItWhetherItHasFormedOrNot) {
  for (const bool complete : {false, true}) {
    const std::string id = complete ? "c" : "f";
    const v1::Job job = StartJob(id);
    std::vector<v1::GroupMember> members = {Rank(0, 3), Rank(1, 3)};
    if (complete) {
      for (const int rank : {0, 1, 2}) Ask(job, Rank(rank, 3));
      for (v1::GroupMember& member : members) Learn(member, Ask(job, member));
      EXPECT_EQ(members[0].known(), v1::GroupState::COMPLETE);
    }
    const auto states = Held(job, members, [&] {
      v1::CancelJobRequest cancel;
      cancel.set_name(id);
      ASSERT_TRUE(coordinator_->CancelJob(cancel, CallContext()).ok());
    });
    for (const v1::GroupState& state : states) {
      EXPECT_EQ(state.cause(), v1::GroupState::ATTEMPT_OVER);
      EXPECT_THAT(state.message(), HasSubstr("is over, the job is STOPPING"));
    }
    Sync("w1", 1, {Stopped(job)});
    coordinator_->Flush();
    EXPECT_THAT(Ask(job, members[0]).message(), HasSubstr("the job is CANCELLED")) << "also from the store";
  }
}

TEST_F(RendezvousTest, ACancelThatIsNotWrittenEndsNothing) {
  const v1::Job job = StartJob();
  store_.SetFailure(absl::UnavailableError("disk full"));
  const auto states = Held(job, {Rank(0, 2)}, [&] {
    v1::CancelJobRequest cancel;
    cancel.set_name("a");
    EXPECT_FALSE(coordinator_->CancelJob(cancel, CallContext()).ok());
    EXPECT_EQ(Ask(job, Rank(1, 2)).state(), v1::GroupState::COMPLETE);
  });
  EXPECT_EQ(states[0].state(), v1::GroupState::COMPLETE);
  store_.SetFailure(absl::OkStatus());
}

TEST_F(RendezvousTest, AJobThatIsNotWrittenYetIsNobodysToMeetIn) {
  store_.Hold(true);
  absl::StatusOr<v1::Job> created;
  Thread creator("create", [&] { created = Create("a"); });
  v1::Job job;
  job.set_uid(store_.WaitForQueued()->uid);
  for (const int attempt : {0, 1}) {
    job.mutable_status()->set_attempt(attempt);
    EXPECT_EQ(ReasonOf(AskAll(job, {Rank(0, 2)}).status()), "STORAGE_DEGRADED") << attempt;
  }
  store_.Hold(false);
  creator.Join();
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(ReasonOf(AskAll(job, {Rank(0, 2)}).status()), "STALE_ATTEMPT") << "no attempt was granted";
}

TEST_F(RendezvousTest, ALostWorkerEndsIt) {
  const v1::Job job = StartJob();
  const auto states = Held(job, {Rank(0, 2), Rank(1, 3)}, [] {});
  EXPECT_EQ(states[0].cause(), v1::GroupState::SIZE_MISMATCH);
  const auto lost = Held(job, {Rank(0, 2, 2)}, [&] { Advance(absl::Seconds(16)); });
  EXPECT_EQ(lost[0].cause(), v1::GroupState::ATTEMPT_OVER);
  EXPECT_THAT(lost[0].message(), HasSubstr("WORKER_LOST: worker w1 was silent for 16 s"));
}

TEST_F(RendezvousTest, ARankThatFailsEndsAGroupThatStands) {
  const v1::Job job = StartJob();
  for (int rank : {0, 1, 2}) Ask(job, Rank(rank, 3));
  std::vector<v1::GroupMember> members = {Rank(0, 3), Rank(1, 3)};
  for (v1::GroupMember& member : members) Learn(member, Ask(job, member));
  const auto states = Held(job, members, [&] {
    v1::GroupMember failed = Rank(2, 3);
    failed.set_failure("the disk is full");
    EXPECT_EQ(Ask(job, failed).cause(), v1::GroupState::RANK_FAILED);
  });
  for (const v1::GroupState& state : states) EXPECT_EQ(state.message(), "rank 2: the disk is full");

  v1::GroupMember wordy = Rank(0, 2, 2);
  wordy.set_failure(std::string(1 << 20, 'x'));
  EXPECT_LT(Ask(job, wordy).message().size(), 1100u);
  EXPECT_LT(Get("a").status().groups(0).message().size(), 1100u);
}

TEST_F(RendezvousTest, ACoordinatorThatRestartsInTheMiddleIsToldAgainInAnyOrder) {
  const v1::Job job = StartJob();
  Sync("w1", 1, {Report(job, "STEPPING", 1)});
  coordinator_->Flush();
  int64_t generation = 0;
  // Whoever has been told that all are there (a bit each) before the restart, and who comes back when.
  for (int told = 0; told < 8; ++told) {
    std::vector<int> order = {0, 1, 2};
    do {
      ++generation;
      std::vector<v1::GroupMember> members;
      for (int rank : {0, 1, 2}) members.push_back(Rank(rank, 3, generation));
      for (const int rank : {2, 1, 0}) {
        if (rank > 0 || told != 0) Ask(job, members[rank]);
      }
      for (const int rank : {0, 1, 2}) {
        if ((told >> rank & 1) != 0) Learn(members[rank], Ask(job, members[rank]));
      }
      Start();
      ASSERT_TRUE(Register("w1", 1, 100, {Report(job, "STEPPING", 1)}).ok());
      for (const int rank : order) Ask(job, members[rank]);
      for (const int rank : order) {
        const v1::GroupState state = Ask(job, members[rank]);
        EXPECT_EQ(state.state(), v1::GroupState::COMPLETE) << told << " " << rank;
        EXPECT_EQ(state.id(), absl::StrCat("id of generation ", generation));
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
}

TEST_F(RendezvousTest, DrainingEndsCallsThatAreHeld) {
  const v1::Job job = StartJob();
  Ask(job, Rank(0, 2));
  absl::Status status;
  Thread rank("rank", [&] { status = AskAll(job, {Rank(0, 2)}, absl::Seconds(10)).status(); });
  coordinator_->Drain();
  rank.Join();
  EXPECT_EQ(ReasonOf(status), "SERVER_DRAINING");
}

TEST_F(RendezvousTest, ARankThatGoesOnToALaterGenerationTellsTheOthers) {
  const v1::Job job = StartJob();
  const auto states =
      Held(job, {Rank(1, 2)}, [&] { EXPECT_EQ(Ask(job, Rank(0, 2, 3)).state(), v1::GroupState::FORMING); });
  EXPECT_EQ(states[0].cause(), v1::GroupState::SUPERSEDED);
  EXPECT_EQ(states[0].newest_generation(), 3);
  EXPECT_EQ(Ask(job, Rank(1, 2, 3)).id(), "id of generation 3");
}

}  // namespace
}  // namespace strata::server
