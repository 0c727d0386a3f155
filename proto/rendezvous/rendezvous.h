// Rendezvous as messages: between the ranks' structs (offload/comm/rendezvous_table.h) and the wire.
#ifndef PROTO_RENDEZVOUS_RENDEZVOUS_H_
#define PROTO_RENDEZVOUS_RENDEZVOUS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "offload/comm/rendezvous_table.h"
#include "proto/strata/v1/rendezvous.pb.h"

namespace strata {

inline constexpr int kMembersMax = 64;  // groups that one rank is a member of at a time
inline constexpr size_t kMemberTokenBytesMax = 64;
inline constexpr size_t kMemberFailureBytesMax = 1000;  // more is cut off

// A member that is not within the limits, by the path of its field.
struct MemberProblem {
  std::string field;  // "members[2].id"; "" when there is none
  std::string description;
};
// The first one; sizes are looked at before anything is copied.
MemberProblem CheckMembers(const v1::RendezvousRequest& request);

// What a valid request says, with deadlines counted from `now_nanos`.
std::vector<GroupMember> MembersFromProto(const v1::RendezvousRequest& request, int64_t now_nanos);
v1::GroupState ToProto(const GroupState& state);
// A phase or cause that this program does not know is kFailed, kRefused.
GroupState FromProto(const v1::GroupState& state);
v1::GroupState::State ToProto(GroupPhase phase);

}  // namespace strata

#endif  // PROTO_RENDEZVOUS_RENDEZVOUS_H_
