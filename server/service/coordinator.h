// Coordinator: the decisions of the service, behind one lock. No gRPC here: requests and answers are
// messages, errors are Statuses that carry their details.
//
// How a change becomes true: under the lock an event is applied to the table and queued for the store (whose
// thread commits many at once); the caller then waits, without the lock, until its revision is durable, and
// only then anybody is told. Readers get the last durable record of a job, so nothing is ever shown that a
// crash could take back, and no read waits for a disk. When a write fails, every change that is not durable
// is undone in reverse order and the coordinator is degraded: reads and training go on, writes are refused
// until a probe succeeds.
#ifndef SERVER_SERVICE_COORDINATOR_H_
#define SERVER_SERVICE_COORDINATOR_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "offload/comm/rendezvous_table.h"
#include "proto/strata/v1/checkpoints.pb.h"
#include "proto/strata/v1/fleet.pb.h"
#include "proto/strata/v1/jobs.pb.h"
#include "proto/strata/v1/logs.pb.h"
#include "proto/strata/v1/metrics.pb.h"
#include "proto/strata/v1/rendezvous.pb.h"
#include "proto/strata/v1/worker.pb.h"
#include "server/service/errors.h"
#include "server/state/job.h"
#include "server/state/job_table.h"
#include "server/state/scheduler.h"
#include "server/store/state_store.h"
#include "server/telemetry/telemetry.h"

namespace strata::server {

// The plan of a job within `limits` (the total capacity of a worker; all zero: no worker is known, only the
// job's own budgets count). A job that does not fit is a plan with fits == false and shortfalls; an error
// says that the job makes no sense. Called without locks, possibly from several threads at once.
using Planner =
    std::function<absl::StatusOr<v1::JobPlan>(const v1::JobSpec& spec, const v1::ResourceRequest& limits)>;
// Fills in defaults; every problem found, empty when the job is valid.
using SpecChecker = std::function<std::vector<SpecProblem>(v1::JobSpec& spec)>;

struct CoordinatorOptions {
  std::string version = "0.1.0";
  absl::Duration lease_ttl = absl::Seconds(10);
  // Beyond the lease, before a silent worker is declared lost. Its own lease ended before.
  absl::Duration lease_grace = absl::Seconds(5);
  // How long workers named by stored jobs may take to come back after a restart of the coordinator.
  absl::Duration restart_wait = absl::Seconds(30);
  absl::Duration orphan_timeout = absl::Hours(1);
  absl::Duration start_timeout = absl::Minutes(10);
  absl::Duration stall_timeout = absl::Minutes(30);  // RUNNING without a step
  absl::Duration stop_timeout = absl::Seconds(60);   // STOPPING before the worker is told to kill
  // "": checkpoints must lie in the checkpoint_root of the worker that commits them.
  std::string checkpoint_root;
  int32_t live_jobs_max = 10000;
  // What the disk of the data folder has free; asked every second. Empty: it is not looked at.
  std::function<int64_t()> free_bytes;
  // Timers and planning run on threads of the coordinator. Tests turn it off and call Tick.
  bool run_ticker = true;
};

// What a blocking call needs to know of its caller.
struct CallContext {
  std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::function<bool()> cancelled = [] { return false; };
};

class Coordinator {
 public:
  // Loads the live jobs. The clock, store and telemetry outlive the coordinator.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(CoordinatorOptions options, Clock& clock,
                                                             StateStore& store, Telemetry& telemetry,
                                                             Planner planner, SpecChecker checker);
  // Drains, and waits for the writes that are under way.
  ~Coordinator();

  // Ends every blocking call with SERVER_DRAINING (Sync: with its answer) and stops the ticker.
  void Drain();

  // User plane.
  absl::StatusOr<v1::Job> CreateJob(const v1::CreateJobRequest& request, const CallContext& call);
  absl::StatusOr<v1::JobPlan> PlanJob(const v1::PlanJobRequest& request);
  absl::StatusOr<v1::Job> GetJob(const std::string& name);
  absl::StatusOr<v1::ListJobsResponse> ListJobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Job> CancelJob(const v1::CancelJobRequest& request, const CallContext& call);
  absl::StatusOr<v1::ListJobEventsResponse> ListJobEvents(const v1::ListJobEventsRequest& request);

  // One watcher. Made by StartWatch; NextWatch fills `out` with what there is, waiting when there is nothing.
  struct Watch {
    std::string parent;
    std::string name;                     // "": all of parent
    int64_t revision = 0;                 // everything up to it has been told
    bool snapshot = false;                // to be sent
    int64_t snapshot_cursor = INT64_MAX;  // jobs from this sequence on have been sent
    int64_t live_generation = 0;
    std::map<std::string, std::string> told;  // uid -> digest of the live picture last sent
    std::chrono::steady_clock::time_point last_sent;
  };
  absl::StatusOr<Watch> StartWatch(const v1::WatchJobsRequest& request);
  absl::Status NextWatch(Watch& watch, const CallContext& call, std::vector<v1::WatchJobsResponse>& out);

