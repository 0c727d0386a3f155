// A coordinator in the test's own process, for agents that are processes of their own.
#ifndef WORKER_AGENT_FAKE_COORDINATOR_H_
#define WORKER_AGENT_FAKE_COORDINATOR_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "offload/comm/rendezvous_table.h"
#include "proto/strata/v1/worker.grpc.pb.h"

namespace strata {

// Waits for a condition of the outside world; false after a minute.
bool Eventually(const std::function<bool()>& condition);

// Keeps its state over Stop and Start, as a coordinator with a store does.
class FakeCoordinator : public v1::WorkerService::Service {
 public:
  ~FakeCoordinator() override { Stop(); }

  void Start();
  void Stop();
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void Want(const std::string& job, int attempt, v1::DesiredTask::Want want,
            const std::string& behaviour = "", int rank = 0);
  void Unwant(const std::string& job, int attempt) {
    MutexLock lock(mu_);
    desired_.erase({job, attempt, 0});
    changed_.SignalAll();
  }
  v1::TaskReport LastReport(const std::string& job, int attempt = 1, int rank = 0) {
    MutexLock lock(mu_);
    return reports_[{job, attempt, rank}];
  }
  bool WaitForPhase(const std::string& phase, const std::string& job, int attempt = 1) {
    return Eventually([&] { return LastReport(job, attempt).phase() == phase; });
  }
  bool WaitForStep(int64_t step, const std::string& job, int attempt = 1) {
    return Eventually([&] { return LastStep(job, attempt) >= step; });
  }
  int64_t LastStep(const std::string& job, int attempt = 1) {
    MutexLock lock(mu_);
    const auto& steps = metrics_[{job, attempt}];
    return steps.empty() ? 0 : steps.rbegin()->first;
  }
  std::map<int64_t, double> Losses(const std::string& job, int attempt = 1) {
    MutexLock lock(mu_);
    return metrics_[{job, attempt}];
  }
  std::string Log(const std::string& job, const std::string& stream, int attempt = 1, int rank = 0) {
    MutexLock lock(mu_);
    return logs_[{job, attempt, rank, stream}];
  }

  struct Behaviour {
    bool forget = true;  // answer `forget` to STOPPED reports
    bool ack_telemetry = true;
    int break_streams = 0;  // so many telemetry streams end unacknowledged after their first batch
    bool stale_commits = false;
    int failing_commits = 0;     // so many commits get UNAVAILABLE first
    int failing_rendezvous = 0;  // ... and so many Rendezvous
    int orphan_seconds = 3600;
    int lease_millis = 3000;
    bool refuse_register = false;
    std::string register_reason;  // Register is refused with it, and with retry_seconds
    int retry_seconds = 0;
  };
  void Configure(const std::function<void(Behaviour&)>& change) {
    MutexLock lock(mu_);
    change(behaviour_);
  }
  std::vector<v1::RegisterRequest> registers() {
    MutexLock lock(mu_);
    return registers_;
  }
  int refused_registers() {
    MutexLock lock(mu_);
    return refused_registers_;
  }
  std::vector<v1::CommitCheckpointRequest> commits() {
    MutexLock lock(mu_);
    return commits_;
  }
  int duplicates() {
    MutexLock lock(mu_);
    return duplicates_;
  }
  int syncs() {
    MutexLock lock(mu_);
    return syncs_;
  }
  void ForgetWorkers() {
    MutexLock lock(mu_);
    known_.clear();
  }

  grpc::Status Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override;

  grpc::Status Sync(grpc::ServerContext* context, const v1::SyncRequest* request,
                    v1::SyncResponse* response) override;

  grpc::Status PushTelemetry(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::TelemetryAck, v1::TelemetryBatch>* stream) override;

  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint* response) override;

  grpc::Status Rendezvous(grpc::ServerContext* context, const v1::RendezvousRequest* request,
                          v1::RendezvousResponse* response) override;

 private:
  using Key = std::tuple<std::string, int, int>;
  using StreamKey = std::tuple<std::string, int, int, std::string>;  // job, attempt, rank, stream

  // Whether the worker has what it should have: level-triggered, so no answer that gets lost is missed.
  bool Agrees(const std::map<Key, v1::TaskReport>& reported) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Store(const v1::TelemetryBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Behaviour behaviour_ ABSL_GUARDED_BY(mu_);
  std::map<Key, v1::DesiredTask> desired_ ABSL_GUARDED_BY(mu_);
  std::map<Key, v1::TaskReport> reports_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, int>, std::map<int64_t, double>> metrics_ ABSL_GUARDED_BY(mu_);
  std::map<StreamKey, std::string> logs_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::RegisterRequest> registers_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::CommitCheckpointRequest> commits_ ABSL_GUARDED_BY(mu_);
  std::map<std::pair<std::string, int>, RendezvousTable> groups_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> known_ ABSL_GUARDED_BY(mu_);
  int duplicates_ ABSL_GUARDED_BY(mu_) = 0;
  int syncs_ ABSL_GUARDED_BY(mu_) = 0;
  int refused_registers_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace strata

#endif  // WORKER_AGENT_FAKE_COORDINATOR_H_
