#include "offload/comm/local_rendezvous.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"

namespace strata {

class LocalRendezvous::Part : public Membership {
 public:
  Part(LocalRendezvous& meeting, GroupMember member) : meeting_(meeting), member_(std::move(member)) {}

  const std::string& id() const override { return member_.id; }
  int64_t generation() const override { return member_.generation; }

  absl::Status Check() override {
    MutexLock lock(meeting_.mu_);
    return member_.failure.empty() ? ToStatus(meeting_.table_.Answer(member_)) : absl::OkStatus();
  }
  void Fail(const std::string& why) override {
    MutexLock lock(meeting_.mu_);
    member_.failure = why;
    (void)meeting_.table_.Report(member_);
    meeting_.changed_.SignalAll();
  }

 private:
  LocalRendezvous& meeting_;
  GroupMember member_;
};

absl::StatusOr<std::unique_ptr<Membership>> LocalRendezvous::Join(const JoinRequest& request) {
  MutexLock lock(mu_);
  GroupMember member;
  member.group = request.group;
  member.rank = request.rank;
  member.size = request.size;
  member.id = request.id;
  member.token = absl::StrCat(++joins_);
  int64_t now = Clock::Real().MonotonicNanos();
  member.deadline_nanos = now + absl::ToInt64Nanoseconds(request.timeout);
  int64_t& last = last_[{request.group, request.rank}];
  const auto newest = table_.groups().find(request.group);
  member.generation = std::max(last + 1, newest == table_.groups().end() ? 0 : newest->second.generation);
  while (true) {
    last = std::max(last, member.generation);
    STRATA_RETURN_IF_ERROR(table_.Report(member));
    now = Clock::Real().MonotonicNanos();
    table_.Expire(now);
    changed_.SignalAll();
    const GroupState state = table_.Answer(member);
    if (state.phase == GroupPhase::kComplete) {
      member.id = state.id;
      return std::make_unique<Part>(*this, std::move(member));
    }
    if (state.cause == GroupCause::kSuperseded) {
      member.generation = state.newest_generation;
      continue;
    }
    STRATA_RETURN_IF_ERROR(ToStatus(state));
    const int64_t version = table_.version();
    while (table_.version() == version && now < member.deadline_nanos) {
      changed_.WaitFor(mu_, std::chrono::nanoseconds(member.deadline_nanos - now));
      now = Clock::Real().MonotonicNanos();
    }
  }
}

}  // namespace strata
