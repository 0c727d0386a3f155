// The real strata_worker, real processes and real gRPC against a coordinator that lives in the test.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/rendezvous/rendezvous.h"
#include "proto/strata/v1/worker.grpc.pb.h"
#include "worker/agent/leftovers.h"
#include "worker/agent/process.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPatienceNanos = 60'000'000'000;  // sanitizers on a busy machine; never waited for in full

// Waits for a condition of the outside world.
bool Eventually(const std::function<bool()>& condition) {
  const int64_t deadline = Clock::Real().MonotonicNanos() + kPatienceNanos;
  while (!condition()) {
    if (Clock::Real().MonotonicNanos() > deadline) return false;
    usleep(2000);
  }
  return true;
}

using StreamKey = std::tuple<std::string, int, int, std::string>;  // job, attempt, rank, stream

// Keeps its state over Stop and Start, as a coordinator with a store does.
class FakeCoordinator : public v1::WorkerService::Service {
 public:
  ~FakeCoordinator() override { Stop(); }

  void Start() {
    {
      MutexLock lock(mu_);
      stopping_ = false;
      groups_.clear();  // the one thing that no coordinator stores
    }
    // A port that was just given up may linger for a moment.
    ASSERT_TRUE(Eventually([&] {
      grpc::ServerBuilder builder;
      // Else the kernel hands connections also to the old listener, as long as gRPC has not closed it.
      builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
      builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(), &port_);
      builder.RegisterService(this);
      server_ = builder.BuildAndStart();
      return server_ != nullptr;
    }));
  }
  void Stop() {
    if (server_ == nullptr) return;
    {
      MutexLock lock(mu_);
      stopping_ = true;
      changed_.SignalAll();
    }
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    server_.reset();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void Want(const std::string& job, int attempt, v1::DesiredTask::Want want,
            const std::string& behaviour = "", int rank = 0) {
    MutexLock lock(mu_);
    v1::DesiredTask& task = desired_[{job, attempt, rank}];
    task.set_job_uid(job);
    task.set_attempt(attempt);
    task.set_rank(rank);
    task.set_want(want);
    if (!behaviour.empty()) task.set_job_name(behaviour);
    task.mutable_budget()->set_host_bytes(123);
    changed_.SignalAll();
  }
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
  };
  void Configure(const std::function<void(Behaviour&)>& change) {
    MutexLock lock(mu_);
    change(behaviour_);
  }
  std::vector<v1::RegisterRequest> registers() {
    MutexLock lock(mu_);
    return registers_;
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
                        v1::RegisterResponse* response) override {
    MutexLock lock(mu_);
    if (behaviour_.refuse_register) return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "too old");
    registers_.push_back(*request);
    known_.insert(request->worker_id());
    response->set_worker("workers/" + request->worker_id());
    response->mutable_lease_ttl()->set_seconds(behaviour_.lease_millis / 1000);
    response->mutable_orphan_timeout()->set_seconds(behaviour_.orphan_seconds);
    return grpc::Status::OK;
  }

  grpc::Status Sync(grpc::ServerContext* context, const v1::SyncRequest* request,
                    v1::SyncResponse* response) override {
    MutexLock lock(mu_);
    ++syncs_;
    if (known_.empty()) {
      response->set_unknown_worker(true);
      return grpc::Status::OK;
    }
    bool news = false;
    std::map<Key, v1::TaskReport> reported;
    for (const v1::TaskReport& report : request->tasks()) {
      const Key key{report.job_uid(), report.attempt(), report.rank()};
      reports_[key] = report;
      reported[key] = report;
      if (report.phase() == "STOPPED" && behaviour_.forget) {
        EXPECT_TRUE(report.processes_gone());
        EXPECT_TRUE(report.scratch_removed());
        desired_.erase(key);
        v1::TaskRef& ref = *response->add_forget();
        ref.set_job_uid(report.job_uid());
        ref.set_attempt(report.attempt());
        news = true;
      }
    }
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::seconds(request->max_wait().seconds()) +
                       std::chrono::nanoseconds(request->max_wait().nanos());
    while (!news && Agrees(reported) && !stopping_ && !context->IsCancelled() &&
           std::chrono::steady_clock::now() < until) {
      changed_.WaitFor(mu_, std::chrono::milliseconds(20));
    }
    // A call that the worker gave up has told it nothing.
    if (stopping_ || context->IsCancelled()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping");
    for (const auto& [key, task] : desired_) *response->add_desired() = task;
    response->mutable_lease_ttl()->set_seconds(behaviour_.lease_millis / 1000);
    return grpc::Status::OK;
  }

  grpc::Status PushTelemetry(
      grpc::ServerContext*, grpc::ServerReaderWriter<v1::TelemetryAck, v1::TelemetryBatch>* stream) override {
    v1::TelemetryBatch batch;
    int64_t last_sequence = 0;
    while (stream->Read(&batch)) {
      EXPECT_GT(batch.sequence(), last_sequence);
      last_sequence = batch.sequence();
      v1::TelemetryAck ack;
      ack.set_sequence(batch.sequence());
      bool reply;
      {
        MutexLock lock(mu_);
        Store(batch);
        if (behaviour_.break_streams > 0) {
          --behaviour_.break_streams;
          return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken on purpose");
        }
        reply = behaviour_.ack_telemetry;
      }
      if (reply && !stream->Write(ack)) break;
    }
    return grpc::Status::OK;
  }

  grpc::Status CommitCheckpoint(grpc::ServerContext*, const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint* response) override {
    MutexLock lock(mu_);
    if (behaviour_.failing_commits > 0) {
      --behaviour_.failing_commits;
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "try again");
    }
    if (behaviour_.stale_commits) return Stale();
    // What a commit covers must be here already.
    EXPECT_TRUE((metrics_[{request->job_uid(), request->attempt()}].contains(request->step())));
    commits_.push_back(*request);
    response->set_step(request->step());
    return grpc::Status::OK;
  }

  grpc::Status Rendezvous(grpc::ServerContext* context, const v1::RendezvousRequest* request,
                          v1::RendezvousResponse* response) override {
    EXPECT_EQ(CheckMembers(*request).field, "") << CheckMembers(*request).description;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(request->max_wait().seconds());
    MutexLock lock(mu_);
    if (behaviour_.failing_rendezvous > 0) {
      --behaviour_.failing_rendezvous;
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "try again");
    }
    if (behaviour_.stale_commits) return Stale();
    RendezvousTable& table = groups_[{request->job_uid(), request->attempt()}];
    const auto members = MembersFromProto(*request, Clock::Real().MonotonicNanos());
    while (true) {
      response->clear_groups();
      bool news = false;
      for (const GroupMember& member : members) EXPECT_TRUE(table.Report(member).ok());
      for (int i = 0; i < request->members_size(); ++i) {
        *response->add_groups() = ToProto(table.Answer(members[i]));
        news = news ||
               response->groups(i).state() > std::max(request->members(i).known(), v1::GroupState::FORMING);
      }
      if (stopping_ || context->IsCancelled()) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stopping");
      if (news || std::chrono::steady_clock::now() >= until) return grpc::Status::OK;
      changed_.WaitFor(mu_, std::chrono::milliseconds(20));
    }
  }

 private:
  using Key = std::tuple<std::string, int, int>;

  static grpc::Status Stale() {
    google::rpc::ErrorInfo info;
    info.set_reason("STALE_ATTEMPT");
    info.set_domain("strata");
    google::rpc::Status details;
    details.add_details()->PackFrom(info);
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "attempt 1 is fenced",
                        details.SerializeAsString());
  }

  // Whether the worker has what it should have: level-triggered, so no answer that gets lost is missed.
  bool Agrees(const std::map<Key, v1::TaskReport>& reported) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const auto& [key, task] : desired_) {
      const auto report = reported.find(key);
      if (report == reported.end()) return false;
      if (task.want() > v1::DesiredTask::RUN && !absl::StartsWith(report->second.phase(), "STOP"))
        return false;
    }
    for (const auto& [key, report] : reported) {
      if (!desired_.contains(key) && !absl::StartsWith(report.phase(), "STOP")) return false;
    }
    return true;
  }

  void Store(const v1::TelemetryBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const v1::MetricRow& row : batch.metrics()) {
      auto& steps = metrics_[{row.job_uid(), row.attempt()}];
      if (!steps.emplace(row.step(), row.values().at("loss")).second) ++duplicates_;
    }
    for (const v1::LogChunk& chunk : batch.logs()) {
      EXPECT_LE(chunk.data().size(), 64u << 10);
      std::string& text =
          logs_[{chunk.job_uid(), chunk.at().attempt(), chunk.at().rank(), chunk.at().stream()}];
      const size_t offset = static_cast<size_t>(chunk.at().offset());
      if (offset > text.size()) text.resize(offset, '?');  // a gap
      text.replace(std::min(offset, text.size()), chunk.data().size(), chunk.data());
    }
  }

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
};

