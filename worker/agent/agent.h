// Agent: this machine's side of the worker protocol. Reports all it has, and makes it what the coordinator
// answers it should have.
//
// Threads: Run's caller waits; the sync thread owns the set of tasks and talks Register and Sync; the
// telemetry sender and every task have their own (telemetry_sender.h, task.h). A busy task never delays a
// Sync, so load never loses a lease.
//
// Lease: counted from when the answered Register or Sync was *sent*, so it ends here before it ends at the
// coordinator. When it ends the coordinator is away or gave this worker up: trainers go on (their commits
// need the coordinator anyway) until it answers, and a task it then does not want is killed; or until the
// orphan timeout has passed since the last answer, when they are killed without a commit.
//
// Worker id: belongs to one agent at a time, which the coordinator knows by the identity in the state folder.
// An agent that starts while another one has the id asks again until that one's lease is over. One that had
// the id and finds it taken was given up meanwhile: it kills its trainers and ends.
//
// Shutdown (RequestStop): 1. no new tasks; 2. tasks checkpoint (where their spec says so) and stop; 3. their
// ends are reported until recorded, at most 5 s; 4. telemetry is flushed, at most 3 s; 5. threads are joined.
#ifndef WORKER_AGENT_AGENT_H_
#define WORKER_AGENT_AGENT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/thread.h"
#include "proto/strata/v1/worker.pb.h"
#include "worker/agent/coordinator.h"
#include "worker/agent/machine.h"
#include "worker/agent/options.h"
#include "worker/agent/process.h"
#include "worker/agent/recalibration.h"
#include "worker/agent/state_dir.h"
#include "worker/agent/task.h"
#include "worker/agent/telemetry_buffer.h"
#include "worker/agent/telemetry_sender.h"

namespace strata {

class Agent {
 public:
  // Prepares folders, takes the state folder, ends what an earlier incarnation left (which may wait for
  // processes to go), inspects the machine. Makes this process a child subreaper. `options` must be resolved.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(AgentOptions options);
  ~Agent();

  // Serves until RequestStop, then shuts down and returns OK. An error when the coordinator refuses this
  // worker for good at the first Register; kAborted when another agent has taken its place. Call once.
  absl::Status Run();

  // The first call stops gracefully, a second one kills what still runs. Any thread.
  void RequestStop();

 private:
  Agent(AgentOptions options, std::unique_ptr<StateDir> state, std::unique_ptr<WearLog> wear,
        Machine machine);

  void SyncLoop();
  bool ShutdownDone();
  // Waits for `pause`, a stop request that ApplyStopRequests has not seen, or (if `for_changes`) something to
  // report.
  void Pause(absl::Duration pause, bool for_changes);
  // After a failure: waits for `pause` or a stop request; where the connection is what failed, only until
  // it stands again.
  void PauseAfterFailure(absl::Duration pause);
  void RefreshCapacity();
  void SaveWear();
  absl::Status RegisterOnce();
  absl::Status SyncOnce();
  void Apply(const v1::SyncResponse& response);
  void ApplyDesired(const v1::DesiredTask& desired);
  void Forget(const v1::TaskRef& ref);
  void Refuse(const v1::DesiredTask& desired, v1::FailureCause cause, const std::string& why);
  // Turns ended tasks into reports.
  void CollectEnded();
  void ApplyStopRequests();
  void CheckLease();
  std::vector<v1::TaskReport> Reports();
  void Answered(int64_t sent_nanos, const google::protobuf::Duration& lease_ttl);
  void OnChange();

  const AgentOptions options_;
  const std::unique_ptr<StateDir> state_;
  const std::unique_ptr<WearLog> wear_;
  const std::unique_ptr<Coordinator> coordinator_;
  Spawner spawner_;
  TelemetryBuffer telemetry_;
  TaskEnvironment environment_;

  // Of the sync thread only (and of Create before it).
  v1::Capacity capacity_;
  const std::vector<double> nvme_weights_;
  const std::optional<GpuMemory> gpu_;
  MemoryLimit memory_;
  int64_t wear_saved_ = 0;

  std::map<TaskKey, std::unique_ptr<Task>> tasks_;
  std::map<TaskKey, v1::TaskReport> ended_;  // reported until forgotten
  std::map<TaskKey, v1::TaskReport>
      waiting_;         // wanted, but an older attempt of the same rank, or a measurement, has not ended yet
  std::string worker_;  // as the coordinator names it; "" before the first Register
  bool registered_ = false;
  absl::Duration lease_ttl_ = absl::Seconds(30);
  absl::Duration orphan_timeout_ = absl::Hours(1);
  absl::Duration next_sync_;
  int64_t last_answer_sent_ = 0;
  bool lease_ended_ = false;
  int64_t report_deadline_ = 0;  // of shutdown; 0: tasks still run
  int stops_seen_ = 0;           // stop requests that ApplyStopRequests has acted on
  bool told_draining_ = false;   // the last answered Sync said that this worker is stopping
  absl::Status fatal_;           // read by Run after the thread ended

  Mutex mu_;
  CondVar wake_;
  int stop_requests_ ABSL_GUARDED_BY(mu_) = 0;
  bool dirty_ ABSL_GUARDED_BY(mu_) = false;  // something to report since the last request was built
  Cancellation* syncing_ ABSL_GUARDED_BY(mu_) = nullptr;  // the Sync in flight

  std::unique_ptr<TelemetrySender> sender_;
  std::unique_ptr<Recalibration> recalibration_;
  Thread sync_thread_;
};

}  // namespace strata

#endif  // WORKER_AGENT_AGENT_H_
