#include "offload/exec/step_metrics.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int kRecords = static_cast<int>(TrafficClass::kRecords);

StepPlan PlanWith(const std::vector<LaneKind>& kinds) {
  StepPlan plan;
  for (const LaneKind kind : kinds) {
    int32_t index = 0;
    for (const Lane& lane : plan.lanes) index += lane.kind == kind;
    plan.lanes.push_back({.kind = kind, .index = index});
  }
  plan.arena_bytes[static_cast<int>(Tier::kNvme)] = 1;
  return plan;
}

TEST(StepMetricsTest, OnlyTheComputeLanesWaitsForTransfersAreExposed) {
  const StepPlan plan = PlanWith({LaneKind::kCompute, LaneKind::kCpu, LaneKind::kNvmeRead});
  StepResult result;
  result.wall_nanos = 100 * kMs;
  result.lanes.resize(3);
  result.lanes[0].busy_nanos = 40 * kMs;
  result.lanes[0].wait_nanos[static_cast<int>(LaneKind::kH2D)] = 5 * kMs;
  result.lanes[0].wait_nanos[static_cast<int>(LaneKind::kNvmeRead)] = 2 * kMs;
  result.lanes[0].wait_nanos[static_cast<int>(LaneKind::kControl)] = 9 * kMs;
  result.lanes[1].wait_nanos[static_cast<int>(LaneKind::kNvmeRead)] = 30 * kMs;
  result.lanes[1].stall_nanos[static_cast<int>(StallCause::kRead)] = 30 * kMs;
  result.lanes[2].busy_nanos = 80 * kMs;
  result.lanes[2].stall_nanos[static_cast<int>(StallCause::kSlot)] = 1 * kMs;
  const StepMetrics metrics = SummarizeStep(plan, result);
  EXPECT_EQ(metrics.exposed_io_nanos, 7 * kMs);
  EXPECT_DOUBLE_EQ(metrics.overlap_efficiency, 0.8);
  EXPECT_EQ(metrics.stall_nanos[static_cast<int>(StallCause::kRead)], 30 * kMs);
  EXPECT_EQ(metrics.stall_nanos[static_cast<int>(StallCause::kSlot)], 1 * kMs);
}

TEST(StepMetricsTest, BytesCountForTheirTierAndForTheHost) {
  const StepPlan plan = PlanWith(
      {LaneKind::kNvmeRead, LaneKind::kNvmeRead, LaneKind::kNvmeWrite, LaneKind::kH2D, LaneKind::kD2H});
  StepResult result;
  result.lanes.resize(5);
  for (int i = 0; i < 5; ++i) result.lanes[i].traffic_bytes[kRecords] = int64_t{1} << i;
  const StepMetrics metrics = SummarizeStep(plan, result);
  EXPECT_EQ(metrics.read[static_cast<int>(Tier::kNvme)][kRecords], 1 + 2);
  EXPECT_EQ(metrics.written[static_cast<int>(Tier::kNvme)][kRecords], 4);
  EXPECT_EQ(metrics.written[static_cast<int>(Tier::kDevice)][kRecords], 8);
  EXPECT_EQ(metrics.read[static_cast<int>(Tier::kDevice)][kRecords], 16);
  EXPECT_EQ(metrics.written[static_cast<int>(Tier::kHost)][kRecords], 1 + 2 + 16);
  EXPECT_EQ(metrics.read[static_cast<int>(Tier::kHost)][kRecords], 4 + 8);
}

TEST(StepMetricsTest, LatenciesOfLanesAndStepsAreOneDistributionAndDepthsAddUp) {
  const StepPlan plan = PlanWith({LaneKind::kNvmeRead, LaneKind::kNvmeRead});
  StepResult first, second;
  first.lanes.resize(2);
  second.lanes.resize(2);
  for (int64_t i = 1; i <= 50; ++i) {
    first.lanes[0].io.latency_nanos.push_back(i * kMs);
    second.lanes[1].io.latency_nanos.push_back((50 + i) * kMs);
  }
  first.lanes[0].io.busy_nanos = 1275 * kMs;   // one request at a time
  second.lanes[1].io.busy_nanos = 1275 * kMs;  // 3775 ms of requests: about three at a time
  const IoSummary io = SummarizeIo(plan, LaneKind::kNvmeRead, {&first, &second});
  EXPECT_EQ(io.requests, 100);
  EXPECT_EQ(io.p50_nanos, 51 * kMs);
  EXPECT_EQ(io.p99_nanos, 99 * kMs);
  EXPECT_NEAR(io.queue_depth, (1275.0 + 3775.0) / 1275.0, 1e-9);
  EXPECT_EQ(SummarizeIo(plan, LaneKind::kNvmeWrite, {&first}).requests, 0);
}

