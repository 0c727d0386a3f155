#include "worker/agent/rendezvous_relay.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "proto/duration/duration.h"
#include "proto/rendezvous/rendezvous.h"
#include "worker/agent/text.h"

namespace strata {
namespace {

constexpr absl::Duration kHold = absl::Seconds(10);
constexpr absl::Duration kRpcTimeout = absl::Seconds(10);
constexpr absl::Duration kMinBackoff = absl::Milliseconds(50);
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);

int64_t Now() { return Clock::Real().MonotonicNanos(); }

}  // namespace

RendezvousRelay::RendezvousRelay(Coordinator& coordinator, std::string job_uid, int32_t attempt,
                                 std::function<void(const v1::RendezvousResponse&)> news)
    : coordinator_(coordinator), job_uid_(std::move(job_uid)), attempt_(attempt), news_(std::move(news)) {}

RendezvousRelay::~RendezvousRelay() {
  {
    MutexLock lock(mu_);
    stop_ = true;
    if (asking_ != nullptr) asking_->Cancel();
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.Join();
}

absl::Status RendezvousRelay::Set(const v1::RendezvousRequest& request) {
  MutexLock lock(mu_);
  std::map<Key, Part> next;
  for (const v1::GroupMember& member : request.members()) {
    Part& part = next[{member.group(), member.generation()}];
    part.member = member;
    part.member.clear_known();
    part.deadline_nanos = Now() + absl::ToInt64Nanoseconds(FromProto(member.time_left()));
    if (const auto before = parts_.find({member.group(), member.generation()}); before != parts_.end()) {
      part.member.set_known(before->second.member.known());
      if (part.member.id().empty()) part.member.set_id(before->second.member.id());
      part.told = before->second.told && before->second.member.failure() == member.failure();
    }
  }
  for (const auto& [key, part] : parts_) {
    if (next.count(key) > 0 || part.member.failure().empty() || part.told) continue;
    next[key] = part;
    next[key].listed = false;
  }
  if (next.size() > static_cast<size_t>(kMembersMax)) {
    return absl::ResourceExhaustedError(absl::StrCat("the trainer is a member of ", next.size(),
                                                     " groups at a time, at most ", kMembersMax,
                                                     " are allowed"));
  }
  parts_ = std::move(next);
  dirty_ = true;
  if (asking_ != nullptr) asking_->Cancel();
  changed_.SignalAll();
  if (!thread_.joinable()) thread_ = Thread("rendezvous", [this] { Loop(); });
  return absl::OkStatus();
}

void RendezvousRelay::End(const std::string& why) {
  {
    MutexLock lock(mu_);
    for (auto& [key, part] : parts_) {
      if (part.member.failure().empty()) part.member.set_failure(ToValidUtf8(why));
    }
    end_nanos_ = Now() + absl::ToInt64Nanoseconds(kLastWordTimeout);
    dirty_ = true;
    if (asking_ != nullptr) asking_->Cancel();
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.Join();
}

bool RendezvousRelay::WaitForWork(absl::Duration pause) {
  const int64_t until = Now() + absl::ToInt64Nanoseconds(pause);
  while (true) {
    if (stop_) return false;
    if (end_nanos_ != 0) {
      // Whoever had nothing to say, or has said it, ends at once.
      const bool all = std::all_of(parts_.begin(), parts_.end(), [](const auto& entry) {
        return entry.second.told || entry.second.member.known() == v1::GroupState::FAILED;
      });
      if (all || refused_ || Now() >= end_nanos_) return false;
    }
    const int64_t left = until - Now();
    if (dirty_ || (left <= 0 && !parts_.empty() && !refused_)) return true;
    changed_.WaitFor(mu_,
                     left > 0 ? std::chrono::nanoseconds(left) : std::chrono::nanoseconds(1'000'000'000));
  }
}

v1::RendezvousRequest RendezvousRelay::Request() {
  v1::RendezvousRequest request;
  request.set_job_uid(job_uid_);
  request.set_attempt(attempt_);
  const int64_t now = Now();
  for (const auto& [key, part] : parts_) {
    v1::GroupMember& member = *request.add_members();
    member = part.member;
    *member.mutable_time_left() = ToProto(absl::Nanoseconds(part.deadline_nanos - now));
  }
  if (end_nanos_ == 0) *request.mutable_max_wait() = ToProto(kHold);
  return request;
}

v1::RendezvousResponse RendezvousRelay::Refusal(const v1::RendezvousRequest& request,
                                                const absl::Status& status) {
  const bool stale = ErrorReason(status) == "STALE_ATTEMPT";
  v1::RendezvousResponse response;
  for (const v1::GroupMember& member : request.members()) {
    v1::GroupState& state = *response.add_groups();
    state.set_group(member.group());
    state.set_generation(member.generation());
    state.set_newest_generation(member.generation());
    state.set_state(v1::GroupState::FAILED);
    state.set_cause(stale ? v1::GroupState::ATTEMPT_OVER : v1::GroupState::REFUSED);
    state.set_message(ToValidUtf8(absl::StrCat("the coordinator refuses it: ", status.message())));
  }
  return response;
}

void RendezvousRelay::Apply(const v1::RendezvousRequest& request, const v1::RendezvousResponse& response) {
  for (const v1::GroupMember& member : request.members()) {
    const auto found = parts_.find({member.group(), member.generation()});
    if (found == parts_.end() || found->second.member.failure() != member.failure()) continue;
    found->second.told = !member.failure().empty();
    if (found->second.told && !found->second.listed) parts_.erase(found);
  }
  for (const v1::GroupState& state : response.groups()) {
    const auto found = parts_.find({state.group(), state.generation()});
    if (found == parts_.end()) continue;
    v1::GroupMember& member = found->second.member;
    member.set_known(state.state());
    if (state.state() == v1::GroupState::COMPLETE) {
      member.set_id(state.id());
    } else if (member.rank() != 0) {
      member.clear_id();
    }
  }
}

void RendezvousRelay::Loop() {
  absl::Duration pause, backoff = kMinBackoff;
  while (true) {
    Cancellation cancellation;
    v1::RendezvousRequest request;
    absl::Duration timeout;
    {
      MutexLock lock(mu_);
      if (!WaitForWork(pause)) return;
      dirty_ = refused_ = false;
      request = Request();
      if (request.members_size() == 0) continue;
      timeout = end_nanos_ != 0 ? absl::Nanoseconds(std::max<int64_t>(end_nanos_ - Now(), 1))
                                : FromProto(request.max_wait()) + kRpcTimeout;
      asking_ = &cancellation;
    }
    v1::RendezvousResponse response;
    const absl::Status status = coordinator_.Rendezvous(request, timeout, &cancellation, &response);
    bool tell = false;
    {
      MutexLock lock(mu_);
      asking_ = nullptr;
      if (status.ok()) {
        Apply(request, response);
        pause = FromProto(response.next());
        backoff = kMinBackoff;
      } else if (cancellation.cancelled()) {
        pause = absl::ZeroDuration();
        continue;
      } else if (IsFinal(status)) {
        refused_ = true;
        response = Refusal(request, status);
        Apply(request, response);
      } else {
        pause = backoff;
        backoff = std::min(backoff * 2, kMaxBackoff);
      }
      if (status.ok() || refused_) {
        response.clear_next();
        const std::string text = response.SerializeAsString();
        tell = text != last_;
        last_ = text;
      }
    }
    if (!status.ok()) {
      spdlog::warn("rendezvous of job {}, attempt {}: {}{}", job_uid_, attempt_, status.ToString(),
                   tell ? "" : absl::StrCat("; again in ", absl::FormatDuration(pause)));
    }
    if (tell) news_(response);
  }
}

}  // namespace strata
