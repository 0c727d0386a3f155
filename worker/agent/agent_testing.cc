#include "worker/agent/agent_testing.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker/agent/leftovers.h"
#include "worker/agent/process.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

// One measurement of this machine is enough for all agents of this test.
std::string CalibrationOfAll() { return ::testing::TempDir() + "/calibration.json"; }
void CopyCalibration(const std::string& from, const std::string& to) {
  if (const auto text = ReadFile(from, 1 << 20); text.ok()) (void)WriteFileDurably(to, *text);
}

}  // namespace

std::string Runfile(const std::string& path) {
  const char* root = std::getenv("TEST_SRCDIR");
  return absl::StrCat(root == nullptr ? "." : root, "/strata/", path);
}

AgentProcess::AgentProcess(const std::string& address, std::string folder, std::vector<std::string> more)
    : state_dir_(folder + "/state"), nvme_(folder + "/nvme"), log_(folder + "/agent.log") {
  const bool has_trainer = std::any_of(
      more.begin(), more.end(), [](const std::string& flag) { return absl::StartsWith(flag, "--trainer="); });
  std::filesystem::create_directories(state_dir_);
  CopyCalibration(CalibrationOfAll(), state_dir_ + "/calibration.json");
  if (!has_trainer) more.push_back("--trainer=" + Runfile("worker/trainer_stub_for_tests/trainer_stub"));
  std::vector<std::string> args = {
      Runfile("worker/strata_worker"), "--server=" + address,  "--worker-id=w1",
      "--state-dir=" + state_dir_,     "--nvme-path=" + nvme_, "--checkpoint-root=" + folder + "/checkpoints",
      "--device-bytes=64MiB",          "--host-bytes=64MiB",   "--nvme-bytes=64MiB"};
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

AgentProcess::~AgentProcess() {
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

int AgentProcess::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return status;
}

std::vector<pid_t> AgentProcess::Trainers() const {
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

void AgentTest::SetUp() {
  // As the agent writes it: its processes are found by this text.
  folder_ = (fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name())
                .lexically_normal()
                .string();
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  coordinator_.Start();
}

std::unique_ptr<AgentProcess> AgentTest::StartAgent(std::vector<std::string> more) {
  return std::make_unique<AgentProcess>(coordinator_.address(), folder_, std::move(more));
}

void AgentTest::ExpectNothingLeft(const AgentProcess& agent) {
  EXPECT_TRUE(agent.Trainers().empty());
  EXPECT_TRUE(agent.Scratch().empty());
  EXPECT_TRUE(Eventually([&] { return agent.Records().empty(); }));
}

}  // namespace strata
