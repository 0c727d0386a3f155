#include "proto/rendezvous/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "offload/comm/rendezvous.h"
#include "proto/duration/duration.h"

namespace strata {
namespace {

// The first bytes of UTF-8 text, without cutting a character in two.
std::string Cut(const std::string& text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  while (bytes_max > 0 && (text[bytes_max] & 0xc0) == 0x80) --bytes_max;
  return text.substr(0, bytes_max);
}

bool IsGroupName(absl::string_view name) {
  return !name.empty() && name.size() <= kGroupNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                  c == '_' || c == '/' || c == '-';
         });
}

MemberProblem CheckMember(const v1::GroupMember& member) {
  if (!IsGroupName(member.group()))
    return {"group", absl::StrCat("must be of [A-Za-z0-9._/-], 1 to ", kGroupNameBytesMax, " characters")};
  if (member.generation() < 1) return {"generation", absl::StrCat(member.generation(), " is below 1")};
  if (member.size() < 2 || member.size() > kGroupRanksMax) {
    return {"size", absl::StrCat(member.size(), " is not 2 to ", kGroupRanksMax,
                                 ": a rank alone needs no rendezvous")};
  }
  if (member.rank() < 0 || member.rank() >= member.size())
    return {"rank", absl::StrCat(member.rank(), " is not 0 to ", member.size() - 1)};
  const bool knows = member.rank() == 0 || member.known() == v1::GroupState::COMPLETE;
  if (knows != !member.id().empty() || member.id().size() > kRendezvousIdBytesMax) {
    return {"id", absl::StrCat(member.id().size(), " bytes: rank 0, and who was told it, gives 1 to ",
                               kRendezvousIdBytesMax, ", others none")};
  }
  if (member.token().empty() || member.token().size() > kMemberTokenBytesMax) {
    return {"token", absl::StrCat(member.token().size(), " bytes: must be 1 to ", kMemberTokenBytesMax)};
  }
  return {};
}

}  // namespace

MemberProblem CheckMembers(const v1::RendezvousRequest& request) {
  if (request.members_size() > kMembersMax)
    return {"members", absl::StrCat(request.members_size(), " are more than ", kMembersMax)};
  for (int i = 0; i < request.members_size(); ++i) {
    MemberProblem problem = CheckMember(request.members(i));
    if (problem.field.empty()) continue;
    problem.field = absl::StrCat("members[", i, "].", problem.field);
    return problem;
  }
  return {};
}

std::vector<GroupMember> MembersFromProto(const v1::RendezvousRequest& request, int64_t now_nanos) {
  std::vector<GroupMember> members;
  for (const v1::GroupMember& from : request.members()) {
    GroupMember& member = members.emplace_back();
    member.group = from.group();
    member.generation = from.generation();
    member.rank = from.rank();
    member.size = from.size();
    member.id = from.id();
    member.token = from.token();
    member.deadline_nanos = now_nanos + absl::ToInt64Nanoseconds(FromProto(from.time_left()));
    member.failure = Cut(from.failure(), kMemberFailureBytesMax);
    member.complete = from.known() == v1::GroupState::COMPLETE;
  }
  return members;
}

v1::GroupState::State ToProto(GroupPhase phase) {
  return phase == GroupPhase::kForming    ? v1::GroupState::FORMING
         : phase == GroupPhase::kComplete ? v1::GroupState::COMPLETE
                                          : v1::GroupState::FAILED;
}

v1::GroupState ToProto(const GroupState& state) {
  v1::GroupState to;
  to.set_group(state.group);
  to.set_generation(state.generation);
  to.set_state(ToProto(state.phase));
  to.set_id(state.id);
  to.set_cause(static_cast<v1::GroupState::Cause>(state.cause));
  to.set_message(state.message);
  to.set_newest_generation(state.newest_generation);
  return to;
}

GroupState FromProto(const v1::GroupState& from) {
  GroupState state;
  state.group = from.group();
  state.generation = from.generation();
  state.newest_generation = from.newest_generation();
  state.message = from.message();
  switch (from.state()) {
    case v1::GroupState::FORMING:
      break;
    case v1::GroupState::COMPLETE:
      state.phase = GroupPhase::kComplete;
      state.id = from.id();
      break;
    default:
      state.phase = GroupPhase::kFailed;
      state.cause = from.cause() >= v1::GroupState::DEADLINE && from.cause() <= v1::GroupState::REFUSED
                        ? static_cast<GroupCause>(from.cause())
                        : GroupCause::kRefused;
  }
  return state;
}

}  // namespace strata
