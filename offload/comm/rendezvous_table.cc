#include "offload/comm/rendezvous_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

// Ranges of ranks that a message names.
constexpr size_t kRangesMax = 8;

}  // namespace

std::string RanksText(const std::vector<int>& ranks) {
  std::string text;
  size_t ranges = 0;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (ranges++ == kRangesMax) {
      absl::StrAppend(&text, " and ", ranks.size() - i, " more");
      break;
    }
    absl::StrAppend(&text, text.empty() ? "" : ", ", ranks[i]);
    if (last > i) absl::StrAppend(&text, "-", ranks[last]);
    i = last + 1;
  }
  return text;
}

absl::Status ToStatus(const GroupState& state) {
  if (state.phase != GroupPhase::kFailed) return absl::OkStatus();
  const std::string message =
      absl::StrCat("group ", state.group, ", generation ", state.generation, ": ", state.message);
  switch (state.cause) {
    case GroupCause::kDeadline:
      return absl::DeadlineExceededError(message);
    case GroupCause::kSizeMismatch:
    case GroupCause::kRankTwice:
      return absl::InvalidArgumentError(message);
    case GroupCause::kSuperseded:
      return absl::AbortedError(message);
    case GroupCause::kRankFailed:
      return absl::UnavailableError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

std::vector<int> RendezvousTable::Missing(const Group& group) {
  std::vector<int> missing;
  for (int rank = 0; rank < group.size; ++rank) {
    if (group.tokens.count(rank) == 0) missing.push_back(rank);
  }
  return missing;
}

void RendezvousTable::Fail(Group& group, GroupCause cause, std::string message) {
  group.phase = GroupPhase::kFailed;
  group.cause = cause;
  group.message = std::move(message);
  group.id.clear();
  ++version_;
}

GroupCause RendezvousTable::Conflict(const Group& group, const GroupMember& member,
                                     std::string* message) const {
  if (member.size != group.size) {
    *message = absl::StrCat("rank ", member.rank, " says that there are ", member.size, " ranks, rank ",
                            group.tokens.begin()->first, " that there are ", group.size,
                            ": start all ranks with the same number");
    return GroupCause::kSizeMismatch;
  }
  const auto here = group.tokens.find(member.rank);
  if (here != group.tokens.end() && here->second != member.token) {
    *message = absl::StrCat("two processes say that they are rank ", member.rank, " of ", group.size,
                            ": give each a rank of its own");
    return GroupCause::kRankTwice;
  }
  if (!member.id.empty() && !group.id.empty() && member.id != group.id) {
    *message = absl::StrCat("rank ", member.rank, " has another id than rank 0 gave before");
    return GroupCause::kRankTwice;
  }
  return GroupCause::kNone;
}

absl::Status RendezvousTable::Report(const GroupMember& member) {
  auto found = groups_.find(member.group);
  if (found == groups_.end()) {
    if (groups_.size() >= kGroupsMax) {
      return absl::ResourceExhaustedError(absl::StrCat("group ", member.group, " is one more than the ",
                                                       kGroupsMax, " that an attempt may have"));
    }
    found = groups_.emplace(member.group, Group()).first;
  }
  Group& group = found->second;
  if (member.generation < group.generation) return absl::OkStatus();  // its answer says so
  if (member.generation > group.generation) {
    // Whoever still waits for the one before is to look again.
    if (group.generation > 0) ++version_;
    group = Group();
    group.generation = member.generation;
    group.begun_by = member.rank;
    group.size = member.size;
  }
  if (group.phase == GroupPhase::kFailed) return absl::OkStatus();
  std::string message;
  if (const GroupCause cause = Conflict(group, member, &message); cause != GroupCause::kNone) {
    Fail(group, cause, std::move(message));
    return absl::OkStatus();
  }
  group.tokens.emplace(member.rank, member.token);
  if (!member.failure.empty()) {
    Fail(group, GroupCause::kRankFailed, absl::StrCat("rank ", member.rank, ": ", member.failure));
    return absl::OkStatus();
  }
  if (!member.id.empty()) group.id = member.id;
  if (group.phase == GroupPhase::kForming) {
    // A rank that was told so knows it from this table's predecessor.
    if (member.complete || static_cast<int>(group.tokens.size()) == group.size) {
      group.phase = GroupPhase::kComplete;
      ++version_;
    } else {
      group.deadline_nanos = std::min(group.deadline_nanos, member.deadline_nanos);
    }
  }
  return absl::OkStatus();
}

void RendezvousTable::Expire(int64_t now_nanos) {
  for (auto& [name, group] : groups_) {
    if (group.phase != GroupPhase::kForming || group.deadline_nanos > now_nanos) continue;
    const std::vector<int> missing = Missing(group);
    Fail(group, GroupCause::kDeadline,
         absl::StrCat(missing.size() == 1 ? "rank " : "ranks ", RanksText(missing), " of ", group.size,
                      missing.size() == 1 ? " has" : " have", " not arrived in time"));
  }
}

GroupState RendezvousTable::Answer(const GroupMember& member) const {
  GroupState state;
  state.group = member.group;
  state.generation = member.generation;
  const auto found = groups_.find(member.group);
  if (found == groups_.end()) return state;
  const Group& group = found->second;
  state.newest_generation = group.generation;
  if (member.generation != group.generation) {
    state.phase = GroupPhase::kFailed;
    state.cause = GroupCause::kSuperseded;
    state.message = absl::StrCat("rank ", group.begun_by, " has begun generation ", group.generation);
    return state;
  }
  state.phase = group.phase;
  state.cause = group.cause;
  state.message = group.message;
  if (group.phase == GroupPhase::kComplete) state.id = group.id;
  return state;
}

}  // namespace strata