  // Fleet.
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers(const v1::ListWorkersRequest& request);
  absl::StatusOr<v1::Worker> GetWorker(const v1::GetWorkerRequest& request);
  v1::ServerInfo GetServerInfo();

  // Worker plane.
  absl::StatusOr<v1::RegisterResponse> Register(const v1::RegisterRequest& request, const CallContext& call);
  absl::StatusOr<v1::SyncResponse> Sync(const v1::SyncRequest& request, const CallContext& call);
  absl::StatusOr<v1::Checkpoint> CommitCheckpoint(const v1::CommitCheckpointRequest& request,
                                                  const CallContext& call);
  // Long poll of one rank (offload/comm/rendezvous.h): takes note of its groups, and answers when one of them
  // is not as the rank knows it, or after max_wait. STALE_ATTEMPT for any attempt but the current one; a
  // group of one that stops or has ended is FAILED, with why it does.
  absl::StatusOr<v1::RendezvousResponse> Rendezvous(const v1::RendezvousRequest& request,
                                                    const CallContext& call);
  // Durable on return. Rows and logs of unknown jobs, of attempts that were never granted, and rows of an
  // older attempt beyond the step its successor resumed from, are dropped: nobody would believe them.
  absl::Status PushTelemetry(const v1::TelemetryBatch& batch);

