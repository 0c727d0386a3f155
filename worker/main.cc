// strata_worker: the agent of one machine.
#include <pthread.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "common/status.h"
#include "common/thread.h"
#include "worker/agent/agent.h"
#include "worker/agent/machine.h"
#include "worker/agent/options.h"

namespace strata {
namespace {

// 2: the command line or the configuration is wrong; 3: another agent has taken this worker's place; 1:
// anything else.
int Fail(const absl::Status& status) {
  std::fprintf(stderr, "strata_worker: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : absl::IsAborted(status) ? 3 : 1;
}

// Runs the agent until SIGTERM or SIGINT (a second one hurries it) or its own end.
absl::Status Serve(Agent& agent, const sigset_t& signals) {
  absl::Status result;
  const pthread_t waiter = pthread_self();
  Thread runner("agent", [&] {
    result = agent.Run();
    pthread_kill(waiter, SIGUSR1);
  });
  while (true) {
    int number = 0;
    if (sigwait(&signals, &number) != 0 || number == SIGUSR1) break;
    spdlog::info("signal {}: stopping", number);
    agent.RequestStop();
  }
  runner.Join();
  return result;
}

int Main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_logger_mt("strata_worker"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  auto parsed = ParseAgentOptions(argc, argv);
  if (!parsed.ok()) return Fail(parsed.status());
  if (!parsed->has_value()) return 0;
  AgentOptions options = **std::move(parsed);
  absl::Status status = ResolveAgentOptions(&options);
  if (!status.ok()) return Fail(status);
  if (options.check_config) {
    status = PreparePaths(&options);
    if (status.ok() && options.require_gpu) status = CheckGpuAndBudgets(options);
    if (!status.ok()) return Fail(status);
    std::printf("configuration is valid\n");
    return 0;
  }
  // Before any thread exists, so that all inherit it and only sigwait sees these.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  auto agent = Agent::Create(std::move(options));
  if (!agent.ok()) return Fail(agent.status());
  status = Serve(**agent, signals);
  if (!status.ok()) return Fail(status);
  spdlog::info("stopped");
  return 0;
}

}  // namespace
}  // namespace strata

int main(int argc, char** argv) { return strata::Main(argc, argv); }
