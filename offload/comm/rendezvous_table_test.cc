#include "offload/comm/rendezvous_table.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

GroupMember Rank(int rank, int size, int64_t generation = 1) {
  GroupMember member;
  member.group = "world";
  member.generation = generation;
  member.rank = rank;
  member.size = size;
  member.token = absl::StrCat("process ", rank);
  member.deadline_nanos = 100;
  if (rank == 0) member.id = absl::StrCat("id of generation ", generation);
  return member;
}

// Every order of 0 .. n-1.
std::vector<std::vector<int>> Orders(int n) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> orders;
  do orders.push_back(order);
  while (std::next_permutation(order.begin(), order.end()));
  return orders;
}

TEST(RendezvousTableTest, RanksMeetInEveryOrderOfArrival) {
  for (const std::vector<int>& order : Orders(4)) {
    RendezvousTable table;
    for (size_t i = 0; i < order.size(); ++i) {
      for (int again = 0; again < 2; ++again) ASSERT_TRUE(table.Report(Rank(order[i], 4)).ok());
      table.Expire(99);
      for (size_t j = 0; j <= i; ++j) {
        const GroupState state = table.Answer(Rank(order[j], 4));
        EXPECT_EQ(state.phase, i == 3 ? GroupPhase::kComplete : GroupPhase::kForming);
        EXPECT_EQ(state.id, i == 3 ? "id of generation 1" : "");
      }
    }
    table.Expire(1000);
    EXPECT_EQ(table.Answer(Rank(0, 4)).phase, GroupPhase::kComplete) << "a deadline is for meeting";
  }
}

TEST(RendezvousTableTest, TheFirstRankToRunOutOfTimeEndsItForAllAndTheMissingAreNamed) {
  RendezvousTable table;
  for (const int rank : {1, 2, 7}) ASSERT_TRUE(table.Report(Rank(rank, 9)).ok());
  GroupMember hasty = Rank(5, 9);
  hasty.deadline_nanos = 50;
  ASSERT_TRUE(table.Report(hasty).ok());
  const int64_t version = table.version();
  table.Expire(49);
  EXPECT_EQ(table.version(), version);
  table.Expire(50);
  EXPECT_GT(table.version(), version);
  for (const int rank : {1, 2, 5, 7}) {
    const absl::Status status = ToStatus(table.Answer(Rank(rank, 9)));
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_THAT(status.message(), HasSubstr("group world, generation 1: ranks 0, 3-4, 6, 8 of 9 have not"));
  }
  // Who comes late hears the same, and does not bring it back.
  for (const int rank : {0, 3, 4, 6, 8}) {
    ASSERT_TRUE(table.Report(Rank(rank, 9)).ok());
    EXPECT_EQ(table.Answer(Rank(rank, 9)).cause, GroupCause::kDeadline);
  }
}

TEST(RendezvousTableTest, RanksAreNamedInRangesAndNotWithoutEnd) {
  EXPECT_EQ(RanksText({}), "");
  EXPECT_EQ(RanksText({3}), "3");
  EXPECT_EQ(RanksText({0, 1, 2, 4, 6, 7}), "0-2, 4, 6-7");
  std::vector<int> odd;
  for (int i = 0; i < 20; ++i) odd.push_back(2 * i + 1);
  EXPECT_EQ(RanksText(odd), "1, 3, 5, 7, 9, 11, 13, 15 and 12 more");
}

TEST(RendezvousTableTest, AnotherSizeASecondProcessAndASecondIdFailItForAll) {
  const auto refuse = [](const GroupMember& second, GroupCause cause, const std::string& text) {
    for (const bool complete : {false, true}) {
      RendezvousTable table;
      ASSERT_TRUE(table.Report(Rank(0, 3)).ok());
      ASSERT_TRUE(table.Report(Rank(1, 3)).ok());
      if (complete) {
        ASSERT_TRUE(table.Report(Rank(2, 3)).ok());
      }
      ASSERT_TRUE(table.Report(second).ok());
      for (const int rank : {0, 1, 2}) {
        const GroupState state = table.Answer(Rank(rank, 3));
        EXPECT_EQ(state.cause, cause);
        EXPECT_THAT(state.message, HasSubstr(text));
        EXPECT_EQ(ToStatus(state).code(), Code::kInvalidArgument);
        EXPECT_EQ(state.id, "") << "no rank starts what others have given up";
      }
    }
  };
  refuse(Rank(2, 4), GroupCause::kSizeMismatch,
         "rank 2 says that there are 4 ranks, rank 0 that there are 3");
  GroupMember twice = Rank(1, 3);
  twice.token = "another process";
  refuse(twice, GroupCause::kRankTwice, "two processes say that they are rank 1 of 3");
  GroupMember changed = Rank(0, 3);
  changed.id = "another id";
  refuse(changed, GroupCause::kRankTwice, "rank 0 has another id");
}