  // Checkpoints.
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const v1::ListCheckpointsRequest& request);
  absl::StatusOr<v1::Checkpoint> GetCheckpoint(const std::string& name);

  // The record of a job, durable; NOT_FOUND. For streams of logs and metrics.
  absl::StatusOr<JobPtr> FindJob(const std::string& name);
  // The job is terminal and its telemetry has had time to arrive.
  bool IsDrained(const Job& job);
  absl::StatusOr<v1::QueryMetricsResponse> QueryMetrics(const v1::QueryMetricsRequest& request);
  Telemetry& telemetry() { return telemetry_; }
  bool draining();

  // Leases, timeouts, retries, scheduling, planning, probing of a degraded store.
  void Tick();

  // Waits until everything decided so far is durable or undone; for tests.
  void Flush();
  // Those of the table, and that every job has its live picture; for tests.
  absl::Status CheckInvariants();

 private:
  struct Groups {  // of one attempt; lost with the process, and reported again
    int32_t attempt = 0;
    RendezvousTable table;
  };
  struct Live {  // of a job that is not terminal; lost with the process and reported again
    Progress progress;
    v1::Waiting waiting;
    int64_t step_nanos = 0;     // monotonic time of the last progress
    int64_t state_nanos = 0;    // ... of the last transition
    int64_t stopped_nanos = 0;  // ... when its processes were first reported gone; 0: not yet
    int64_t due_nanos = 0;      // ... of the end of the backoff
    std::map<std::string, std::shared_ptr<const v1::JobPlan>> plans;  // by capacity class
    Groups groups;
  };
  struct Session {     // of a worker: what it was last told
    std::string told;  // digest of the desired set
    std::map<std::string, v1::DesiredTask::Want>
        wants;  // uid/attempt -> want, of the answer before this Sync
  };
  struct Pending {
    int64_t revision = 0;
    std::string uid;
    JobPtr before;  // null: did not exist
    std::optional<std::pair<std::string, std::string>> request;
    int64_t since_nanos = 0;  // monotonic
  };

  Coordinator(CoordinatorOptions options, Clock& clock, StateStore& store, Telemetry& telemetry,
              Planner planner, SpecChecker checker);
  absl::Status Load() ABSL_LOCKS_EXCLUDED(mu_);
  void TickerLoop();
  void PlannerLoop();

  // --- changes ---
  // Applies and queues; the record after it, durable later. kFailedPrecondition when the state forbids it.
  absl::StatusOr<JobPtr> Transact(const std::string& uid, std::string actor, decltype(Event::what) what,
                                  std::optional<RequestRow> request = std::nullopt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnCommitted(uint64_t epoch, int64_t revision, const absl::Status& status);
  void RollBack(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Publish(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // OK when `revision`, applied in `epoch`, is durable. Lets go of the lock while waiting.
  absl::Status WaitDurable(int64_t revision, uint64_t epoch, const CallContext& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- timers and scheduling ---
  void RunDue() ABSL_LOCKS_EXCLUDED(mu_);
  // What keeps changes or metrics from being stored, for those who look at a job; "": nothing does. Watchers
  // are told when it changes.
  std::string StorageTrouble() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireLeases() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How much longer the worker may be silent before it is lost.
  absl::Duration LeaseLeft(const Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTimers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunSchedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MakeMissingPlans() ABSL_LOCKS_EXCLUDED(mu_);
  void ProbeStore() ABSL_LOCKS_EXCLUDED(mu_);
  void LookAtDisk() ABSL_LOCKS_EXCLUDED(mu_);

  // --- user plane ---
  v1::Job View(const Job& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The freshest durable picture of a job whose durable record is `job`.
  v1::Job ViewAfter(const JobPtr& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The earlier job of the same request, null when there is none, REQUEST_ID_REUSED for another payload.
  absl::StatusOr<JobPtr> FindReplay(const RequestRow& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The last record of the job of `latest` that is durable; null when its creation is not.
  JobPtr DurableRecord(const JobPtr& latest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<JobPtr> FindRecord(const std::string& uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For the workers there are, or for `only_worker` (kNotFound when there is none such).
  absl::StatusOr<v1::JobPlan> PlanFor(const v1::JobSpec& spec, const std::string& only_worker,
                                      std::map<std::string, std::shared_ptr<const v1::JobPlan>>* plans);

  // --- worker plane ---
  // OK when an agent of that identity and incarnation may have the worker id.
  absl::Status CheckClaim(const v1::RegisterRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyReports(Worker& worker, const google::protobuf::RepeatedPtrField<v1::TaskReport>& reports)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyReport(Worker& worker, const JobPtr& job, const v1::TaskReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndUnreported(const Worker& worker, int64_t incarnation,
                     const google::protobuf::RepeatedPtrField<v1::TaskReport>& reports)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndAttempt(const JobPtr& job, AttemptEnded ended, const std::string& actor)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::SyncResponse Desired(const Worker& worker, const v1::SyncRequest& request, std::string* digest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  v1::Worker WorkerView(const Worker& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One answer per member; `job` is the durable record, and the members are of its attempt.
  absl::Status AnswerMembers(const Job& job, const std::vector<GroupMember>& members,
                             v1::RendezvousResponse* response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AnnounceGroups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireGroups() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void AddGroups(const Job& job, const Groups& groups, v1::JobStatus* status);
  absl::Status CheckCheckpoint(const v1::CommitCheckpointRequest& request, const Job& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const CoordinatorOptions options_;
  Clock& clock_;
  StateStore& store_;
  Telemetry& telemetry_;
  const Planner planner_;
  const SpecChecker checker_;
  const std::string instance_id_;

  Mutex mu_;
  CondVar changed_;  // something became durable, a live picture changed, or draining began
  CondVar tick_;
  JobTable table_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Live> live_ ABSL_GUARDED_BY(mu_);  // by uid, for every job in table_
  std::map<std::string, Worker> workers_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  int64_t revision_ ABSL_GUARDED_BY(mu_) = 0;          // last given out
  int64_t durable_revision_ ABSL_GUARDED_BY(mu_) = 0;  // last committed
  int64_t live_generation_ ABSL_GUARDED_BY(mu_) = 0;   // grows with every change of a live picture
  std::deque<Pending> pending_ ABSL_GUARDED_BY(mu_);   // applied, not durable
  std::map<std::pair<std::string, std::string>, RequestRow> pending_requests_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> first_lost_ ABSL_GUARDED_BY(mu_);  // per epoch that ended: the first revision it lost
  std::string degraded_ ABSL_GUARDED_BY(mu_);             // why; "" when all is well
  std::string telemetry_trouble_ ABSL_GUARDED_BY(mu_);    // why metrics or logs are not stored; "": they are
  bool disk_full_ ABSL_GUARDED_BY(mu_) = false;
  int64_t next_look_nanos_ ABSL_GUARDED_BY(mu_) = 0;  // at the disk
  std::string trouble_told_ ABSL_GUARDED_BY(mu_);     // StorageTrouble when watchers were last woken for it
  int64_t next_probe_nanos_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<JobPtr> changes_ ABSL_GUARDED_BY(mu_);  // the last durable transitions, oldest first
  int64_t oldest_change_ ABSL_GUARDED_BY(mu_) = 0;   // a watch may resume from here or later
  int64_t outstanding_ ABSL_GUARDED_BY(mu_) = 0;     // writes whose callback has not run
  std::vector<std::pair<std::string, std::string>> missing_plans_ ABSL_GUARDED_BY(mu_);  // uid, worker
  int64_t schedule_nanos_ ABSL_GUARDED_BY(mu_) = 0;                                      // when it last ran
  bool schedule_needed_ ABSL_GUARDED_BY(mu_) = true;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  Thread ticker_;
  Thread plan_maker_;  // a plan may take seconds, which no lease should wait for
};

// What a worker offers to one job: its total capacity, and how fast it is.
v1::ResourceRequest LimitsOf(const Worker& worker);
// The class of workers that share plans.
std::string CapacityClass(const v1::ResourceRequest& limits);

}  // namespace strata::server

#endif  // SERVER_SERVICE_COORDINATOR_H_
