// RendezvousTable: the groups of one attempt, as a pure state machine: no clock, no locks, no waiting. Ranks
// report what they are members of again and again, so a table that starts empty while groups stand (its
// process was restarted) is soon what it was before.
#ifndef OFFLOAD_COMM_RENDEZVOUS_TABLE_H_
#define OFFLOAD_COMM_RENDEZVOUS_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace strata {

enum class GroupPhase : uint8_t { kForming, kComplete, kFailed };

enum class GroupCause : uint8_t {  // as GroupState.Cause of rendezvous.proto
  kNone = 0,
  kDeadline = 1,
  kSizeMismatch = 2,
  kRankTwice = 3,
  kSuperseded = 4,
  kRankFailed = 5,
  kAttemptOver = 6,
  kRefused = 7,
};

// What one rank says of itself. The fields are within the limits of rendezvous.h.
struct GroupMember {
  std::string group;
  int64_t generation = 1;
  int rank = 0, size = 2;
  std::string id;              // rank 0's own; of other ranks what they were told, with `complete`
  std::string token;           // of the process
  int64_t deadline_nanos = 0;  // when this rank gives up waiting for the others
  std::string failure;         // "": none
  bool complete = false;       // it was told that all had arrived
};

struct GroupState {
  std::string group;
  int64_t generation = 0;
  GroupPhase phase = GroupPhase::kForming;
  std::string id;  // when complete
  GroupCause cause = GroupCause::kNone;
  std::string message;
  int64_t newest_generation = 0;

  bool operator==(const GroupState&) const = default;
};

// What a failed generation means to its ranks (rendezvous.h); OK for one that has not failed.
absl::Status ToStatus(const GroupState& state);

// "0, 2-5 and 7 more"
std::string RanksText(const std::vector<int>& ranks);

class RendezvousTable {
 public:
  static constexpr size_t kGroupsMax = 1024;

  // Takes note of `member`. kResourceExhausted beyond kGroupsMax groups, and nothing has changed.
  absl::Status Report(const GroupMember& member);

  // Fails what is forming and has a rank whose deadline is `now_nanos` or earlier.
  void Expire(int64_t now_nanos);

  // What `member`, reported before, is to know.
  GroupState Answer(const GroupMember& member) const;

  // Grows with each change of an answer: whoever waits for one should look again.
  int64_t version() const { return version_; }

  struct Group {
    int64_t generation = 0;
    int begun_by = 0;  // rank
    int size = 0;
    GroupPhase phase = GroupPhase::kForming;
    GroupCause cause = GroupCause::kNone;
    std::string message;
    std::string id;
    int64_t deadline_nanos = INT64_MAX;  // the earliest of its ranks
    std::map<int, std::string> tokens;   // of the ranks that have arrived
  };
  const std::map<std::string, Group>& groups() const { return groups_; }
  static std::vector<int> Missing(const Group& group);

 private:
  void Fail(Group& group, GroupCause cause, std::string message);
  // Why `member` does not go with the others: the cause, or kNone.
  GroupCause Conflict(const Group& group, const GroupMember& member, std::string* message) const;

  std::map<std::string, Group> groups_;
  int64_t version_ = 0;
};

}  // namespace strata

#endif  // OFFLOAD_COMM_RENDEZVOUS_TABLE_H_