TEST(StepMetricsTest, RowsNameLanesThatWorkedAndLeaveOutZeroesOfSparseFamilies) {
  const StepPlan plan = PlanWith({LaneKind::kNvmeRead, LaneKind::kNvmeRead, LaneKind::kNvmeWrite});
  StepResult result;
  result.wall_nanos = 5 * kMs;
  result.lr = 0.5;
  result.lanes.resize(3);
  result.lanes[0].operations = result.lanes[1].operations = 1;  // the third would only do again what is wrong
  result.lanes[1].stall_nanos[static_cast<int>(StallCause::kWrite)] = 2 * kMs;
  result.lanes[1].traffic_bytes[kRecords] = 4096;
  result.store = {.written_bytes = 7, .retries = 1, .checksum_errors = 2};
  std::map<std::string, double> row;
  VisitStepMetrics(plan, result, {}, [&](const std::string& name, double value) { row[name] = value; });
  EXPECT_EQ(row, (std::map<std::string, double>{{"busy_ms.nvme-read", 0},
                                                {"busy_ms.nvme-read-2", 0},
                                                {"bytes.nvme-read", 0},
                                                {"bytes.nvme-read-2", 0},
                                                {"checksum_errors", 2},
                                                {"exposed_io_ms", 0},
                                                {"grad_norm", 0},
                                                {"io_retries", 1},
                                                {"loss", 0},
                                                {"lr", 0.5},
                                                {"nvme_lifetime_written_bytes", 7},
                                                {"nvme_read_bytes.records", 4096},
                                                {"overlap_efficiency", 0},
                                                {"skipped", 0},
                                                {"stall_ms.wait_write", 2},
                                                {"step_ms", 5},
                                                {"tokens", 0},
                                                {"tokens_per_s", 0}}));
}

TEST(StepMetricsTest, BandwidthIsOfTheTimeInWhichRequestsAreOutAndSplitOverPaths) {
  const StepPlan plan = PlanWith({LaneKind::kNvmeRead, LaneKind::kNvmeRead, LaneKind::kNvmeWrite});
  StepResult result;
  result.wall_nanos = 1000 * kMs;
  result.lanes.resize(3);
  constexpr int64_t kGiB = int64_t{1} << 30;
  for (int i = 0; i < 2; ++i) {  // side by side, the longer one counts
    result.lanes[i].bytes = kGiB / 4;
    result.lanes[i].io.latency_nanos = {kMs};
    result.lanes[i].io.busy_nanos = (i + 1) * 125 * kMs;
  }
  result.path_bytes = {{.read = kGiB / 8, .written = 1}, {.read = 3 * kGiB / 8, .written = 2}};
  std::map<std::string, double> row;
  const auto visit = [&](const std::string& name, double value) { row[name] = value; };
  VisitStepMetrics(plan, result, {.read = 4.0 * kGiB, .write = 1}, visit);
  EXPECT_DOUBLE_EQ(row.at("io_read_gib_per_s"), 2);
  EXPECT_DOUBLE_EQ(row.at("io_read_of_calibrated"), 0.5);
  EXPECT_DOUBLE_EQ(row.at("io_read_gib_per_s.0"), 0.5);
  EXPECT_DOUBLE_EQ(row.at("io_read_gib_per_s.1"), 1.5);
  EXPECT_FALSE(row.contains("io_write_gib_per_s")) << "nothing was written";
  row.clear();
  result.path_bytes.pop_back();
  VisitStepMetrics(plan, result, {}, visit);
  EXPECT_FALSE(row.contains("io_read_of_calibrated")) << "not known";
  EXPECT_FALSE(row.contains("io_read_gib_per_s.0")) << "one path is the whole";
}

}  // namespace
}  // namespace strata