TEST(RendezvousTableTest, AFailureOfARankIsHeardByAllAndTheFirstOneStays) {
  for (const bool complete : {false, true}) {
    RendezvousTable table;
    for (int rank = 0; rank < (complete ? 3 : 2); ++rank) ASSERT_TRUE(table.Report(Rank(rank, 3)).ok());
    GroupMember broken = Rank(1, 3);
    broken.failure = "the disk is full";
    ASSERT_TRUE(table.Report(broken).ok());
    broken = Rank(0, 3);
    broken.failure = "lost rank 1";
    ASSERT_TRUE(table.Report(broken).ok());
    EXPECT_EQ(ToStatus(table.Answer(Rank(0, 3))),
              absl::UnavailableError("group world, generation 1: rank 1: the disk is full"));
  }
}

TEST(RendezvousTableTest, ALaterGenerationTakesThePlaceOfThoseBeforeIt) {
  RendezvousTable table;
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(table.Report(Rank(rank, 2)).ok());
  ASSERT_TRUE(table.Report(Rank(1, 2, 4)).ok());
  const GroupState old = table.Answer(Rank(0, 2));
  EXPECT_EQ(old.cause, GroupCause::kSuperseded);
  EXPECT_EQ(old.newest_generation, 4);
  EXPECT_EQ(ToStatus(old).code(), Code::kAborted);
  EXPECT_THAT(old.message, HasSubstr("rank 1 has begun generation 4"));
  ASSERT_TRUE(table.Report(Rank(0, 2)).ok());  // changes nothing
  EXPECT_EQ(table.Answer(Rank(1, 2, 4)).phase, GroupPhase::kForming);
  ASSERT_TRUE(table.Report(Rank(0, 2, 4)).ok());
  EXPECT_EQ(table.Answer(Rank(1, 2, 4)).id, "id of generation 4");
}

TEST(RendezvousTableTest, ATableThatIsLostInTheMiddleIsBuiltAgainFromWhatRanksKnow) {
  constexpr int kSize = 4;
  // Some have been told that all are there before it was lost, others not; they come back in any order.
  for (int told = 0; told < 1 << kSize; ++told) {
    for (const std::vector<int>& order : Orders(kSize)) {
      RendezvousTable table;
      bool anybody = false;
      for (const int rank : order) {
        GroupMember member = Rank(rank, kSize);
        if ((told >> rank & 1) != 0) {
          member.complete = anybody = true;
          member.id = "id of generation 1";
          member.deadline_nanos = 0;  // long over
        }
        ASSERT_TRUE(table.Report(member).ok());
        table.Expire(99);
        const GroupState state = table.Answer(member);
        EXPECT_EQ(state.phase,
                  anybody || rank == order.back() ? GroupPhase::kComplete : GroupPhase::kForming);
        EXPECT_EQ(state.id, state.phase == GroupPhase::kComplete ? "id of generation 1" : "");
      }
      for (int rank = 0; rank < kSize; ++rank)
        EXPECT_EQ(table.Answer(Rank(rank, kSize)).phase, GroupPhase::kComplete);
    }
  }
}

TEST(RendezvousTableTest, GroupsAreBounded) {
  RendezvousTable table;
  GroupMember member = Rank(0, 2);
  for (size_t i = 0; i < RendezvousTable::kGroupsMax; ++i) {
    member.group = absl::StrCat("g", i);
    ASSERT_TRUE(table.Report(member).ok());
  }
  member.group = "one more";
  EXPECT_EQ(table.Report(member).code(), Code::kResourceExhausted);
  member.group = "g7";
  EXPECT_TRUE(table.Report(member).ok());
}

TEST(RendezvousTableTest, WhateverRanksSayAFailedGenerationStaysFailedAndEveryChangeIsAnnounced) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const CounterRandom random(seed, 1);
    uint64_t draws = 0;
    const auto below = [&](uint64_t n) { return static_cast<int>(random.Below(draws++, n)); };
    RendezvousTable table;
    std::map<std::pair<int, int64_t>, GroupState> answers;
    std::map<int64_t, GroupCause> failed;
    int64_t now = 0, version = 0;
    for (int step = 0; step < 60; ++step) {
      GroupMember member = Rank(below(3), 3, 1 + below(step / 20 + 1));
      member.deadline_nanos = now + below(30);
      if (below(20) == 0) member.size = 4;
      if (below(20) == 0) member.token = "another";
      if (below(20) == 0) member.failure = "it broke";
      ASSERT_TRUE(table.Report(member).ok());
      table.Expire(now += below(4));
      const bool changed = table.version() != version;
      version = table.version();
      answers[{member.rank, member.generation}] = table.Answer(member);
      for (auto& [who, before] : answers) {
        const GroupState state = table.Answer(Rank(who.first, 3, who.second));
        GroupState old = before;
        old.newest_generation = state.newest_generation;
        EXPECT_TRUE(changed || old == state) << seed << " " << step;
        before = state;
        if (failed.count(who.second) > 0) {
          EXPECT_EQ(state.phase, GroupPhase::kFailed);
        }
        if (state.phase == GroupPhase::kComplete) {
          EXPECT_EQ(state.id, absl::StrCat("id of generation ", who.second));
        } else {
          EXPECT_EQ(state.id, "");
        }
        EXPECT_EQ(ToStatus(state).ok(), state.phase != GroupPhase::kFailed);
        if (state.phase == GroupPhase::kFailed) failed[who.second] = state.cause;
      }
    }
  }
}

}  // namespace
}  // namespace strata