std::string Runfile(const std::string& path) {
  const char* root = std::getenv("TEST_SRCDIR");
  return absl::StrCat(root == nullptr ? "." : root, "/strata/", path);
}

// One measurement of this machine is enough for all agents of this test.
std::string CalibrationOfAll() { return ::testing::TempDir() + "/calibration.json"; }
void CopyCalibration(const std::string& from, const std::string& to) {
  if (const auto text = ReadFile(from, 1 << 20); text.ok()) (void)WriteFileDurably(to, *text);
}

class AgentProcess {
 public:
  AgentProcess(const std::string& address, std::string folder, std::vector<std::string> more = {})
      : state_dir_(folder + "/state"), nvme_(folder + "/nvme"), log_(folder + "/agent.log") {
    const bool has_trainer = std::any_of(more.begin(), more.end(), [](const std::string& flag) {
      return absl::StartsWith(flag, "--trainer=");
    });
    std::filesystem::create_directories(state_dir_);
    CopyCalibration(CalibrationOfAll(), state_dir_ + "/calibration.json");
    if (!has_trainer) more.push_back("--trainer=" + Runfile("worker/trainer_stub_for_tests/trainer_stub"));
    std::vector<std::string> args = {Runfile("worker/strata_worker"),
                                     "--server=" + address,
                                     "--worker-id=w1",
                                     "--state-dir=" + state_dir_,
                                     "--nvme-path=" + nvme_,
                                     "--checkpoint-root=" + folder + "/checkpoints",
                                     "--device-bytes=64MiB",
                                     "--host-bytes=64MiB",
                                     "--nvme-bytes=64MiB"};
    args.insert(args.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int log = open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
      dup2(log, 2);
      execv(argv[0], argv.data());
      _exit(127);
    }
  }
  ~AgentProcess() {
    CopyCalibration(state_dir_ + "/calibration.json", CalibrationOfAll());
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      Wait();
    }
    if (::testing::Test::HasFailure()) {
      auto text = ReadFile(log_, 64 << 20);
      if (text.ok()) std::printf("--- agent log ---\n%s\n", text->c_str());
    }
  }

  void Kill(int signal_number) { kill(pid_, signal_number); }
  // The wait status.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  // Living processes started by this agent's tasks.
  std::vector<pid_t> Trainers() const {
    std::vector<pid_t> pids;
    for (const ProcessStat& process : ListProcesses()) {
      auto environment = ReadFile(absl::StrCat("/proc/", process.identity.pid, "/environ"), 1 << 20);
      if (process.zombie || !environment.ok()) continue;
      if (absl::StrContains(*environment, absl::StrCat(kStateDirVariable, "=", state_dir_))) {
        pids.push_back(process.identity.pid);
      }
    }
    return pids;
  }
  std::vector<std::string> Scratch() const { return *ListDirectory(nvme_); }
  std::vector<std::string> Records() const { return *ListDirectory(state_dir_ + "/tasks"); }

 private:
  const std::string state_dir_, nvme_, log_;
  pid_t pid_ = -1;
};

