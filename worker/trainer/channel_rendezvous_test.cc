// A trainer's side of the rendezvous, with an agent played by the test.
#include "worker/trainer/channel_rendezvous.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class ChannelRendezvousTest : public ::testing::Test {
 protected:
  // The last message that satisfies `wanted`, waiting for it.
  template <typename Wanted>
  v1::RendezvousRequest Await(Wanted wanted) {
    MutexLock lock(mu_);
    while (!wanted(last_)) changed_.Wait(mu_);
    return last_;
  }
  v1::RendezvousRequest AwaitMembers(int members) {
    return Await([&](const v1::RendezvousRequest& request) { return request.members_size() == members; });
  }
  void Answer(const std::string& group, int64_t generation, v1::GroupState::State state,
              v1::GroupState::Cause cause = v1::GroupState::CAUSE_UNSPECIFIED,
              const std::string& message = "", int64_t newest = 0) {
    v1::RendezvousResponse response;
    v1::GroupState& answer = *response.add_groups();
    answer.set_group(group);
    answer.set_generation(generation);
    answer.set_state(state);
    answer.set_cause(cause);
    answer.set_message(message);
    answer.set_newest_generation(std::max(newest, generation));
    if (state == v1::GroupState::COMPLETE) answer.set_id("the id");
    meeting_.Take(response);
  }
  // Joins while `agent` answers.
  template <typename Agent>
  absl::StatusOr<std::unique_ptr<Membership>> Join(const JoinRequest& request, Agent agent) {
    absl::StatusOr<std::unique_ptr<Membership>> joined = absl::UnknownError("");
    Thread rank("rank", [&] { joined = meeting_.Join(request); });
    agent();
    rank.Join();
    return joined;
  }

  Mutex mu_;
  CondVar changed_;
  v1::RendezvousRequest last_ ABSL_GUARDED_BY(mu_);
  absl::Status send_status_;
  FakeClock clock_;
  ChannelRendezvous meeting_{[this](const v1::TrainerMessage& message) {
                               MutexLock lock(mu_);
                               last_ = message.rendezvous();
                               changed_.SignalAll();
                               return send_status_;
                             },
                             clock_};
};

TEST_F(ChannelRendezvousTest, JoinsHearsOfAFailureAndLeaves) {
  auto joined = Join({.group = "tp.1", .rank = 2, .size = 4}, [&] {
    const v1::GroupMember member = AwaitMembers(1).members(0);
    EXPECT_EQ(member.group(), "tp.1");
    EXPECT_EQ(member.generation(), 1);
    EXPECT_EQ(member.rank(), 2);
    EXPECT_EQ(member.size(), 4);
    EXPECT_EQ(member.token().size(), 32u);
    EXPECT_EQ(member.time_left().seconds(), 600);
    Answer("tp.1", 1, v1::GroupState::FORMING);
    Answer("other", 1, v1::GroupState::FAILED, v1::GroupState::RANK_FAILED);
    Answer("tp.1", 7, v1::GroupState::FAILED, v1::GroupState::RANK_FAILED);
    Answer("tp.1", 1, v1::GroupState::COMPLETE);
  });
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ((*joined)->id(), "the id");
  EXPECT_TRUE((*joined)->Check().ok());
  Answer("tp.1", 1, v1::GroupState::FORMING);  // a coordinator that has just restarted
  EXPECT_TRUE((*joined)->Check().ok());
  Answer("tp.1", 1, v1::GroupState::FAILED, v1::GroupState::RANK_FAILED, "rank 3: the disk is full");
  EXPECT_EQ((*joined)->Check(), absl::UnavailableError("group tp.1, generation 1: rank 3: the disk is full"));
  Answer("tp.1", 1, v1::GroupState::COMPLETE);
  EXPECT_FALSE((*joined)->Check().ok()) << "it stays";
  joined->reset();
  AwaitMembers(0);
}

TEST_F(ChannelRendezvousTest, TellsItsFailureOnce) {
  auto joined = Join({.rank = 0, .size = 2, .id = "the id"}, [&] {
    EXPECT_EQ(AwaitMembers(1).members(0).id(), "the id");
    Answer("world", 1, v1::GroupState::COMPLETE);
  });
  ASSERT_TRUE(joined.ok());
  (*joined)->Fail("a broken \xff and a very long word " + std::string(5000, 'x'));
  const v1::GroupMember told =
      Await([](const v1::RendezvousRequest& r) { return !r.members(0).failure().empty(); }).members(0);
  EXPECT_THAT(told.failure(), HasSubstr("a broken "));
  EXPECT_LT(told.failure().size(), 1100u);
  EXPECT_TRUE((*joined)->Check().ok()) << "its own failure is no news";
}

TEST_F(ChannelRendezvousTest, AFailedMeetingIsFollowedByTheNextGeneration) {
  for (int64_t generation = 1; generation <= 3; ++generation) {
    const auto joined = Join({.rank = 1}, [&] {
      EXPECT_EQ(AwaitMembers(1).members(0).generation(), generation);
      Answer("world", generation, v1::GroupState::FAILED, v1::GroupState::DEADLINE,
             "rank 0 of 2 has not arrived");
    });
    EXPECT_EQ(joined.status().code(), Code::kDeadlineExceeded);
    AwaitMembers(0);
  }
}

TEST_F(ChannelRendezvousTest, FollowsTheOthersToALaterGeneration) {
  const auto joined = Join({.rank = 1}, [&] {
    AwaitMembers(1);
    Answer("world", 1, v1::GroupState::FAILED, v1::GroupState::SUPERSEDED, "rank 0 has begun generation 5",
           5);
    Await([](const v1::RendezvousRequest& r) {
      return r.members_size() == 1 && r.members(0).generation() == 5;
    });
    Answer("world", 5, v1::GroupState::COMPLETE);
  });
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ((*joined)->generation(), 5);
}

TEST_F(ChannelRendezvousTest, ACoordinatorThatNeverAnswersIsATimeoutThatSaysSo) {
  const auto joined = Join({.rank = 1, .timeout = absl::Seconds(60)}, [&] {
    AwaitMembers(1);
    clock_.Advance(absl::Seconds(66));
    Answer("world", 1, v1::GroupState::FORMING);  // wakes it
  });
  EXPECT_EQ(joined.status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(joined.status().message(), HasSubstr("the coordinator did not answer within 1m5s"));
}

TEST_F(ChannelRendezvousTest, RefusesWhatTheCoordinatorWould) {
  EXPECT_THAT(meeting_.Join({.rank = 2, .size = 2}).status().message(),
              HasSubstr("group world, members[0].rank: 2 is not 0 to 1"));
  EXPECT_EQ(meeting_.Join({.rank = 0, .size = 2, .id = std::string(129, 'x')}).status().code(),
            Code::kInvalidArgument);
}

TEST_F(ChannelRendezvousTest, AnAgentThatIsGoneEndsAJoin) {
  send_status_ = absl::UnavailableError("gone");
  EXPECT_EQ(meeting_.Join({.rank = 1}).status().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace strata
