// The user plane of the coordinator.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/bytes.h"
#include "common/random_hex.h"
#include "common/status.h"
#include "proto/job_spec/violation.h"
#include "server/service/coordinator.h"
#include "server/service/names.h"
#include "server/store/job_codec.h"

namespace strata::server {
namespace {

constexpr size_t kJobIdMax = 63;
constexpr size_t kRequestIdMax = 128;
constexpr int kLabelsMax = 64;
constexpr size_t kLabelMax = 256;
constexpr int32_t kJobsPage = 50;
constexpr int32_t kJobsPageMax = 500;
constexpr int32_t kEventsPageMax = 1000;
constexpr size_t kPageBytes = 3 << 20;  // a page stays well under the 4 MiB of a message
constexpr size_t kCapacityClassesTried = 8;
constexpr size_t kWatchBatch = 100;
constexpr auto kBookmarkEvery = std::chrono::seconds(10);
constexpr auto kLiveEvery = std::chrono::milliseconds(500);
constexpr int64_t kPointsMax = 60000;  // of one answer

template <typename Message>
std::string Deterministic(const Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

absl::Status CheckRequestId(absl::string_view id) {
  if (id.size() > kRequestIdMax) {
    return InvalidField("request_id", absl::StrCat("must be at most ", kRequestIdMax, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckLabels(const google::protobuf::Map<std::string, std::string>& labels) {
  if (labels.size() > kLabelsMax) return InvalidField("labels", absl::StrCat("must be at most ", kLabelsMax));
  for (const auto& [key, value] : labels) {
    if (key.empty() || key.size() > kLabelMax || value.size() > kLabelMax) {
      return InvalidField("labels",
                          absl::StrCat("keys of 1 to ", kLabelMax, " bytes, values of at most ", kLabelMax));
    }
  }
  return absl::OkStatus();
}

// What people call a job, as an id: other characters become '-'.
std::string IdFromName(const std::string& name) {
  std::string id;
  for (const char c : name.substr(0, 50)) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const bool plain = (lower >= 'a' && lower <= 'z') || (lower >= '0' && lower <= '9');
    if (plain) {
      id.push_back(lower);
    } else if (!id.empty() && id.back() != '-') {
      id.push_back('-');
    }
  }
  while (!id.empty() && id.back() == '-') id.pop_back();
  return id.empty() ? "job" : id;
}

absl::Status PlannerError(const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInternal || status.code() == absl::StatusCode::kUnavailable)
    return status;
  FieldViolation violation = ViolationOf(status.message());
  return InvalidSpec(
      {{violation.field.empty() ? "spec" : std::move(violation.field), std::move(violation.description)}});
}

// The budget of a resource that the job leaves to the worker: raising it in the job file would change
// nothing.
bool IsAuto(const v1::MemorySpec& memory, const std::string& resource) {
  return (resource == "device" && memory.device() == 0) || (resource == "host" && memory.host() == 0) ||
         (resource == "nvme" && memory.nvme() == 0);
}

absl::Status Unsatisfiable(const v1::JobSpec& spec, const v1::JobPlan& plan) {
  std::string message = "the job does not fit";
  ErrorMetadata metadata;
  for (int i = 0; i < std::min(plan.shortfalls_size(), 4); ++i) {
    const v1::Shortfall& shortfall = plan.shortfalls(i);
    absl::StrAppend(&message, i == 0 ? ": " : "; ", shortfall.resource());
    // Some things are there or not.
    if (shortfall.requested() > 0) {
      absl::StrAppend(&message, " needs ", FormatBytes(shortfall.requested()), " (", shortfall.requested(),
                      " bytes), there is ", FormatBytes(shortfall.total()), " (", shortfall.total(),
                      " bytes)");
    }
    absl::StrAppend(&message, shortfall.remedy().empty() ? "" : ": ", shortfall.remedy(),
                    IsAuto(spec.memory(), shortfall.resource())
                        ? absl::StrCat("; no worker has more: add one, or give one more with --",
                                       shortfall.resource(), "-bytes")
                        : "");
    // The first under plain names, the others numbered.
    const std::string suffix = i == 0 ? "" : absl::StrCat(".", i);
    metadata["resource" + suffix] = shortfall.resource();
    metadata["remedy" + suffix] = shortfall.remedy();
    if (shortfall.requested() == 0) continue;
    metadata["requested" + suffix] = absl::StrCat(shortfall.requested());
    metadata["free" + suffix] = absl::StrCat(shortfall.free());
    metadata["total" + suffix] = absl::StrCat(shortfall.total());
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, "UNSATISFIABLE", message, metadata);
}

v1::JobEvent EventToProto(const EventRow& row) {
  v1::JobEvent event;
  event.set_revision(row.revision);
  *event.mutable_time() = MicrosToProto(row.wall_micros);
  event.set_from(static_cast<v1::Job::State>(row.from));
  event.set_to(static_cast<v1::Job::State>(row.to));
  event.set_reason(row.reason);
  event.set_message(row.message);
  event.set_actor(row.actor);
  event.set_attempt(row.attempt);
  return event;
}

std::string LiveDigest(const v1::Job& job) {
  const v1::JobStatus& status = job.status();
  return absl::StrCat(job.revision(), "|", status.progress().step(), "|", status.waiting().code(), "|",
                      status.tasks_size() > 0 ? status.tasks(0).phase() : "", "|", status.message());
}

}  // namespace

v1::Job Coordinator::View(const Job& job) {
  const auto found = live_.find(job.uid);
  if (found == live_.end() || IsTerminal(job.state)) return JobToProto(job, job.progress);
  const Live& live = found->second;
  v1::Job view = JobToProto(job, live.progress);
  AddGroups(job, live.groups, view.mutable_status());
  if (job.state == JobState::kQueued) {
    *view.mutable_status()->mutable_waiting() = live.waiting;
  } else if (job.state == JobState::kBackoff) {
    v1::Waiting& waiting = *view.mutable_status()->mutable_waiting();
    waiting.set_code("BACKOFF");
    *waiting.mutable_evaluated_at() = MicrosToProto(absl::ToUnixMicros(clock_.WallNow()));
  }
  if (const std::string trouble = StorageTrouble(); !trouble.empty()) {
    std::string& message = *view.mutable_status()->mutable_message();
    message = absl::StrCat(message, message.empty() ? "" : "; ", trouble);
  }
  return view;
}

JobPtr Coordinator::DurableRecord(const JobPtr& latest) {
  for (const Pending& pending : pending_) {
    if (pending.uid == latest->uid) return pending.before;
  }
  return latest;
}

v1::Job Coordinator::ViewAfter(const JobPtr& job) {
  const JobPtr latest = table_.Find(job->uid);
  const JobPtr durable = latest == nullptr ? nullptr : DurableRecord(latest);
  return View(durable == nullptr ? *job : *durable);
}

absl::StatusOr<JobPtr> Coordinator::FindRecord(const std::string& uid) {
  if (JobPtr job = table_.Find(uid); job != nullptr) return job;
  return store_.FindByUid(uid);
}

absl::StatusOr<JobPtr> Coordinator::FindReplay(const RequestRow& request) {
  std::optional<RequestRow> earlier;
  const auto pending = pending_requests_.find({request.scope, request.request_id});
  if (pending != pending_requests_.end()) {
    earlier = pending->second;
  } else {
    STRATA_ASSIGN_OR_RETURN(earlier, store_.FindRequest(request.scope, request.request_id));
  }
  if (!earlier) return JobPtr();
  STRATA_ASSIGN_OR_RETURN(JobPtr job, FindRecord(earlier->uid));
  if (job == nullptr) return absl::DataLossError("a request id names a job that does not exist");
  if (earlier->digest != request.digest) {
    return MakeError(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                     absl::StrCat("request_id was used before with another request, for ", job->name,
                                  ": make a new id for every new request"),
                     {{"job", job->name}});
  }
  return job;
}

absl::StatusOr<v1::JobPlan> Coordinator::PlanFor(
    const v1::JobSpec& spec, const std::string& only_worker,
    std::map<std::string, std::shared_ptr<const v1::JobPlan>>* plans) {
  struct Class {
    std::string name;
    Resources total;
    v1::ResourceRequest limits;
  };
  std::vector<Class> order;
  {
    MutexLock lock(mu_);
    std::set<std::string> seen;
    for (const auto& [id, worker] : workers_) {
      if (worker.state != WorkerState::kReady && worker.state != WorkerState::kQuarantined) continue;
      if (!only_worker.empty() && id != only_worker) continue;
      v1::ResourceRequest limits = LimitsOf(worker);
      std::string name = CapacityClass(limits);
      if (seen.insert(name).second) order.push_back({std::move(name), worker.total, std::move(limits)});
    }
  }
  if (order.empty()) {
    if (!only_worker.empty()) return NotFound("worker", only_worker);
    absl::StatusOr<v1::JobPlan> plan = planner_(spec, v1::ResourceRequest());
    if (!plan.ok()) return PlannerError(plan.status());
    plan->add_notes("no worker is there: planned as if its budgets could be had");
    return plan;
  }
  // The largest first: it is the most likely to fit, and its shortfalls are the ones that matter.
  std::stable_sort(order.begin(), order.end(), [](const Class& a, const Class& b) {
    return std::tie(a.total.device_bytes, a.total.host_bytes, a.total.nvme_bytes) >
           std::tie(b.total.device_bytes, b.total.host_bytes, b.total.nvme_bytes);
  });
  std::optional<v1::JobPlan> first;
  for (size_t i = 0; i < std::min(order.size(), kCapacityClassesTried); ++i) {
    absl::StatusOr<v1::JobPlan> plan = planner_(spec, order[i].limits);
    if (!plan.ok()) return PlannerError(plan.status());
    RefuseBeyondCapacity(*plan, order[i].total);
    if (plans != nullptr) (*plans)[order[i].name] = std::make_shared<const v1::JobPlan>(*plan);
    if (plan->fits()) return plan;
    if (!first) first = *std::move(plan);
  }
  return *first;
}

absl::StatusOr<v1::Job> Coordinator::CreateJob(const v1::CreateJobRequest& request, const CallContext& call) {
  STRATA_ASSIGN_OR_RETURN(const std::string parent, ParseParent(request.parent()));
  if (!request.job_id().empty() && !IsId(request.job_id(), kJobIdMax)) {
    return InvalidField("job_id", absl::StrCat("must be of [a-z0-9-], 1 to ", kJobIdMax, " characters"));
  }
  STRATA_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  STRATA_RETURN_IF_ERROR(CheckLabels(request.labels()));
  if (!request.has_spec()) return InvalidField("spec", "is missing");
  v1::JobSpec spec = request.spec();
  if (const std::vector<SpecProblem> problems = checker_(spec); !problems.empty())
    return InvalidSpec(problems);

  std::optional<RequestRow> replay;
  if (!request.request_id().empty() && !request.validate_only()) {
    v1::CreateJobRequest payload = request;
    payload.clear_request_id();
    payload.set_parent(parent);
    replay = RequestRow{absl::StrCat("CreateJob ", parent), request.request_id(),
                        Sha256(Deterministic(payload)), ""};
  }
  // The answer to a request that was made before; also used when two of them race.
  const auto earlier = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::StatusOr<std::optional<v1::Job>> {
    if (!replay) return std::nullopt;
    absl::StatusOr<JobPtr> job = FindReplay(*replay);
    if (!job.ok() && ReasonOf(job.status()) == "REQUEST_ID_REUSED") {
      const absl::StatusOr<std::optional<RequestRow>> row =
          store_.FindRequest(replay->scope, replay->request_id);
      absl::StatusOr<JobPtr> other =
          row.ok() && *row ? FindRecord((*row)->uid) : absl::StatusOr<JobPtr>(JobPtr());
      if (other.ok() && *other != nullptr) {
        std::string difference;
        google::protobuf::util::MessageDifferencer differencer;
        differencer.ReportDifferencesToString(&difference);
        const std::string field =
            differencer.Compare((*other)->spec, spec)
                ? "parent, job_id or labels"
                : absl::StrCat("spec: ", std::string(difference.substr(0, difference.find('\n'))));
        return MakeError(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                         absl::StrCat(job.status().message(), " (differs in ", TruncateUtf8(field, 200), ")"),
                         {{"job", (*other)->name}, {"field", field}});
      }
    }
    STRATA_RETURN_IF_ERROR(job.status());
    if (*job == nullptr) return std::nullopt;
    STRATA_RETURN_IF_ERROR(WaitDurable((*job)->revision, epoch_, call));
    return ViewAfter(*job);
  };
  {
    MutexLock lock(mu_);
    if (draining_) return ServerDraining();
    STRATA_ASSIGN_OR_RETURN(std::optional<v1::Job> job, earlier());
    if (job) return *std::move(job);
  }

  std::map<std::string, std::shared_ptr<const v1::JobPlan>> plans;
  STRATA_ASSIGN_OR_RETURN(const v1::JobPlan plan, PlanFor(spec, "", &plans));
  if (!plan.fits()) return Unsatisfiable(spec, plan);

  Job job;
  job.uid = RandomHex(16);
  const std::string id =
      request.job_id().empty() ? absl::StrCat(IdFromName(spec.name()), "-", RandomHex(6)) : request.job_id();
  job.name = absl::StrCat(parent, "/jobs/", id);
  job.spec = std::move(spec);
  job.labels = {request.labels().begin(), request.labels().end()};
  job.creator = "user";
  job.plan = plan;

  MutexLock lock(mu_);
  if (draining_) return ServerDraining();
  STRATA_ASSIGN_OR_RETURN(std::optional<v1::Job> winner, earlier());
  if (winner) return *std::move(winner);
  // One read of an indexed page; under the lock, so that nobody can take the name in between.
  STRATA_ASSIGN_OR_RETURN(const JobPtr taken, store_.FindByName(job.name));
  if (taken != nullptr || table_.FindByName(job.name) != nullptr) {
    return MakeError(absl::StatusCode::kAlreadyExists, "JOB_ID_TAKEN",
                     absl::StrCat(job.name, " exists already"), {{"job", job.name}});
  }
  if (table_.jobs().size() >= static_cast<size_t>(options_.live_jobs_max)) {
    return WithRetry(MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                               absl::StrCat("there are ", table_.jobs().size(), " jobs that have not ended")),
                     absl::Seconds(30));
  }
  if (request.validate_only()) {
    job.state = JobState::kQueued;
    job.uid.clear();
    return JobToProto(job, job.progress);
  }
  const std::string uid = job.uid;
  if (replay) replay->uid = uid;
  STRATA_ASSIGN_OR_RETURN(const JobPtr created,
                          Transact(uid, "user", Created{std::move(job)}, std::move(replay)));
  const uint64_t epoch = epoch_;
  live_[uid].plans = std::move(plans);
  RunSchedule();
  STRATA_RETURN_IF_ERROR(WaitDurable(revision_, epoch, call));
  return ViewAfter(created);
}

absl::StatusOr<v1::JobPlan> Coordinator::PlanJob(const v1::PlanJobRequest& request) {
  STRATA_RETURN_IF_ERROR(ParseParent(request.parent()).status());
  if (!request.has_spec()) return InvalidField("spec", "is missing");
  v1::JobSpec spec = request.spec();
  if (const std::vector<SpecProblem> problems = checker_(spec); !problems.empty())
    return InvalidSpec(problems);
  return PlanFor(spec, request.worker(), nullptr);
}

absl::StatusOr<JobPtr> Coordinator::FindJob(const std::string& raw_name) {
  STRATA_ASSIGN_OR_RETURN(const std::string name, ParseJobName(raw_name));
  {
    MutexLock lock(mu_);
    if (const JobPtr latest = table_.FindByName(name); latest != nullptr) {
      JobPtr job = DurableRecord(latest);
      if (job == nullptr) return NotFound("job", name);
      return job;
    }
  }
  STRATA_ASSIGN_OR_RETURN(JobPtr job, store_.FindByName(name));
  if (job == nullptr) return NotFound("job", name);
  return job;
}

absl::StatusOr<v1::Job> Coordinator::GetJob(const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(const JobPtr job, FindJob(name));
  MutexLock lock(mu_);
  return View(*job);
}

absl::StatusOr<v1::ListJobsResponse> Coordinator::ListJobs(const v1::ListJobsRequest& request) {
  JobQuery query;
  STRATA_ASSIGN_OR_RETURN(query.parent, ParseParent(request.parent()));
  STRATA_ASSIGN_OR_RETURN(query.limit, PageSize(request.page_size(), kJobsPage, kJobsPageMax));
  if (!request.state().empty()) {
    query.state = JobStateFromName(request.state());
    if (query.state == JobState::kNone) {
      return InvalidField("state", "must be empty or the name of a state, as in QUEUED or RUNNING");
    }
  }
  const std::string list = absl::StrCat("jobs ", query.parent, " ", request.state());
  STRATA_ASSIGN_OR_RETURN(query.before_sequence, ParsePageToken(list, request.page_token(), INT64_MAX));
  const int32_t page_size = query.limit++;
  v1::ListJobsResponse response;
  {
    MutexLock lock(mu_);
    response.set_revision(durable_revision_);
  }
  STRATA_ASSIGN_OR_RETURN(const std::vector<JobPtr> jobs, store_.ListJobs(query));
  size_t bytes = 0;
  MutexLock lock(mu_);
  for (const JobPtr& job : jobs) {
    v1::Job view = View(*job);
    bytes += view.ByteSizeLong();
    if (response.jobs_size() == page_size || (bytes > kPageBytes && response.jobs_size() > 0)) {
      response.set_next_page_token(MakePageToken(list, jobs[response.jobs_size() - 1]->sequence));
      break;
    }
    *response.add_jobs() = std::move(view);
  }
  return response;
}

absl::StatusOr<v1::Job> Coordinator::CancelJob(const v1::CancelJobRequest& request, const CallContext& call) {
  STRATA_ASSIGN_OR_RETURN(const std::string name, ParseJobName(request.name()));
  STRATA_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  std::optional<RequestRow> replay;
  if (!request.request_id().empty()) {
    v1::CancelJobRequest payload = request;
    payload.clear_request_id();
    replay = RequestRow{absl::StrCat("CancelJob ", name), request.request_id(),
                        Sha256(Deterministic(payload)), ""};
  }
  MutexLock lock(mu_);
  if (draining_) return ServerDraining();
  JobPtr job = table_.FindByName(name);
  if (job == nullptr) {
    STRATA_ASSIGN_OR_RETURN(job, store_.FindByName(name));
    if (job == nullptr) return NotFound("job", name);
  }
  bool repeated = false;
  if (replay) {
    STRATA_ASSIGN_OR_RETURN(const JobPtr earlier, FindReplay(*replay));
    repeated = earlier != nullptr;
    replay->uid = job->uid;
  }
  if (!repeated && !request.etag().empty() && request.etag() != EtagOf(*job)) {
    return MakeError(absl::StatusCode::kAborted, "ETAG_MISMATCH",
                     absl::StrCat(name, " has changed: its etag is ", EtagOf(*job)),
                     {{"etag", EtagOf(*job)}});
  }
  if (!repeated && CanCancel(*job)) {
    STRATA_ASSIGN_OR_RETURN(
        job,
        Transact(job->uid, "user", CancelRequested{TruncateUtf8(request.reason(), 500)}, std::move(replay)));
  }
  STRATA_RETURN_IF_ERROR(WaitDurable(job->revision, epoch_, call));
  return ViewAfter(job);
}

absl::StatusOr<v1::ListJobEventsResponse> Coordinator::ListJobEvents(
    const v1::ListJobEventsRequest& request) {
  STRATA_ASSIGN_OR_RETURN(const int32_t page_size,
                          PageSize(request.page_size(), kEventsPageMax, kEventsPageMax));
  STRATA_ASSIGN_OR_RETURN(const JobPtr job, FindJob(request.name()));
  const std::string list = absl::StrCat("events ", job->uid);
  STRATA_ASSIGN_OR_RETURN(const int64_t after, ParsePageToken(list, request.page_token(), 0));
  STRATA_ASSIGN_OR_RETURN(const std::vector<EventRow> rows,
                          store_.ListEvents(job->uid, after, page_size + 1));
  v1::ListJobEventsResponse response;
  size_t bytes = 0;
  for (const EventRow& row : rows) {
    v1::JobEvent event = EventToProto(row);
    bytes += event.ByteSizeLong();
    if (response.events_size() == page_size || (bytes > kPageBytes && response.events_size() > 0)) {
      response.set_next_page_token(
          MakePageToken(list, response.events(response.events_size() - 1).revision()));
      break;
    }
    *response.add_events() = std::move(event);
  }
  return response;
}

// --- watch ---

absl::StatusOr<Coordinator::Watch> Coordinator::StartWatch(const v1::WatchJobsRequest& request) {
  Watch watch;
  watch.last_sent = std::chrono::steady_clock::now();
  if (!request.name().empty()) {
    STRATA_ASSIGN_OR_RETURN(const JobPtr job, FindJob(request.name()));
    watch.name = job->name;
    watch.parent = ParentOf(job->name);
  } else {
    STRATA_ASSIGN_OR_RETURN(watch.parent, ParseParent(request.parent()));
  }
  if (request.from_revision() < 0) return InvalidField("from_revision", "must not be negative");
  MutexLock lock(mu_);
  if (draining_) return ServerDraining();
  watch.snapshot = request.from_revision() == 0;
  watch.revision = watch.snapshot ? durable_revision_ : request.from_revision();
  if (!watch.snapshot && (watch.revision < oldest_change_ || watch.revision > durable_revision_)) {
    return MakeError(
        absl::StatusCode::kOutOfRange, "REVISION_COMPACTED",
        absl::StrCat("revision ", watch.revision, " is not among those kept (", oldest_change_, " to ",
                     durable_revision_, "): watch again from a snapshot (from_revision 0)"),
        {{"oldest", absl::StrCat(oldest_change_)}, {"newest", absl::StrCat(durable_revision_)}});
  }
  return watch;
}

absl::Status Coordinator::NextWatch(Watch& watch, const CallContext& call,
                                    std::vector<v1::WatchJobsResponse>& out) {
  const auto add = [&](v1::Job job, int64_t revision) {
    watch.told[job.uid()] = LiveDigest(job);
    v1::WatchJobsResponse& response = out.emplace_back();
    response.set_revision(revision);
    *response.mutable_upsert() = std::move(job);
  };
  const auto bookmark = [&](bool complete) {
    v1::WatchJobsResponse& response = out.emplace_back();
    response.mutable_bookmark()->set_snapshot_complete(complete);
    response.set_revision(watch.revision);
  };
  if (watch.snapshot) {
    // Jobs that change meanwhile are told again after the bookmark. No revision yet: a client that is cut off
    // here has nothing to resume from.
    std::vector<JobPtr> page;
    if (!watch.name.empty()) {
      STRATA_ASSIGN_OR_RETURN(page.emplace_back(), FindJob(watch.name));
    } else {
      JobQuery query{watch.parent, JobState::kNone, watch.snapshot_cursor, static_cast<int32_t>(kWatchBatch)};
      STRATA_ASSIGN_OR_RETURN(page, store_.ListJobs(query));
    }
    {
      MutexLock lock(mu_);
      for (const JobPtr& job : page) add(View(*job), 0);
    }
    if (!page.empty()) watch.snapshot_cursor = page.back()->sequence;
    if (!watch.name.empty() || page.size() < kWatchBatch) {
      watch.snapshot = false;
      bookmark(true);
    }
    watch.last_sent = std::chrono::steady_clock::now();
    return absl::OkStatus();
  }
  MutexLock lock(mu_);
  while (true) {
    if (draining_) return ServerDraining();
    if (watch.revision < oldest_change_) {
      return MakeError(
          absl::StatusCode::kOutOfRange, "REVISION_COMPACTED",
          absl::StrCat("the watcher was too slow: revision ", watch.revision, " is no longer kept"),
          {{"oldest", absl::StrCat(oldest_change_)}});
    }
    auto change =
        std::lower_bound(changes_.begin(), changes_.end(), watch.revision + 1,
                         [](const JobPtr& job, int64_t revision) { return job->revision < revision; });
    for (; change != changes_.end() && out.size() < kWatchBatch; ++change) {
      const Job& job = **change;
      watch.revision = job.revision;
      if (watch.name.empty() ? ParentOf(job.name) != watch.parent : job.name != watch.name) continue;
      const JobPtr now = table_.Find(job.uid);
      add(now == *change ? View(job) : JobToProto(job, job.progress), job.revision);
      if (IsTerminal(job.state)) watch.told.erase(job.uid);
    }
    const auto time = std::chrono::steady_clock::now();
    if (out.empty() && watch.live_generation != live_generation_ && time - watch.last_sent >= kLiveEvery) {
      watch.live_generation = live_generation_;
      for (const auto& [uid, live] : live_) {
        // While the store does not answer the present goes on to be told, on the last durable record.
        const JobPtr latest = table_.Find(uid);
        const JobPtr job = latest == nullptr ? nullptr : DurableRecord(latest);
        if (job == nullptr || job->revision > watch.revision) continue;
        if (watch.name.empty() ? ParentOf(job->name) != watch.parent : job->name != watch.name) continue;
        v1::Job view = View(*job);
        const auto told = watch.told.find(uid);
        if (told == watch.told.end() || told->second != LiveDigest(view))
          add(std::move(view), watch.revision);
      }
    }
    if (out.empty() && time - watch.last_sent >= kBookmarkEvery) bookmark(false);
    if (!out.empty()) {
      watch.last_sent = time;
      return absl::OkStatus();
    }
    if (call.cancelled()) return absl::CancelledError("the client is gone");
    changed_.WaitFor(mu_, kLiveEvery);
  }
}

// --- checkpoints, metrics ---

absl::StatusOr<v1::ListCheckpointsResponse> Coordinator::ListCheckpoints(
    const v1::ListCheckpointsRequest& request) {
  STRATA_ASSIGN_OR_RETURN(const int32_t page_size, PageSize(request.page_size(), 100, 1000));
  STRATA_ASSIGN_OR_RETURN(const JobPtr job, FindJob(request.parent()));
  const std::string list = absl::StrCat("checkpoints ", job->uid);
  STRATA_ASSIGN_OR_RETURN(const int64_t before, ParsePageToken(list, request.page_token(), INT64_MAX));
  v1::ListCheckpointsResponse response;
  size_t bytes = 0;
  for (const auto& checkpoint : job->checkpoints) {
    if (checkpoint->step() >= before) continue;
    bytes += checkpoint->ByteSizeLong();
    if (response.checkpoints_size() == page_size || (bytes > kPageBytes && response.checkpoints_size() > 0)) {
      response.set_next_page_token(
          MakePageToken(list, response.checkpoints(response.checkpoints_size() - 1).step()));
      break;
    }
    *response.add_checkpoints() = *checkpoint;
  }
  return response;
}

absl::StatusOr<v1::Checkpoint> Coordinator::GetCheckpoint(const std::string& name) {
  STRATA_ASSIGN_OR_RETURN(const CheckpointName parsed, ParseCheckpointName(name));
  STRATA_ASSIGN_OR_RETURN(const JobPtr job, FindJob(parsed.job));
  for (const auto& checkpoint : job->checkpoints) {
    if (checkpoint->step() == parsed.step) return *checkpoint;
  }
  return NotFound("checkpoint", name);
}

absl::StatusOr<v1::QueryMetricsResponse> Coordinator::QueryMetrics(const v1::QueryMetricsRequest& request) {
  if (request.max_points() < 0) return InvalidField("max_points", "must be 0 to 10000");
  if (request.min_step() < 0 || request.max_step() < 0)
    return InvalidField("min_step", "steps are not negative");
  if (request.series_size() > 256) return InvalidField("series", "must be at most 256 names");
  STRATA_ASSIGN_OR_RETURN(const JobPtr job, FindJob(request.name()));
  MetricQuery query;
  query.series.assign(request.series().begin(), request.series().end());
  query.min_step = request.min_step();
  query.max_step = request.max_step();
  query.max_points = request.max_points() == 0 ? 1000 : std::min(request.max_points(), 10000);
  query.include_superseded = request.include_superseded();
  STRATA_ASSIGN_OR_RETURN(v1::QueryMetricsResponse response, telemetry_.metrics().Query(job->uid, query));
  // Many long series together would not fit into one message: fewer points of each.
  if (const int64_t series = response.series_size(); series * query.max_points > kPointsMax) {
    query.max_points = static_cast<int32_t>(std::max<int64_t>(1, kPointsMax / series));
    return telemetry_.metrics().Query(job->uid, query);
  }
  return response;
}

bool Coordinator::IsDrained(const Job& job) {
  if (!IsTerminal(job.state)) return false;
  const int64_t since = absl::ToUnixMicros(clock_.WallNow()) - job.end_micros;
  // Workers push telemetry on another stream than the one that reports the end.
  constexpr int64_t kQuiet = 1'000'000;
  constexpr int64_t kPatience = 5'000'000;
  if (since < 0 || since > kPatience) return true;
  if (job.state != JobState::kSucceeded) return since > kQuiet;
  const absl::StatusOr<int64_t> last = telemetry_.metrics().LastStep(job.uid);
  return since > kQuiet / 2 && last.ok() && *last >= job.spec.training().steps();
}

}  // namespace strata::server
