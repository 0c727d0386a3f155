// The real binary: killed with SIGKILL at random moments while clients write, restarted, and asked for
// everything it has acknowledged; its flags and exit codes.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "proto/strata/v1/jobs.grpc.pb.h"
#include "proto/strata/v1/worker.grpc.pb.h"

extern char** environ;

namespace strata::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kBinary = "server/strata_server";

class Process {
 public:
  // What it says goes to the file `log`; "": to the test's own.
  explicit Process(std::vector<std::string> args, const std::string& log = "") {
    args.insert(args.begin(), kBinary);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (!log.empty())
      posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0644);
    EXPECT_EQ(posix_spawn(&pid_, kBinary, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Process() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      (void)Wait();
    }
  }
  void Signal(int signal) { kill(pid_, signal); }
  // The exit code, or -signal.
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

class ServerProcessTest : public ::testing::Test {
 protected:
  ServerProcessTest() {
    static std::atomic<int> counter = 0;
    folder_ = absl::StrCat(::testing::TempDir(), "/process", getpid(), ".", ++counter);
    EXPECT_TRUE(MakeDirectories(folder_).ok());
  }
  std::vector<std::string> Args() {
    return {"--listen", "127.0.0.1:0", "--data-dir", folder_ + "/data", "--port-file", folder_ + "/port"};
  }
  // Starts the coordinator and waits for its port.
  void Start() {
    (void)unlink((folder_ + "/port").c_str());
    server_ = std::make_unique<Process>(Args());
    const int port = WaitForPort();
    ASSERT_NE(port, 0) << "the coordinator did not start";
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    jobs_ = v1::JobService::NewStub(channel_);
  }
  // 0: there is none after half a minute.
  int WaitForPort() {
    int port = 0;
    for (int i = 0; i < 3000 && port == 0; ++i) {
      const absl::StatusOr<std::string> text = ReadFile(folder_ + "/port", 100);
      if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &port)) {
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
    return port;
  }
  static v1::CreateJobRequest Request(const std::string& request_id) {
    v1::CreateJobRequest request;
    request.set_request_id(request_id);
    v1::JobSpec& spec = *request.mutable_spec();
    spec.set_name("crash");
    v1::ModelConfig& model = *spec.mutable_model()->mutable_config();
    model.set_architecture(v1::ARCHITECTURE_LLAMA);
    model.set_layers(2);
    model.set_hidden(64);
    model.set_heads(4);
    model.set_vocab(256);
    model.set_max_seq(64);
    spec.mutable_data()->add_train("/data/train.txt");
    spec.mutable_data()->set_seq_len(64);
    spec.mutable_training()->set_steps(10);
    spec.mutable_training()->set_global_batch(4);
    spec.mutable_training()->mutable_optimizer()->set_lr(1e-3);
    spec.mutable_memory()->set_device(64 << 20);
    spec.mutable_memory()->set_host(256 << 20);
    spec.mutable_memory()->set_nvme(512 << 20);
    return request;
  }
  static grpc::Status Create(v1::JobService::Stub& stub, const std::string& request_id, v1::Job* job) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    return stub.CreateJob(&context, Request(request_id), job);
  }

