// Where the ranks of an attempt meet (offload/comm/rendezvous.h). Nothing of it is stored: ranks repeat what
// they are members of for as long as they are, so a coordinator that was restarted soon knows it again.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "offload/comm/rendezvous_table.h"
#include "proto/duration/duration.h"
#include "proto/rendezvous/rendezvous.h"
#include "server/service/coordinator.h"

namespace strata::server {
namespace {

using strata::FromProto;  // beside this namespace's own
using strata::ToProto;

constexpr std::chrono::milliseconds kHoldMax{10'000};
constexpr std::chrono::milliseconds kLookEvery{250};
constexpr absl::Duration kPace = absl::Milliseconds(50);       // after a call that was held
constexpr absl::Duration kBusyPace = absl::Milliseconds(500);  // after one that was not
constexpr int kMissingShown = 16;

// Ranks may meet, and communicate.
bool IsActive(const Job& job) { return job.state == JobState::kStarting || job.state == JobState::kRunning; }

absl::Status StaleAttempt(const v1::RendezvousRequest& request, const Job& job) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "STALE_ATTEMPT",
                   absl::StrCat("attempt ", request.attempt(), " of ", job.name,
                                " is not the current one, which is ", job.attempt, ": its ranks must end"),
                   {{"attempt", absl::StrCat(job.attempt)}, {"job", job.name}});
}

// Why the current attempt of a job that is not active is over, with the failure that ended it.
std::string WhyOver(const Job& job) {
  std::string why = absl::StrCat("attempt ", job.attempt, " of ", job.name, " is over, the job is ",
                                 JobStateName(job.state));
  const std::optional<v1::Failure>& failure = job.pending_failure ? job.pending_failure : job.last_failure;
  if (failure && (job.pending_failure || failure->attempt() == job.attempt)) {
    absl::StrAppend(&why, ": rank ", failure->rank(),
                    failure->worker().empty() ? "" : absl::StrCat(" on worker ", failure->worker()), ": ",
                    v1::FailureCause_Name(failure->cause()), ": ", failure->message());
  } else if (!job.message.empty()) {
    absl::StrAppend(&why, ": ", job.message);
  }
  return TruncateUtf8(why, kMemberFailureBytesMax);
}

}  // namespace

absl::StatusOr<v1::RendezvousResponse> Coordinator::Rendezvous(const v1::RendezvousRequest& request,
                                                               const CallContext& call) {
  if (const MemberProblem problem = CheckMembers(request); !problem.field.empty())
    return InvalidField(problem.field, problem.description);
  const auto arrived = std::chrono::steady_clock::now();
  // At most half of the time that the caller gives the call, so that an answer always finds it waiting.
  const auto hold = std::min<std::chrono::nanoseconds>(
      {std::max(absl::ToChronoNanoseconds(FromProto(request.max_wait())), std::chrono::nanoseconds(0)),
       kHoldMax, (call.deadline - arrived) / 2});
  MutexLock lock(mu_);
  const std::vector<GroupMember> members = MembersFromProto(request, clock_.MonotonicNanos());
  while (true) {
    if (draining_) return ServerDraining();
    STRATA_ASSIGN_OR_RETURN(const JobPtr latest, FindRecord(request.job_uid()));
    if (latest == nullptr) return NotFound("job uid", request.job_uid());
    const JobPtr job = DurableRecord(latest);
    const int32_t attempt = job == nullptr ? 0 : job->attempt;
    // While a change that ends or begins an attempt is being written, neither side of it is told anything.
    const bool settled = job != nullptr && attempt == latest->attempt && IsActive(*job) == IsActive(*latest);
    if (request.attempt() < attempt || (settled && request.attempt() != attempt))
      return StaleAttempt(request, *latest);
    v1::RendezvousResponse response;
    bool news = false;
    if (settled) {
      STRATA_RETURN_IF_ERROR(AnswerMembers(*job, members, &response));
      for (int i = 0; i < response.groups_size(); ++i) {
        const v1::GroupState::State known = request.members(i).known();
        const bool forming = response.groups(i).state() == v1::GroupState::FORMING;
        news = news || (forming ? known > v1::GroupState::FORMING : known != response.groups(i).state());
      }
    }
    const auto waited = std::chrono::steady_clock::now() - arrived;
    if (call.cancelled()) return absl::CancelledError("the worker has withdrawn its Rendezvous");
    if (news || waited >= hold) {
      if (!settled) return StorageDegraded("the end of the attempt is not written yet");
      *response.mutable_next() = ToProto(hold.count() > 0 ? kPace : kBusyPace);
      return response;
    }
    changed_.WaitFor(mu_, std::min<std::chrono::nanoseconds>(hold - waited, kLookEvery));
  }
}

absl::Status Coordinator::AnswerMembers(const Job& job, const std::vector<GroupMember>& members,
                                        v1::RendezvousResponse* response) {
  if (!IsActive(job)) {
    const std::string why = WhyOver(job);
    for (const GroupMember& member : members) {
      GroupState over;
      over.group = member.group;
      over.generation = over.newest_generation = member.generation;
      over.phase = GroupPhase::kFailed;
      over.cause = GroupCause::kAttemptOver;
      over.message = why;
      *response->add_groups() = ToProto(over);
    }
    return absl::OkStatus();
  }
  Groups& groups = live_[job.uid].groups;
  if (groups.attempt != job.attempt) groups = {job.attempt, {}};
  const int64_t version = groups.table.version();
  for (const GroupMember& member : members) {
    if (const absl::Status status = groups.table.Report(member); !status.ok())
      return MakeError(status.code(), "QUOTA_EXCEEDED", status.message());
  }
  groups.table.Expire(clock_.MonotonicNanos());
  if (groups.table.version() != version) AnnounceGroups();
  for (const GroupMember& member : members) *response->add_groups() = ToProto(groups.table.Answer(member));
  return absl::OkStatus();
}

void Coordinator::AnnounceGroups() {
  ++live_generation_;
  changed_.SignalAll();
}

void Coordinator::ExpireGroups() {
  for (auto& [uid, live] : live_) {
    const int64_t version = live.groups.table.version();
    live.groups.table.Expire(clock_.MonotonicNanos());
    if (live.groups.table.version() != version) AnnounceGroups();
  }
}

void Coordinator::AddGroups(const Job& job, const Groups& groups, v1::JobStatus* status) {
  if (!IsActive(job) || groups.attempt != job.attempt) return;
  for (const auto& [name, group] : groups.table.groups()) {
    v1::GroupStatus& shown = *status->add_groups();
    shown.set_group(name);
    shown.set_generation(group.generation);
    shown.set_state(ToProto(group.phase));
    shown.set_size(group.size);
    shown.set_message(group.message);
    if (group.phase != GroupPhase::kForming) continue;
    for (const int rank : RendezvousTable::Missing(group)) {
      if (shown.missing_size() == kMissingShown) break;
      shown.add_missing(rank);
    }
  }
}

}  // namespace strata::server
