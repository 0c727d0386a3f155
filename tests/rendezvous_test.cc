// Ranks that meet at a real coordinator, over gRPC: as threads with the trainer's and the agent's parts in
// one process, and as processes that the agent's Task starts.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "offload/comm/nccl_communicator.h"
#include "offload/comm/nccl_testing.h"
#include "server/service/budget_planner.h"
#include "server/store/sqlite_state_store.h"
#include "server/transport/server.h"
#include "worker/agent/rendezvous_relay.h"
#include "worker/agent/task.h"
#include "worker/agent/telemetry_sender.h"
#include "worker/trainer/channel_rendezvous.h"

namespace strata {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr absl::Duration kLong = absl::Minutes(3);

int64_t Now() { return Clock::Real().MonotonicNanos(); }

bool Eventually(const std::function<bool()>& condition) {
  const int64_t end = Now() + absl::ToInt64Nanoseconds(kLong);
  while (!condition()) {
    if (Now() > end) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

// What happens to the `nth` of all calls: it gets lost on its way there, its answer does, or the coordinator
// is started anew before it.
struct Fault {
  enum class Kind { kRequest, kAnswer, kRestart };
  std::atomic<int64_t> calls = 0;
  int64_t nth = -1;
  Kind kind = Kind::kRequest;
  std::function<void()> restart;
};

class LossyCoordinator : public Coordinator {
 public:
  LossyCoordinator(const std::string& address, Fault& fault)
      : real_(ConnectCoordinator(address)), fault_(fault) {}

  absl::Status Rendezvous(const v1::RendezvousRequest& request, absl::Duration timeout,
                          Cancellation* cancellation, v1::RendezvousResponse* response) override {
    const bool now = fault_.calls++ == fault_.nth;
    if (now && fault_.kind == Fault::Kind::kRequest) return absl::UnavailableError("the request was lost");
    if (now && fault_.kind == Fault::Kind::kRestart) fault_.restart();
    const absl::Status status = real_->Rendezvous(request, timeout, cancellation, response);
    if (now && fault_.kind == Fault::Kind::kAnswer) return absl::UnavailableError("the answer was lost");
    return status;
  }
  absl::Status Register(const v1::RegisterRequest& request, absl::Duration timeout,
                        Cancellation* cancellation, v1::RegisterResponse* response) override {
    return real_->Register(request, timeout, cancellation, response);
  }
  absl::Status Sync(const v1::SyncRequest& request, absl::Duration timeout, Cancellation* cancellation,
                    v1::SyncResponse* response) override {
    return real_->Sync(request, timeout, cancellation, response);
  }
  absl::Status CommitCheckpoint(const v1::CommitCheckpointRequest& request, absl::Duration timeout,
                                Cancellation* cancellation, v1::Checkpoint* response) override {
    return real_->CommitCheckpoint(request, timeout, cancellation, response);
  }
  std::unique_ptr<TelemetryStream> OpenTelemetry() override { return real_->OpenTelemetry(); }
  bool IsConnected() override { return real_->IsConnected(); }
  bool WaitConnected(absl::Duration timeout) override { return real_->WaitConnected(timeout); }

 private:
  const std::unique_ptr<Coordinator> real_;
  Fault& fault_;
};

// A rank that is a thread: the trainer's part, the agent's, and a GPU.
struct ThreadRank {
  ThreadRank(const std::string& address, const v1::DesiredTask& task, Fault& fault, FakeNcclWorld& world,
             int rank)
      : coordinator(address, fault),
        meeting([this](const v1::TrainerMessage& message) { return relay->Set(message.rendezvous()); }),
        gpu(world, rank) {
    relay =
        std::make_unique<RendezvousRelay>(coordinator, task.job_uid(), task.attempt(),
                                          [this](const v1::RendezvousResponse& news) { meeting.Take(news); });
  }
  absl::Status Make(NcclOptions options) {
    gpu.communicator.reset();
    auto made = CreateNcclCommunicator(*gpu.nccl, gpu.cuda, &meeting, options);
    if (made.ok()) gpu.communicator = *std::move(made);
    return made.status();
  }
  absl::Status Reduce(float* value) {
    absl::Status status = gpu.communicator->AllReduce(gpu.stream, DType::kF32, value, value, 1);
    return status.ok() ? gpu.communicator->Await() : status;
  }

  LossyCoordinator coordinator;
  ChannelRendezvous meeting;
  std::unique_ptr<RendezvousRelay> relay;
  NcclRank gpu;
};

class RendezvousTest : public ::testing::Test {
 protected:
  RendezvousTest() {
    static std::atomic<int> counter = 0;
    folder_ = absl::StrCat(::testing::TempDir(), "/rendezvous", getpid(), ".", ++counter);
    EXPECT_TRUE(MakeDirectories(folder_ + "/checkpoints").ok());
    StartServer();
    request_.set_worker_id("w1");
    request_.set_incarnation(1);
    request_.mutable_capacity()->set_device_bytes(1000);
    request_.mutable_capacity()->set_host_bytes(1000);
    request_.mutable_capacity()->add_nvme()->set_bytes(1000);
    request_.set_checkpoint_root(folder_ + "/checkpoints");
  }
  ~RendezvousTest() override {
    ranks_.clear();
    StopServer();
    EXPECT_TRUE(RemoveTree(folder_).ok());
  }

  void StartServer() {
    store_ = *server::SqliteStateStore::Open(folder_ + "/state.db", Clock::Real());
    telemetry_ = *server::Telemetry::Open(folder_ + "/telemetry", 4 << 20);
    server::CoordinatorOptions options;
    options.lease_ttl = options.restart_wait = absl::Hours(1);  // the test is the worker, and says little
    options.checkpoint_root = folder_ + "/checkpoints";
    service_ =
        *server::Coordinator::Create(options, Clock::Real(), *store_, *telemetry_, server::PlanByBudget,
                                     [](v1::JobSpec&) { return std::vector<server::SpecProblem>(); });
    ASSERT_TRUE(Eventually([&] {
      auto started = server::Server::Start({.listen = absl::StrCat("127.0.0.1:", port_)}, *service_);
      if (started.ok()) server_ = *std::move(started);
      return started.ok();
    }));
    port_ = server_->port();
  }
  void StopServer() {
    server_->Shutdown(std::chrono::milliseconds(500));
    server_.reset();
    service_.reset();
    telemetry_.reset();
    store_.reset();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // The task of a job that runs from now on.
  v1::DesiredTask StartJob(const std::string& id) {
    v1::CreateJobRequest create;
    create.set_job_id(id);
    create.mutable_spec()->mutable_training()->set_steps(20);
    create.mutable_spec()->mutable_memory()->set_device(10);
    create.mutable_spec()->mutable_memory()->set_host(10);
    create.mutable_spec()->mutable_memory()->set_nvme(10);
    create.mutable_spec()->mutable_scheduling()->set_max_failures(3);
    EXPECT_TRUE(service_->Register(request_, server::CallContext()).ok());
    const auto job = service_->CreateJob(create, server::CallContext());
    EXPECT_TRUE(job.ok()) << job.status();
    return AwaitTask(job->uid(), 1);
  }
  v1::DesiredTask AwaitTask(const std::string& uid, int attempt) {
    v1::DesiredTask found;
    EXPECT_TRUE(Eventually([&] {
      const v1::SyncResponse response = Sync({});
      for (const v1::DesiredTask& task : response.desired()) {
        if (task.job_uid() == uid && task.attempt() == attempt) found = task;
      }
      return found.attempt() == attempt;
    }));
    return found;
  }
  v1::SyncResponse Sync(const std::vector<v1::TaskReport>& reports) {
    v1::SyncRequest sync;
    sync.set_worker("w1");
    sync.set_incarnation(1);
    for (const v1::TaskReport& report : reports) *sync.add_tasks() = report;
    return *service_->Sync(sync, server::CallContext());
  }
  void Cancel(const std::string& id) {
    v1::CancelJobRequest cancel;
    cancel.set_name(id);
    EXPECT_TRUE(service_->CancelJob(cancel, server::CallContext()).ok());
  }

  void MakeRanks(const v1::DesiredTask& task, int size) {
    ranks_.clear();
    for (int rank = 0; rank < size; ++rank)
      ranks_.push_back(std::make_unique<ThreadRank>(address(), task, fault_, world_, rank));
  }
  void All(const std::function<void(int rank)>& body) {
    std::vector<Thread> threads;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
      threads.emplace_back("rank", [&body, rank] { body(rank); });
    for (Thread& thread : threads) thread.Join();
  }
  NcclOptions OptionsOf(int rank, absl::Duration timeout = kLong) {
    return {.rank = rank, .size = static_cast<int>(ranks_.size()), .timeout = timeout};
  }
  void ExpectSum(int rank) {
    float value = static_cast<float>(rank + 1);
    const absl::Status status = ranks_[rank]->Reduce(&value);
    EXPECT_TRUE(status.ok()) << rank << " " << status;
    const size_t size = ranks_.size();
    EXPECT_EQ(value, static_cast<float>(size * (size + 1) / 2));
  }

  std::string folder_;
  int port_ = 0;
  v1::RegisterRequest request_;
  std::unique_ptr<server::SqliteStateStore> store_;
  std::unique_ptr<server::Telemetry> telemetry_;
  std::unique_ptr<server::Coordinator> service_;
  std::unique_ptr<server::Server> server_;
  Fault fault_;
  FakeNcclThreads world_;
  std::vector<std::unique_ptr<ThreadRank>> ranks_;
};

TEST_F(RendezvousTest, ThreadsMeetInEveryOrderAndCommunicateInEveryGeneration) {
  MakeRanks(StartJob("a"), 3);
  std::vector<int> order = {0, 1, 2};
  do {
    All([&](int rank) {
      const auto place = std::find(order.begin(), order.end(), rank) - order.begin();
      absl::SleepFor(absl::Milliseconds(30 * place));
      const absl::Status made = ranks_[rank]->Make(OptionsOf(rank));
      EXPECT_TRUE(made.ok()) << made;
    });
    All([&](int rank) { ExpectSum(rank); });
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(RendezvousTest, AMissingRankIsNamedToTheOthersAndMayComeToTheNextMeeting) {
  MakeRanks(StartJob("a"), 3);
  All([&](int rank) {
    if (rank == 1) return;
    const absl::Status status = ranks_[rank]->Make(OptionsOf(rank, absl::Milliseconds(500)));
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status;
    EXPECT_THAT(status.message(), HasSubstr("rank 1 of 3 has not arrived in time"));
  });
  // A rank that knows nothing of that hears of it once, or finds the others in the next one.
  All([&](int rank) {
    absl::Status status = ranks_[rank]->Make(OptionsOf(rank));
    if (rank == 1 && absl::IsDeadlineExceeded(status)) status = ranks_[rank]->Make(OptionsOf(rank));
    EXPECT_TRUE(status.ok()) << status;
  });
  All([&](int rank) { ExpectSum(rank); });
}

TEST_F(RendezvousTest, ASecondProcessWithARankAndAnotherSizeEndItForAll) {
  const v1::DesiredTask task = StartJob("a");
  MakeRanks(task, 3);
  const std::vector<std::vector<NcclOptions>> cases = {
      {{.rank = 0, .size = 3}, {.rank = 1, .size = 3}, {.rank = 1, .size = 3}},
      {{.rank = 0, .size = 3}, {.rank = 1, .size = 3}, {.rank = 2, .size = 4}}};
  for (const auto& options : cases) {
    All([&](int rank) {
      const absl::Status status = ranks_[rank]->Make(options[rank]);
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
      EXPECT_THAT(
          std::string(status.message()),
          AnyOf(HasSubstr("two processes say that they are rank 1 of 3"), HasSubstr("says that there are")));
    });
  }
}

TEST_F(RendezvousTest, EveryLostCallAndARestartAtEveryCallAreSurvived) {
  const v1::DesiredTask task = StartJob("a");
  fault_.restart = [&] {
    StopServer();
    StartServer();
  };
  for (const Fault::Kind kind : {Fault::Kind::kRequest, Fault::Kind::kAnswer, Fault::Kind::kRestart}) {
    for (int64_t nth = 0;; ++nth) {
      fault_.calls = 0;
      fault_.nth = nth;
      fault_.kind = kind;
      MakeRanks(task, 2);
      All([&](int rank) {
        NcclOptions options = OptionsOf(rank);
        options.group = absl::StrCat("fault", static_cast<int>(kind), ".", nth);
        const absl::Status made = ranks_[rank]->Make(options);
        ASSERT_TRUE(made.ok()) << nth << " " << made;
        ExpectSum(rank);
      });
      if (HasFatalFailure()) return;
      All([&](int rank) {
        float value = 1;
        if (rank == 0) return ranks_[0]->gpu.communicator->Abort("enough");
        const absl::Status status = ranks_[1]->Reduce(&value);
        EXPECT_THAT(status.message(), HasSubstr("rank 0 of 2, aborted: enough")) << nth;
      });
      if (fault_.calls <= nth) break;
      ASSERT_LT(nth, 100);
    }
  }
}

TEST_F(RendezvousTest, ACancelEndsRanksThatWaitAndRanksThatCommunicate) {
  MakeRanks(StartJob("waiting"), 3);
  Thread cancel("cancel", [&] {
    absl::SleepFor(absl::Milliseconds(200));
    Cancel("waiting");
  });
  All([&](int rank) {
    if (rank == 0) return;
    const absl::Status status = ranks_[rank]->Make(OptionsOf(rank));
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("is over, the job is STOPPING"));
  });
  cancel.Join();

  MakeRanks(StartJob("standing"), 3);
  All([&](int rank) { EXPECT_TRUE(ranks_[rank]->Make(OptionsOf(rank)).ok()); });
  All([&](int rank) {
    if (rank == 0) return Cancel("standing");  // instead of taking part
    float value = 1;
    const absl::Status status = ranks_[rank]->Reduce(&value);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("all-reduce of 1 f32 (operation 1): "));
    EXPECT_THAT(status.message(), HasSubstr("is over, the job is STOPPING"));
  });
}

TEST_F(RendezvousTest, ACoordinatorThatRestartsInTheMiddleChangesNothing) {
  const v1::DesiredTask task = StartJob("a");
  MakeRanks(task, 3);
  std::atomic<int> waiting = 0;
  Thread restart("restart", [&] {
    EXPECT_TRUE(Eventually([&] { return waiting == 2; }));
    absl::SleepFor(absl::Milliseconds(200));
    StopServer();
    StartServer();
    ++waiting;
  });
  All([&](int rank) {
    if (rank == 2) {
      EXPECT_TRUE(Eventually([&] { return waiting == 3; }));
    } else {
      ++waiting;
    }
    const absl::Status made = ranks_[rank]->Make(OptionsOf(rank));
    EXPECT_TRUE(made.ok()) << made;
  });
  restart.Join();
  All([&](int rank) { ExpectSum(rank); });

  // Without a coordinator they go on; when it is back, a failure finds its way.
  StopServer();
  All([&](int rank) { ExpectSum(rank); });
  Thread abort("abort", [&] { ranks_[2]->gpu.communicator->Abort("the disk is full"); });
  abort.Join();
  StartServer();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(Eventually([&] { return !ranks_[rank]->gpu.communicator->Await().ok(); }));
  }
}

TEST_F(RendezvousTest, AnOlderAttemptIsRefusedAndTheNewOneMeetsWithoutIt) {
  const v1::DesiredTask first = StartJob("a");
  MakeRanks(first, 2);
  std::vector<std::unique_ptr<ThreadRank>> old = std::move(ranks_);
  Thread waiting("rank of the first attempt", [&] {
    const absl::Status status = old[0]->Make({.rank = 0, .size = 2, .timeout = kLong});
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
  });
  absl::SleepFor(absl::Milliseconds(200));
  v1::TaskReport gone;
  gone.set_job_uid(first.job_uid());
  gone.set_attempt(1);
  gone.set_phase("STOPPED");
  gone.set_processes_gone(true);
  gone.set_scratch_removed(true);
  gone.mutable_failure()->set_cause(v1::WORKER_LOST);
  gone.mutable_failure()->set_message("its machine is gone");
  Sync({gone});
  waiting.Join();
  const v1::DesiredTask second = AwaitTask(first.job_uid(), 2);
  MakeRanks(second, 2);
  All([&](int rank) { EXPECT_TRUE(ranks_[rank]->Make(OptionsOf(rank)).ok()); });
  All([&](int rank) { ExpectSum(rank); });
  const absl::Status status = old[1]->Make({.rank = 1, .size = 2, .timeout = kLong});
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("attempt 1 of projects/default/jobs/a is not the current one, which is 2"));
  old.clear();
}

// Ranks as processes, each the trainer of a Task of a worker's agent.
class ProcessRanksTest : public RendezvousTest {
 protected:
  ProcessRanksTest() {
    EXPECT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    options_.worker_id = "w1";
    options_.state_dir = folder_ + "/state";
    options_.nvme_paths = {folder_ + "/nvme"};
    options_.checkpoint_root = folder_ + "/checkpoints";
    const char* const runfiles = std::getenv("TEST_SRCDIR");
    options_.trainer = absl::StrCat(runfiles == nullptr ? "." : runfiles, "/strata/tests/rendezvous_rank");
    EXPECT_TRUE(PreparePaths(&options_).ok());
    state_ = *StateDir::Open(options_.state_dir, 1);
    wear_ = *WearLog::Open(options_.state_dir + "/nvme_wear");
    coordinator_ = ConnectCoordinator(address());
    sender_ = std::make_unique<TelemetrySender>(coordinator_.get(), &buffer_);
    sender_->SetWorker("w1");
    environment_.options = &options_;
    environment_.nvme_weights = &weights_;
    environment_.wear = wear_.get();
    environment_.state = state_.get();
    environment_.spawner = &spawner_;
    environment_.telemetry = &buffer_;
    environment_.coordinator = coordinator_.get();
    environment_.changed = [] {};
  }

  // Each rank's last report.
  std::vector<v1::TaskReport> Run(v1::DesiredTask task, int size, const std::string& what) {
    std::vector<std::unique_ptr<Task>> tasks;
    task.set_job_name(absl::StrCat("folder=", folder_, ",size=", size, ",", what));
    for (int rank = 0; rank < size; ++rank) {
      task.set_rank(rank);
      tasks.push_back(std::make_unique<Task>(environment_, task));
    }
    std::vector<v1::TaskReport> reports;
    for (const auto& one : tasks) {
      EXPECT_TRUE(Eventually([&] { return one->ended(); }));
      reports.push_back(one->Report());
    }
    return reports;
  }

  AgentOptions options_;
  const std::vector<double> weights_ = {1};
  std::unique_ptr<StateDir> state_;
  std::unique_ptr<WearLog> wear_;
  Spawner spawner_;
  TelemetryBuffer buffer_{0, TelemetryBuffer::Limits()};
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<TelemetrySender> sender_;
  TaskEnvironment environment_;
};

TEST_F(ProcessRanksTest, MeetAndCommunicate) {
  for (const v1::TaskReport& report : Run(StartJob("a"), 3, "steps=20"))
    EXPECT_TRUE(report.finished()) << report.DebugString();
}

TEST_F(ProcessRanksTest, OneThatIsKilledInACollectiveEndsTheOthersWithItsReason) {
  const int64_t begin = Now();
  const auto reports = Run(StartJob("a"), 3, "steps=20,die_at=7");
  EXPECT_LT(absl::Nanoseconds(Now() - begin), absl::Minutes(1)) << "their own timeout is five minutes";
  EXPECT_EQ(reports[1].failure().signal(), SIGKILL);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(reports[rank].failure().cause(), v1::WORKER_LOST) << reports[rank].DebugString();
    EXPECT_THAT(
        reports[rank].failure().message(),
        HasSubstr(absl::StrCat("group world, rank ", rank, " of 3, all-reduce of 1 f32 (operation 7): ")));
    EXPECT_THAT(reports[rank].failure().message(),
                HasSubstr("rank 1: its trainer on worker w1 has ended: the trainer was killed by signal 9"));
  }
}

}  // namespace
}  // namespace strata
