#include "offload/calibrate/cpu_share.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr char kStat[] =
    "cpu  30 3 30 3000 300 3 3 30 0 0\n"
    "cpu0 10 1 10 1000 100 1 1 10 5 0\n"
    "cpu1 20 2 20 2000 200 2 2 20 0 0\n"
    "intr 1 2 3\n";

TEST(CpuShareTest, BusyIsAllButIdleAndWaitingOfTheCpusAskedFor) {
  EXPECT_EQ(BusyTicks(kStat, {0}), 33);
  EXPECT_EQ(BusyTicks(kStat, {1}), 66);
  EXPECT_EQ(BusyTicks(kStat, {0, 1}), 99);
  EXPECT_EQ(BusyTicks(kStat, {0, 2}), std::nullopt);
  EXPECT_EQ(BusyTicks(kStat, {}), std::nullopt);
  EXPECT_EQ(BusyTicks("cpu0 10 many 10 1000 100 1 1 10 5 0\n", {0}), std::nullopt);
  EXPECT_EQ(BusyTicks("cpu0 10\n", {0}), std::nullopt);
}

TEST(CpuShareTest, AnotherProcessCountsAndThisOneDoesNot) {
  const OthersShare share;
  const pid_t other = fork();
  if (other == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (std::atomic<unsigned> i = 0;; ++i) {
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const double with = share.Now();
  kill(other, SIGKILL);
  waitpid(other, nullptr, 0);
  // Its share of one CPU, however many there are and whoever else computes.
  EXPECT_GT(with, 0.1 / std::thread::hardware_concurrency());
  EXPECT_LE(with, 1);
}

}  // namespace
}  // namespace strata