class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // As the agent writes it: its processes are found by this text.
    folder_ =
        (fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name())
            .lexically_normal()
            .string();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    coordinator_.Start();
  }

  std::unique_ptr<AgentProcess> StartAgent(std::vector<std::string> more = {}) {
    return std::make_unique<AgentProcess>(coordinator_.address(), folder_, std::move(more));
  }

  void ExpectNothingLeft(const AgentProcess& agent) {
    EXPECT_TRUE(agent.Trainers().empty());
    EXPECT_TRUE(agent.Scratch().empty());
    EXPECT_TRUE(Eventually([&] { return agent.Records().empty(); }));
  }

  FakeCoordinator coordinator_;
  std::string folder_;
};

TEST_F(AgentTest, RunsATaskToItsEndAndLeavesNothing) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=20,commit_every=8,log_bytes=10");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const v1::TaskReport report = coordinator_.LastReport("job");
  EXPECT_TRUE(report.finished());
  EXPECT_EQ(report.result().train_loss(), 0.5);
  EXPECT_FALSE(report.has_failure());
  EXPECT_EQ(report.step(), 20);
  EXPECT_EQ(report.loss(), 0.25);
  ASSERT_EQ(report.ladder_size(), 1);
  EXPECT_EQ(report.ladder(0).chosen(), "stub");
  // The end is reported only after the telemetry: all of it must be here now.
  EXPECT_EQ(coordinator_.Losses("job").size(), 20u);
  EXPECT_EQ(coordinator_.Log("job", "stdout").size(), std::string("begin job\n").size() + 200);
  EXPECT_EQ(coordinator_.Log("job", "stderr"), "stub error text \xff\n");
  ASSERT_EQ(coordinator_.commits().size(), 3u);
  EXPECT_EQ(coordinator_.commits()[2].step(), 20);
  EXPECT_EQ(coordinator_.commits()[2].job_uid(), "job");
  EXPECT_FALSE(coordinator_.commits()[2].request_id().empty());
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, RegistersWithWhatTheMachineHas) {
  auto agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  const v1::RegisterRequest request = coordinator_.registers()[0];
  EXPECT_EQ(request.worker_id(), "w1");
  EXPECT_GT(request.incarnation(), 0);
  EXPECT_EQ(request.capacity().device_bytes(), 64 << 20);
  EXPECT_GT(request.capacity().cpus(), 0);
  ASSERT_EQ(request.capacity().nvme_size(), 1);
  EXPECT_FALSE(request.capacity().nvme(0).fs_type().empty());
  EXPECT_GT(request.capacity().nvme(0).free_bytes(), 0);
  ASSERT_EQ(request.capacity().ladder_size(), 7);  // without a GPU, no memory registered with one
  EXPECT_EQ(request.capacity().ladder(0).rung(), "io_uring");
}

