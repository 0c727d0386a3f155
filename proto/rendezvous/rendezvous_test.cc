#include "proto/rendezvous/rendezvous.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/comm/rendezvous.h"
#include "proto/duration/duration.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

v1::RendezvousRequest Request() {
  v1::RendezvousRequest request;
  for (int i = 0; i < 2; ++i) {
    v1::GroupMember& member = *request.add_members();
    member.set_group(i == 0 ? "world" : "tp.0/a_b-C");
    member.set_generation(i + 1);
    member.set_rank(i);
    member.set_size(4);
    if (i == 0) member.set_id(std::string(kRendezvousIdBytesMax, '\0'));
    member.set_token("t");
    *member.mutable_time_left() = ToProto(absl::Milliseconds(1500));
  }
  return request;
}

TEST(RendezvousProtoTest, AValidRequestIsTakenAsItIs) {
  v1::RendezvousRequest request = Request();
  request.mutable_members(1)->set_failure(std::string(kMemberFailureBytesMax - 1, 'x') + "\xc3\xa9");
  EXPECT_EQ(CheckMembers(request).field, "") << CheckMembers(request).description;
  const auto members = MembersFromProto(request, 1000);
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].id.size(), kRendezvousIdBytesMax);
  EXPECT_EQ(members[0].deadline_nanos, 1'500'001'000);
  EXPECT_FALSE(members[0].complete);
  EXPECT_EQ(members[1].group, "tp.0/a_b-C");
  EXPECT_EQ(members[1].generation, 2);
  EXPECT_EQ(members[1].failure, std::string(kMemberFailureBytesMax - 1, 'x')) << "no half of a character";
}

TEST(RendezvousProtoTest, EachFieldBeyondItsLimitsIsNamed) {
  const auto refuse = [](const std::function<void(v1::GroupMember&)>& change, const std::string& field,
                         const std::string& text) {
    v1::RendezvousRequest request = Request();
    change(*request.mutable_members(1));
    const MemberProblem problem = CheckMembers(request);
    EXPECT_EQ(problem.field, "members[1]." + field);
    EXPECT_THAT(problem.description, HasSubstr(text));
  };
  using M = v1::GroupMember;
  refuse([](M& m) { m.set_group(""); }, "group", "1 to 64 characters");
  refuse([](M& m) { m.set_group(std::string(65, 'g')); }, "group", "1 to 64 characters");
  refuse([](M& m) { m.set_group("a b"); }, "group", "[A-Za-z0-9._/-]");
  refuse([](M& m) { m.set_generation(0); }, "generation", "0 is below 1");
  refuse([](M& m) { m.set_size(1); }, "size", "1 is not 2 to 4096: a rank alone needs no rendezvous");
  refuse([](M& m) { m.set_size(kGroupRanksMax + 1); }, "size", "4097 is not");
  refuse([](M& m) { m.set_rank(-1); }, "rank", "-1 is not 0 to 3");
  refuse([](M& m) { m.set_rank(4); }, "rank", "4 is not 0 to 3");
  refuse([](M& m) { m.set_id("id"); }, "id", "2 bytes: rank 0, and who was told it");
  refuse([](M& m) { m.set_known(v1::GroupState::COMPLETE); }, "id", "0 bytes");
  refuse(
      [](M& m) {
        m.set_rank(0);
        m.set_id(std::string(kRendezvousIdBytesMax + 1, 'i'));
      },
      "id", "129 bytes");
  refuse([](M& m) { m.set_token(""); }, "token", "0 bytes");
  refuse([](M& m) { m.set_token(std::string(65, 't')); }, "token", "65 bytes");
  v1::RendezvousRequest many;
  for (int i = 0; i <= kMembersMax; ++i) *many.add_members() = Request().members(0);
  EXPECT_EQ(CheckMembers(many).field, "members");
}

TEST(RendezvousProtoTest, AnAnswerOfANewerCoordinatorIsAFailureNotAGuess) {
  v1::GroupState state;
  state.set_group("world");
  state.set_state(static_cast<v1::GroupState::State>(9));
  state.set_cause(static_cast<v1::GroupState::Cause>(99));
  state.set_id("id");
  EXPECT_EQ(FromProto(state).cause, GroupCause::kRefused);
  EXPECT_EQ(FromProto(state).id, "");
  EXPECT_EQ(ToStatus(FromProto(state)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(DurationTest, GoesThereAndBackAndIsNeverBeyondTenYears) {
  for (const absl::Duration duration :
       {absl::ZeroDuration(), absl::Milliseconds(1500), -absl::Milliseconds(1), absl::Hours(1000)}) {
    EXPECT_EQ(FromProto(ToProto(duration)), duration);
  }
  google::protobuf::Duration wild;
  wild.set_seconds(INT64_MAX);
  wild.set_nanos(INT32_MAX);
  EXPECT_EQ(FromProto(wild) / absl::Hours(24), 3650);
}

}  // namespace
}  // namespace strata
