// The real strata_worker, real processes and real gRPC against a coordinator that lives in the test.
#ifndef WORKER_AGENT_AGENT_TESTING_H_
#define WORKER_AGENT_AGENT_TESTING_H_

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/fd.h"
#include "worker/agent/fake_coordinator.h"

namespace strata {

// Of a file that the test's rule names.
std::string Runfile(const std::string& path);

// A strata_worker, its folders below `folder`; killed in the end.
class AgentProcess {
 public:
  AgentProcess(const std::string& address, std::string folder, std::vector<std::string> more = {});
  ~AgentProcess();

  void Kill(int signal_number) { kill(pid_, signal_number); }
  // The wait status.
  int Wait();
  // Living processes started by this agent's tasks.
  std::vector<pid_t> Trainers() const;
  std::vector<std::string> Scratch() const { return *ListDirectory(nvme_); }
  std::vector<std::string> Records() const { return *ListDirectory(state_dir_ + "/tasks"); }
  // What it has said so far.
  std::string Log() const { return ReadFile(log_, 64 << 20).value_or(""); }

 private:
  const std::string state_dir_, nvme_, log_;
  pid_t pid_ = -1;
};

class AgentTest : public ::testing::Test {
 protected:
  void SetUp() override;

  std::unique_ptr<AgentProcess> StartAgent(std::vector<std::string> more = {});

  void ExpectNothingLeft(const AgentProcess& agent);

  FakeCoordinator coordinator_;
  std::string folder_;
};

}  // namespace strata

#endif  // WORKER_AGENT_AGENT_TESTING_H_