TEST_F(AgentTest, StripesScratchOverSeveralPathsAndRemovesItFromEach) {
  const std::string second = folder_ + "/second drive";
  auto agent = StartAgent({"--nvme-path=" + second, "--nvme-weight=3", "--nvme-weight=1"});
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  const v1::Capacity capacity = coordinator_.registers()[0].capacity();
  ASSERT_EQ(capacity.nvme_size(), 2);
  EXPECT_EQ(capacity.nvme(0).bytes(), 48 << 20);
  EXPECT_EQ(capacity.nvme(1).bytes(), 16 << 20);
  EXPECT_EQ(capacity.nvme(1).path(), second);
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForPhase("STEPPING", "job"));
  EXPECT_EQ(agent->Scratch().size(), 1u);
  EXPECT_EQ(ListDirectory(second)->size(), 1u);
  coordinator_.Want("job", 1, v1::DesiredTask::KILL, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(ListDirectory(second)->empty());
  ExpectNothingLeft(*agent);
  // What the job wrote is counted per path, and known to the next life of the agent.
  agent->Kill(SIGTERM);
  agent->Wait();
  const size_t registers = coordinator_.registers().size();
  agent = StartAgent({"--nvme-path=" + second, "--nvme-weight=3", "--nvme-weight=1"});
  ASSERT_TRUE(Eventually([&] { return coordinator_.registers().size() > registers; }));
  const v1::Capacity later = coordinator_.registers().back().capacity();
  EXPECT_EQ(later.nvme(0).lifetime_written_bytes(), 1000);
  EXPECT_EQ(later.nvme(1).lifetime_written_bytes(), 2000);
}

