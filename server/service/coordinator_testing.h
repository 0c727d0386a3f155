// A coordinator with a fake clock, a store that can be told to fail, and workers played by the test.
#ifndef SERVER_SERVICE_COORDINATOR_TESTING_H_
#define SERVER_SERVICE_COORDINATOR_TESTING_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "server/service/budget_planner.h"
#include "server/service/coordinator.h"
#include "server/store/memory_state_store.h"

namespace strata::server {

inline constexpr int64_t kMiB = 1 << 20;

inline v1::JobSpec Spec(int64_t device = 10 * kMiB) {
  v1::JobSpec spec;
  spec.set_name("Test job");
  spec.mutable_training()->set_steps(100);
  spec.mutable_training()->set_global_batch(4);
  spec.mutable_data()->set_seq_len(8);
  spec.mutable_memory()->set_device(device);
  spec.mutable_memory()->set_host(10 * kMiB);
  spec.mutable_memory()->set_nvme(10 * kMiB);
  spec.mutable_scheduling()->set_max_failures(3);
  spec.mutable_scheduling()->set_priority(50);
  spec.mutable_checkpoint()->set_keep_last(2);
  return spec;
}

inline v1::Capacity CapacityOf(int64_t mib) {
  v1::Capacity capacity;
  capacity.set_device_bytes(mib * kMiB);
  capacity.set_host_bytes(mib * kMiB);
  capacity.add_nvme()->set_bytes(mib * kMiB);
  return capacity;
}

class CoordinatorTest : public ::testing::Test {
 protected:
  CoordinatorTest() {
    static std::atomic<int> counter = 0;
    const std::string folder = absl::StrCat(::testing::TempDir(), "/coordinator", getpid(), ".", ++counter);
    telemetry_ = *Telemetry::Open(folder, 4 * kMiB);
    Start();
  }
  ~CoordinatorTest() override {
    coordinator_.reset();
    EXPECT_TRUE(telemetry_ != nullptr);
  }

  void Start() {
    coordinator_.reset();
    CoordinatorOptions options;
    options.run_ticker = false;
    options.checkpoint_root = "/ckpt";
    options.free_bytes = [this] { return free_bytes_; };
    coordinator_ =
        *Coordinator::Create(options, clock_, store_, *telemetry_, PlanByBudget, [](v1::JobSpec& spec) {
          std::vector<SpecProblem> problems;
          if (spec.training().steps() <= 0) problems.push_back({"training.steps", "must be above 0"});
          return problems;
        });
  }

  absl::StatusOr<v1::Job> Create(const std::string& id, v1::JobSpec spec = Spec(),
                                 const std::string& request_id = "") {
    v1::CreateJobRequest request;
    request.set_job_id(id);
    request.set_request_id(request_id);
    *request.mutable_spec() = std::move(spec);
    return coordinator_->CreateJob(request, CallContext());
  }
  v1::Job Get(const std::string& id) {
    coordinator_->Flush();
    return *coordinator_->GetJob(id);
  }
  v1::Job::State StateOf(const std::string& id) { return Get(id).status().state(); }

  absl::StatusOr<v1::RegisterResponse> Register(const std::string& id, int64_t incarnation, int64_t mib = 100,
                                                const std::vector<v1::TaskReport>& running = {},
                                                const std::string& identity = "") {
    v1::RegisterRequest request;
    request.set_identity(identity);
    request.set_worker_id(id);
    request.set_incarnation(incarnation);
    *request.mutable_capacity() = CapacityOf(mib);
    request.set_checkpoint_root("/ckpt");
    for (const v1::TaskReport& report : running) *request.add_running() = report;
    return coordinator_->Register(request, CallContext());
  }
  v1::SyncResponse Sync(const std::string& id, int64_t incarnation,
                        const std::vector<v1::TaskReport>& tasks = {}, const std::string& identity = "") {
    v1::SyncRequest request;
    request.set_identity(identity);
    request.set_worker(id);
    request.set_incarnation(incarnation);
    for (const v1::TaskReport& report : tasks) *request.add_tasks() = report;
    return *coordinator_->Sync(request, CallContext());
  }
  static v1::TaskReport Report(const v1::Job& job, const std::string& phase, int64_t step = 0) {
    v1::TaskReport report;
    report.set_job_uid(job.uid());
    report.set_attempt(job.status().attempt());
    report.set_phase(phase);
    report.set_step(step);
    report.set_tokens_per_second(320);
    return report;
  }
  static v1::TaskReport Stopped(const v1::Job& job) {
    v1::TaskReport report = Report(job, "STOPPED");
    report.set_processes_gone(true);
    report.set_scratch_removed(true);
    return report;
  }
  static v1::TaskReport Finished(const v1::Job& job) {
    v1::TaskReport report = Stopped(job);
    report.set_finished(true);
    report.mutable_result()->set_train_loss(2.5);
    return report;
  }
  absl::StatusOr<v1::Checkpoint> Commit(const v1::Job& job, int64_t step, const std::string& digest = "d") {
    v1::CommitCheckpointRequest request;
    request.set_job_uid(job.uid());
    request.set_attempt(job.status().attempt());
    request.set_step(step);
    request.set_path(absl::StrCat("/ckpt/", job.uid(), "/", step));
    request.set_digest(digest);
    request.add_files()->set_path("weights.bin");
    return coordinator_->CommitCheckpoint(request, CallContext());
  }
  void Advance(absl::Duration by) {
    clock_.Advance(by);
    coordinator_->Tick();
  }

  FakeClock clock_;
  int64_t free_bytes_ = INT64_MAX;
  MemoryStateStore store_;
  std::unique_ptr<Telemetry> telemetry_;
  std::unique_ptr<Coordinator> coordinator_;
};

}  // namespace strata::server

#endif  // SERVER_SERVICE_COORDINATOR_TESTING_H_