  std::string folder_;
  std::unique_ptr<Process> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

TEST_F(ServerProcessTest, NothingAcknowledgedIsLostByKillNine) {
  const uint64_t seed = std::random_device()();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  std::map<std::string, v1::Job> acked;   // request id -> job
  std::map<std::string, bool> cancelled;  // name -> the cancel was acknowledged
  for (int round = 0; round < 5; ++round) {
    ASSERT_NO_FATAL_FAILURE(Start());
    Mutex mu;
    std::vector<std::thread> clients;
    for (int client = 0; client < 3; ++client) {
      clients.emplace_back([&, client] {
        for (int i = 0;; ++i) {
          const std::string id = absl::StrCat("r", round, ".", client, ".", i);
          v1::Job job;
          const grpc::Status created = Create(*jobs_, id, &job);
          if (!created.ok()) return;
          {
            MutexLock lock(mu);
            acked[id] = job;
          }
          if (i % 3 != 0) continue;
          v1::CancelJobRequest cancel;
          cancel.set_name(job.name());
          grpc::ClientContext context;
          if (!jobs_->CancelJob(&context, cancel, &job).ok()) return;
          MutexLock lock(mu);
          cancelled[job.name()] = true;
        }
      });
    }
    std::this_thread::sleep_for(milliseconds(100 + random() % 400));
    server_->Signal(SIGKILL);
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(server_->Wait(), -SIGKILL);
  }
  ASSERT_NO_FATAL_FAILURE(Start());
  printf("%zu jobs and %zu cancels were acknowledged\n", acked.size(), cancelled.size());
  EXPECT_GT(acked.size(), 10u);
  std::map<std::string, int> listed;
  v1::ListJobsRequest list;
  list.set_page_size(500);
  do {
    v1::ListJobsResponse page;
    grpc::ClientContext context;
    ASSERT_TRUE(jobs_->ListJobs(&context, list, &page).ok());
    for (const v1::Job& job : page.jobs()) ++listed[job.uid()];
    list.set_page_token(page.next_page_token());
  } while (!list.page_token().empty());
  for (const auto& [uid, count] : listed) EXPECT_EQ(count, 1);
  for (const auto& [id, job] : acked) {
    EXPECT_EQ(listed.count(job.uid()), 1u) << job.name() << " was acknowledged and is gone";
    v1::Job replay;
    ASSERT_TRUE(Create(*jobs_, id, &replay).ok());
    EXPECT_EQ(replay.uid(), job.uid()) << "the same request made a second job";
    if (cancelled.count(job.name()) > 0) {
      EXPECT_EQ(replay.status().state(), v1::Job::CANCELLED);
    }
  }
}

TEST_F(ServerProcessTest, TheSignalEndsItCleanlyEvenWithAnOpenStream) {
  ASSERT_NO_FATAL_FAILURE(Start());
  grpc::ClientContext context;
  const auto watch = jobs_->WatchJobs(&context, {});
  v1::WatchJobsResponse response;
  ASSERT_TRUE(watch->Read(&response));
  const auto start = std::chrono::steady_clock::now();
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->Wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(10));
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServerProcessTest, AnAddressThatOtherMachinesReachIsWarnedAbout) {
  for (const auto& [listen, warned] :
       {std::pair{"127.0.0.1:0", false}, {"localhost:0", false}, {"0.0.0.0:0", true}, {"[::]:0", true}}) {
    std::vector<std::string> args = Args();
    args[1] = listen;
    const std::string log = folder_ + "/log";
    (void)unlink((folder_ + "/port").c_str());
    Process server(args, log);
    ASSERT_NE(WaitForPort(), 0) << listen;
    server.Signal(SIGTERM);
    ASSERT_EQ(server.Wait(), 0) << listen;
    const std::string said = *ReadFile(log, 1 << 20);
    EXPECT_EQ(absl::StrContains(said, absl::StrCat("warning: --listen ", listen)), warned) << said;
  }
}

TEST_F(ServerProcessTest, ASecondCoordinatorOnTheSameFolderIsRefused) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(Process(Args()).Wait(), 3);
}

TEST_F(ServerProcessTest, ADamagedDatabaseIsRefused) {
  ASSERT_TRUE(MakeDirectories(folder_ + "/data").ok());
  ASSERT_TRUE(WriteFileDurably(folder_ + "/data/state.db", std::string(8192, 'x')).ok());
  EXPECT_EQ(Process(Args()).Wait(), 3);
}

TEST_F(ServerProcessTest, FlagsAreCheckedBeforeAnythingStarts) {
  const std::string data = folder_ + "/data";
  EXPECT_EQ(Process({"--data-dir", data, "--check-config"}).Wait(), 0);
  EXPECT_NE(access(data.c_str(), F_OK), 0) << "--check-config starts nothing";
  EXPECT_EQ(Process({"--check-config"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--lease-ttl", "1y", "--check-config"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--listen", "nonsense", "--check-config"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--listen", "127.0.0.1:99999", "--check-config"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--listen", "127.0.0.1:", "--check-config"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--checkpoint-root", "relative", "--check-config"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--log-quota", "-1", "--check-config"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--no-such-flag"}).Wait(), 2);
  EXPECT_EQ(Process({"--data-dir", data, "--listen", "192.0.2.1:80"}).Wait(), 5);
}

}  // namespace
}  // namespace strata::server