TEST_F(AgentTest, ReportsTheEndUntilItIsForgotten) {
  coordinator_.Configure([](auto& b) { b.forget = false; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const int syncs = coordinator_.syncs();
  coordinator_.Want("other", 1, v1::DesiredTask::RUN, "steps=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "other"));
  ASSERT_TRUE(Eventually([&] { return coordinator_.syncs() > syncs + 2; }));
  EXPECT_EQ(coordinator_.LastReport("job").phase(), "STOPPED");
  EXPECT_EQ(agent->Records().size(), 2u);
  coordinator_.Configure([](auto& b) { b.forget = true; });
  coordinator_.Want("third", 1, v1::DesiredTask::RUN, "steps=1");
  EXPECT_TRUE(Eventually([&] { return agent->Records().empty(); }));
}

TEST_F(AgentTest, CrashIsReportedWithSignalAndStderr) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "crash_at=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const v1::Failure failure = coordinator_.LastReport("job").failure();
  EXPECT_EQ(failure.cause(), v1::TRAINER_CRASHED);
  EXPECT_EQ(failure.signal(), SIGSEGV);
  EXPECT_EQ(failure.log_tail(), "stub error text ?\n");
  EXPECT_EQ(failure.worker(), "w1");
  EXPECT_EQ(coordinator_.Losses("job").size(), 2u);
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, ExitCodeWithoutAWordIsACrash) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "exit_at=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::TRAINER_CRASHED);
  EXPECT_EQ(coordinator_.LastReport("job").failure().exit_code(), 7);
}

TEST_F(AgentTest, FailureOfTheTrainerKeepsItsCause) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "fail_at=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::INVALID_DATA);
  EXPECT_EQ(coordinator_.LastReport("job").failure().message(), "the stub was told to fail");
}

TEST_F(AgentTest, BytesThatAreNoFrameEndTheTrainer) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,garbage_at=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::TRAINER_CRASHED);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), "frame"));
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, TrainerKilledFromOutsideIsReportedAndItsChildrenGoWithIt) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,child=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  std::vector<pid_t> trainers = agent->Trainers();
  ASSERT_EQ(trainers.size(), 2u);
  for (const pid_t pid : trainers) {
    if (getpgid(pid) == pid) kill(pid, SIGKILL);  // the leader only
  }
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), "out-of-memory"));
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, KilledAgentTakesItsTrainersWithItAndTheNextOneTellsTheTruth) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  ASSERT_EQ(agent->Trainers().size(), 1u);
  agent->Kill(SIGKILL);
  agent->Wait();
  EXPECT_TRUE(Eventually([&] { return agent->Trainers().empty(); }));
  EXPECT_FALSE(agent->Scratch().empty());

  auto next = StartAgent();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  const auto registers = coordinator_.registers();
  ASSERT_EQ(registers.size(), 2u);
  EXPECT_GT(registers[1].incarnation(), registers[0].incarnation());
  ASSERT_EQ(registers[1].running_size(), 1);
  EXPECT_EQ(registers[1].running(0).phase(), "STOPPED");
  EXPECT_EQ(registers[1].running(0).failure().cause(), v1::WORKER_LOST);
  ExpectNothingLeft(*next);
  // The same job again, as its next attempt.
  coordinator_.Want("job", 2, v1::DesiredTask::RUN, "steps=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job", 2));
  EXPECT_TRUE(coordinator_.LastReport("job", 2).finished());
}

