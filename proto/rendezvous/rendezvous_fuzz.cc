// Requests of ranks, any bytes at all: what CheckMembers lets through keeps the limits, and a table that
// hears it gives every member one consistent answer, which survives the wire.
#include <cstdint>
#include <string>

#include "common/check.h"
#include "offload/comm/rendezvous.h"
#include "proto/rendezvous/rendezvous.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  strata::v1::RendezvousRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  if (!strata::CheckMembers(request).field.empty()) return 0;
  strata::RendezvousTable table;
  const auto members = strata::MembersFromProto(request, 1'000'000'000);
  STRATA_CHECK(members.size() <= strata::kMembersMax);
  for (const strata::GroupMember& member : members) {
    STRATA_CHECK(member.id.size() <= strata::kRendezvousIdBytesMax);
    STRATA_CHECK(member.failure.size() <= strata::kMemberFailureBytesMax);
    STRATA_CHECK(member.rank >= 0 && member.rank < member.size && member.size <= strata::kGroupRanksMax);
    STRATA_CHECK(table.Report(member).ok());
    table.Expire(1'000'000'001);
  }
  for (const strata::GroupMember& member : members) {
    const strata::GroupState state = table.Answer(member);
    STRATA_CHECK((state.phase == strata::GroupPhase::kComplete) == !state.id.empty());
    STRATA_CHECK((state.phase == strata::GroupPhase::kFailed) == (state.cause != strata::GroupCause::kNone));
    STRATA_CHECK(state.newest_generation >= member.generation);
    STRATA_CHECK(strata::FromProto(strata::ToProto(state)) == state);
  }
  // The other direction: an answer as a rank reads it.
  strata::v1::RendezvousResponse response;
  if (response.ParseFromArray(data, static_cast<int>(size))) {
    for (const strata::v1::GroupState& group : response.groups()) {
      const strata::GroupState state = strata::FromProto(group);
      STRATA_CHECK(strata::ToStatus(state).ok() == (state.phase != strata::GroupPhase::kFailed));
    }
  }
  return 0;
}
