// Many short jobs in one process: what a job takes (files, threads, memory) it gives back.
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>

#include "common/fd.h"
#include "common/process_usage.h"
#include "gtest/gtest.h"
#include "offload/bench/offload_bench.h"
#include "offload/plan/chunk_size.h"

namespace strata {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t Entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

// --gtest_repeat=5 makes it 300 in one process.
TEST(ShortJobsTest, SixtyInARowLeaveFilesThreadsAndMemoryFlat) {
  const std::string folder = ::testing::TempDir() + "/short_jobs_test_" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirectories(folder).ok());
  // All of the engine: every tier, several lanes.
  OffloadBenchOptions options;
  options.shape = {.parameters = 400'000, .layers = 3, .rows = 50};
  options.request.budget = {64 * kMiB, 64 * kMiB, 256 * kMiB};
  options.request.params = options.request.optimizer = options.request.gradients = Tier::kNvme;
  options.request.activations = Tier::kNvme;
  options.request.chunk_elements = ChunkElements(64 << 10);
  options.request.io_threads = 2;
  options.steps = 2;
  options.clip_norm = 1;
  options.engine.store.paths = {{folder}};
  options.engine.store.owner = "short";
  constexpr int kJobs = 60, kWarm = 5;
  int64_t files = 0, threads = 0, rss = 0;
  for (int job = 0; job < kJobs; ++job) {
    // Every third is refused when all is allocated.
    const bool refused = job % 3 == 0;
    options.engine.io_backend = job % 3 == 1 ? IoBackend::kAuto : IoBackend::kThreads;
    options.engine.required.clear();
    if (refused) options.engine.required = {Feature::kIoUring};
    options.steps = 1 + job % 2;
    const auto report = RunOffloadBench(
        options, [](const PlannedJob&) {}, [](const StepPlan&, const OffloadBenchStep&) {});
    ASSERT_EQ(report.status().code(), refused ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kOk)
        << report.status();
    if (job + 1 < kWarm) continue;
    const int64_t files_now = Entries("/proc/self/fd"), threads_now = Entries("/proc/self/task");
    const int64_t rss_now = ReadProcessUsage().rss_bytes;
    if (job + 1 == kWarm) {
      files = files_now;
      threads = threads_now;
      rss = rss_now;
    }
    ASSERT_EQ(files_now, files) << "after job " << job;
    ASSERT_EQ(threads_now, threads) << "after job " << job;
#ifndef STRATA_SANITIZE  // whose own memory grows
    // One job's arenas are 8 MiB and more: 55 of them kept would be far above.
    ASSERT_LE(rss_now, rss + 4 * kMiB) << "after job " << job;
#endif
  }
  EXPECT_EQ(Entries(folder.c_str()), 0);
  std::cout << kJobs << " jobs: " << files << " files, " << threads << " threads, " << rss / 1024
            << " KiB after " << kWarm << " jobs and " << ReadProcessUsage().rss_bytes / 1024
            << " KiB in the end\n";
  EXPECT_TRUE(RemoveTree(folder).ok());
}

}  // namespace
}  // namespace strata