TEST_F(AgentTest, EndThatTheCoordinatorDidNotHearSurvivesTheAgent) {
  coordinator_.Configure([](auto& b) { b.forget = false; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  agent->Kill(SIGKILL);
  agent->Wait();
  auto next = StartAgent();
  ASSERT_TRUE(Eventually([&] { return coordinator_.registers().size() == 2; }));
  const v1::RegisterRequest request = coordinator_.registers()[1];
  ASSERT_EQ(request.running_size(), 1);
  EXPECT_TRUE(request.running(0).finished());
  EXPECT_EQ(request.running(0).result().train_loss(), 0.5);
}

TEST_F(AgentTest, StopIsGracefulAndNoFailure) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_FALSE(coordinator_.LastReport("job").finished());
  EXPECT_FALSE(coordinator_.LastReport("job").has_failure());
  EXPECT_TRUE(coordinator_.commits().empty());
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, CheckpointAndStopCommitsFirst) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::CHECKPOINT_AND_STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.commits().size(), 1u);
  EXPECT_FALSE(coordinator_.LastReport("job").has_failure());
}

TEST_F(AgentTest, TrainerThatIgnoresStopGetsSigterm) {
  auto agent = StartAgent({"--stop-grace=0.2"});
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,ignore_stop=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGTERM);
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::FAILURE_CAUSE_UNSPECIFIED);
}

TEST_F(AgentTest, KillEndsATrainerThatTakesNoPart) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "hang_at=3,ignore_term=1,ignore_stop=1,child=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Want("job", 1, v1::DesiredTask::KILL);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, TaskThatIsNoLongerDesiredIsKilled) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Unwant("job", 1);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, NextAttemptStartsOnlyWhenTheOldOneIsGone) {
  coordinator_.Configure([](auto& b) { b.forget = false; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Unwant("job", 1);
  coordinator_.Want("job", 2, v1::DesiredTask::RUN, "steps=3");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job", 2));
  EXPECT_EQ(coordinator_.LastReport("job", 1).phase(), "STOPPED");
  EXPECT_TRUE(coordinator_.LastReport("job", 2).finished());
}

TEST_F(AgentTest, StopOfATaskThatNeverStartedIsAnswered) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::STOP);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_FALSE(coordinator_.LastReport("job").has_failure());
}

TEST_F(AgentTest, UidThatCouldLeaveTheScratchFolderIsRefused) {
  auto agent = StartAgent();
  coordinator_.Want("../escape", 1, v1::DesiredTask::RUN, "steps=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "../escape"));
  EXPECT_EQ(coordinator_.LastReport("../escape").failure().cause(), v1::COORDINATOR_ERROR);
}

TEST_F(AgentTest, TrainsOnWhileTheCoordinatorIsAwayAndLosesNoStep) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=400,step_us=5000,commit_every=100");
  ASSERT_TRUE(coordinator_.WaitForStep(5, "job"));
  const std::vector<pid_t> before = agent->Trainers();
  coordinator_.Stop();
  coordinator_.ForgetWorkers();
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(coordinator_.LastReport("job").finished());
  EXPECT_EQ(coordinator_.Losses("job").size(), 400u);
  EXPECT_EQ(coordinator_.commits().size(), 4u);
  ASSERT_EQ(before.size(), 1u);
  const auto registers = coordinator_.registers();
  ASSERT_GE(registers.size(), 2u);
  EXPECT_EQ(registers.back().incarnation(), registers.front().incarnation());
  ASSERT_EQ(registers[1].running_size(), 1);
  // It may have come to a checkpoint, which waits for the coordinator; it has not ended.
  EXPECT_NE(registers[1].running(0).phase(), "STOPPED");
}

TEST_F(AgentTest, OrphanTimeoutKillsAndIsReportedLater) {
  coordinator_.Configure([](auto& b) {
    b.orphan_seconds = 1;
    b.lease_millis = 1000;
  });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  coordinator_.Stop();
  ASSERT_TRUE(Eventually([&] { return agent->Trainers().empty(); }));
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::LEASE_EXPIRED);
}

