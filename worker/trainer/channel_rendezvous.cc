#include "worker/trainer/channel_rendezvous.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "proto/duration/duration.h"
#include "proto/rendezvous/rendezvous.h"
#include "worker/agent/text.h"

namespace strata {

class ChannelRendezvous::Part : public Membership {
 public:
  Part(ChannelRendezvous& meeting, Key key, std::string id)
      : meeting_(meeting), key_(std::move(key)), id_(std::move(id)) {}
  ~Part() override { meeting_.Leave(key_); }

  const std::string& id() const override { return id_; }
  int64_t generation() const override { return key_.second; }

  absl::Status Check() override {
    MutexLock lock(meeting_.mu_);
    const Entry& entry = meeting_.entries_.at(key_);
    return entry.member.failure().empty() ? ToStatus(entry.state) : absl::OkStatus();
  }
  void Fail(const std::string& why) override {
    {
      MutexLock lock(meeting_.mu_);
      meeting_.entries_.at(key_).member.set_failure(
          ToValidUtf8(absl::string_view(why).substr(0, kMemberFailureBytesMax)));
    }
    // An agent that is gone ends this process, which is what the others then hear.
    (void)meeting_.Publish();
  }

 private:
  ChannelRendezvous& meeting_;
  const Key key_;
  const std::string id_;
};

ChannelRendezvous::ChannelRendezvous(Send send, Clock& clock)
    : send_(std::move(send)), clock_(clock), token_(RandomHex(32)) {}

absl::Status ChannelRendezvous::Publish() {
  MutexLock order(send_mu_);
  v1::TrainerMessage message;
  {
    MutexLock lock(mu_);
    v1::RendezvousRequest& request = *message.mutable_rendezvous();
    const int64_t now = clock_.MonotonicNanos();
    for (const auto& [key, entry] : entries_) {
      v1::GroupMember& member = *request.add_members();
      member = entry.member;
      *member.mutable_time_left() = ToProto(absl::Nanoseconds(entry.deadline_nanos - now));
    }
  }
  return send_(message);
}

absl::Status ChannelRendezvous::Begin(const JoinRequest& request, int64_t deadline_nanos, Key* key) {
  MutexLock lock(mu_);
  int64_t& last = last_[request.group];
  *key = {request.group, ++last};
  Entry& entry = entries_[*key];
  entry.deadline_nanos = deadline_nanos;
  entry.member.set_group(key->first);
  entry.member.set_generation(key->second);
  entry.member.set_rank(request.rank);
  entry.member.set_size(request.size);
  entry.member.set_id(request.id);
  entry.member.set_token(token_);
  v1::RendezvousRequest all;
  *all.add_members() = entry.member;
  const MemberProblem problem = CheckMembers(all);
  if (problem.field.empty()) return absl::OkStatus();
  entries_.erase(*key);
  return absl::InvalidArgumentError(
      absl::StrCat("group ", request.group, ", ", problem.field, ": ", problem.description));
}

GroupState ChannelRendezvous::AwaitAnswer(const Key& key) {
  MutexLock lock(mu_);
  const Entry& entry = entries_.at(key);
  const int64_t until = entry.deadline_nanos + absl::ToInt64Nanoseconds(kAnswerWait);
  while (entry.state.phase == GroupPhase::kForming) {
    const int64_t left = until - clock_.MonotonicNanos();
    if (left <= 0) break;
    changed_.WaitFor(mu_, std::chrono::nanoseconds(left));
  }
  return entry.state;
}

absl::StatusOr<std::unique_ptr<Membership>> ChannelRendezvous::Join(const JoinRequest& request) {
  const int64_t deadline = clock_.MonotonicNanos() + absl::ToInt64Nanoseconds(request.timeout);
  while (true) {
    Key key;
    STRATA_RETURN_IF_ERROR(Begin(request, deadline, &key));
    absl::Status status = Publish();
    GroupState state;
    if (status.ok()) state = AwaitAnswer(key);
    if (state.phase == GroupPhase::kComplete) return std::make_unique<Part>(*this, key, state.id);
    Leave(key);
    STRATA_RETURN_IF_ERROR(status, "telling the agent");
    // The others are at a later generation already, which Take has made the last one known: there they are
    // met.
    if (state.cause == GroupCause::kSuperseded) continue;
    STRATA_RETURN_IF_ERROR(ToStatus(state));
    return absl::DeadlineExceededError(absl::StrCat("group ", key.first, ", generation ", key.second,
                                                    ": the coordinator did not answer within ",
                                                    absl::FormatDuration(request.timeout + kAnswerWait),
                                                    ": is it running, and does the worker reach it?"));
  }
}

void ChannelRendezvous::Take(const v1::RendezvousResponse& response) {
  MutexLock lock(mu_);
  for (const v1::GroupState& from : response.groups()) {
    const auto found = entries_.find({from.group(), from.generation()});
    if (found == entries_.end()) continue;  // left meanwhile
    Entry& entry = found->second;
    GroupState state = FromProto(from);
    // One that was formed does not become less; one that has failed has failed.
    if (state.phase < entry.state.phase) continue;
    // The next one that this process joins is the newest one there is, and not one that it was in.
    int64_t& last = last_[from.group()];
    last = std::max(last, state.newest_generation - 1);
    entry.state = std::move(state);
  }
  changed_.SignalAll();
}

void ChannelRendezvous::Leave(const Key& key) {
  {
    MutexLock lock(mu_);
    entries_.erase(key);
  }
  (void)Publish();
}

}  // namespace strata