TEST_F(AgentTest, CommitIsTriedAgainUntilItIsTaken) {
  coordinator_.Configure([](auto& b) { b.failing_commits = 3; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=4,commit_every=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(coordinator_.LastReport("job").finished());
  EXPECT_EQ(coordinator_.commits().size(), 2u);
}

TEST_F(AgentTest, StaleAttemptIsToldToTheTrainer) {
  coordinator_.Configure([](auto& b) { b.stale_commits = true; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=4,commit_every=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_FALSE(coordinator_.LastReport("job").finished());
  EXPECT_EQ(coordinator_.LastReport("job").failure().message(),
            "commit refused: STALE_ATTEMPT: attempt 1 is fenced");
}

TEST_F(AgentTest, RanksMeetThroughTheirAgentThoughTheCoordinatorRestartsInTheMiddle) {
  coordinator_.Configure([](auto& behaviour) { behaviour.failing_rendezvous = 2; });
  auto agent = StartAgent();
  const auto met = [&](int rank) { return coordinator_.Log("job", "stdout", 1, rank); };
  for (const int rank : {0, 1}) coordinator_.Want("job", 1, v1::DesiredTask::RUN, "ranks=3,steps=0", rank);
  ASSERT_TRUE(Eventually([&] { return coordinator_.LastReport("job", 1, 1).phase() == "LOADING"; }));
  coordinator_.Stop();
  coordinator_.Start();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "ranks=3,steps=0", 2);
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(Eventually([&] { return absl::StrContains(met(rank), "met id of rank 0\n"); })) << met(rank);
    EXPECT_TRUE(Eventually([&] { return coordinator_.LastReport("job", 1, rank).phase() == "STEPPING"; }));
  }
}

TEST_F(AgentTest, ARankThatDiesIsToldToTheOthersWithItsReason) {
  auto agent = StartAgent();
  for (const int rank : {0, 1, 2}) {
    coordinator_.Want("job", 1, v1::DesiredTask::RUN,
                      rank == 1 ? "ranks=3,steps=0,crash_at=20" : "ranks=3,steps=0", rank);
  }
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(Eventually([&] { return coordinator_.LastReport("job", 1, rank).phase() == "STOPPED"; }));
    EXPECT_EQ(
        coordinator_.LastReport("job", 1, rank).failure().message(),
        "group world, generation 1: rank 1: its trainer on worker w1 has ended: the trainer was killed by "
        "signal 11 (SEGV)");
  }
}

TEST_F(AgentTest, RanksOfAFencedAttemptDoNotMeet) {
  coordinator_.Configure([](auto& behaviour) { behaviour.stale_commits = true; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "ranks=2,steps=0");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().message(),
            "group world, generation 1: the coordinator refuses it: attempt 1 is fenced");
}

TEST_F(AgentTest, BrokenTelemetryStreamsAreSentAgain) {
  coordinator_.Configure([](auto& b) { b.break_streams = 3; });
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=300,step_us=2000,log_bytes=100");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.Losses("job").size(), 300u);
  EXPECT_GT(coordinator_.duplicates(), 0);
  EXPECT_EQ(coordinator_.Log("job", "stdout").size(), std::string("begin job\n").size() + 300 * 100);
}

TEST_F(AgentTest, LogFloodIsBoundedAndLosesNoMetrics) {
  coordinator_.Configure([](auto& b) { b.ack_telemetry = false; });
  auto agent = StartAgent();
  // 60 MB of logs against 16 MiB of buffer, and nothing acknowledged.
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=60,step_us=0,log_bytes=1000000");
  ASSERT_TRUE(Eventually([&] { return coordinator_.LastReport("job").step() == 60; }));
  coordinator_.Configure([](auto& b) { b.ack_telemetry = true; });
  // Acks of new batches come only once the old stream is given up: a restart is quicker to watch.
  coordinator_.Stop();
  coordinator_.Start();
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_TRUE(Eventually([&] { return coordinator_.Losses("job").size() == 60; }));
}

TEST_F(AgentTest, SigtermStopsTasksWithACheckpointAndExitsCleanly) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  agent->Kill(SIGTERM);
  const int status = agent->Wait();
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(coordinator_.commits().size(), 1u);
  EXPECT_EQ(coordinator_.LastReport("job").phase(), "STOPPED");
  EXPECT_FALSE(coordinator_.LastReport("job").finished());
  EXPECT_TRUE(agent->Scratch().empty());
  EXPECT_TRUE(agent->Trainers().empty());
}

TEST_F(AgentTest, SecondSigtermDoesNotWait) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,ignore_stop=1,ignore_term=1");
  ASSERT_TRUE(coordinator_.WaitForStep(2, "job"));
  agent->Kill(SIGTERM);
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPING", "job"));
  agent->Kill(SIGTERM);
  EXPECT_EQ(agent->Wait(), 0);
  EXPECT_TRUE(agent->Trainers().empty());
  EXPECT_TRUE(agent->Scratch().empty());
}

TEST_F(AgentTest, SecondAgentOnTheSameStateIsRefused) {
  auto agent = StartAgent();
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  auto second = StartAgent();
  EXPECT_EQ(WEXITSTATUS(second->Wait()), 1);
  EXPECT_TRUE(
      absl::StrContains(*ReadFile(folder_ + "/agent.log", 1 << 20), "in use by another strata_worker"));
}

TEST_F(AgentTest, RefusedRegistrationIsAnErrorWithItsReason) {
  coordinator_.Configure([](auto& b) { b.refuse_register = true; });
  auto agent = StartAgent();
  EXPECT_EQ(WEXITSTATUS(agent->Wait()), 1);
  EXPECT_TRUE(absl::StrContains(*ReadFile(folder_ + "/agent.log", 1 << 20), "too old"));
}

TEST_F(AgentTest, WorkerThatCannotStartTrainersBlamesItselfNotTheJob) {
  const std::string trainer = folder_ + "/trainer";
  fs::create_symlink(Runfile("worker/trainer_stub_for_tests/trainer_stub"), trainer);
  auto agent = StartAgent({"--trainer=" + trainer});
  ASSERT_TRUE(Eventually([&] { return !coordinator_.registers().empty(); }));
  fs::remove(trainer);
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=1");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::DEVICE_FAULT);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), trainer));
  ExpectNothingLeft(*agent);
}

TEST_F(AgentTest, TrainerThatClosesItsChannelAndStaysIsKilled) {
  auto agent = StartAgent();
  coordinator_.Want("job", 1, v1::DesiredTask::RUN, "steps=0,close_at=2");
  ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", "job"));  // after the 10 s it has for ending by itself
  EXPECT_EQ(coordinator_.LastReport("job").failure().cause(), v1::TRAINER_CRASHED);
  EXPECT_EQ(coordinator_.LastReport("job").failure().signal(), SIGKILL);
  EXPECT_TRUE(absl::StrContains(coordinator_.LastReport("job").failure().message(), "closed its channel"));
}

TEST_F(AgentTest, ManyTasksRunBesideEachOther) {
  auto agent = StartAgent();
  constexpr int kTasks = 8;
  for (int i = 0; i < kTasks; ++i) {
    coordinator_.Want(absl::StrCat("job", i), 1, v1::DesiredTask::RUN, "steps=10,commit_every=5");
  }
  for (int i = 0; i < kTasks; ++i) {
    ASSERT_TRUE(coordinator_.WaitForPhase("STOPPED", absl::StrCat("job", i)));
    EXPECT_TRUE(coordinator_.LastReport(absl::StrCat("job", i)).finished());
    EXPECT_EQ(coordinator_.Losses(absl::StrCat("job", i)).size(), 10u);
  }
  ExpectNothingLeft(*agent);
}

}  // namespace
}  // namespace strata
