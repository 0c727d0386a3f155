#include "offload/exec/step_metrics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "offload/exec/trace.h"

namespace strata {
namespace {

constexpr double kGiB = 1 << 30;

double Millis(int64_t nanos) { return static_cast<double>(nanos) / 1e6; }

int64_t Quantile(std::vector<int64_t>& values, double fraction) {
  if (values.empty()) return 0;
  const auto at = static_cast<size_t>(fraction * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

void Add(const TrafficBytes& from, TrafficBytes& to) {
  for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

}  // namespace

IoSummary SummarizeIo(const StepPlan& plan, LaneKind kind, const std::vector<const StepResult*>& results) {
  IoSummary summary;
  std::vector<int64_t> latencies;
  // Lanes work side by side: their depths add up, each weighted by the time in which it had requests out.
  int64_t busiest = 0;
  double request_nanos = 0;
  for (size_t i = 0; i < plan.lanes.size(); ++i) {
    if (plan.lanes[i].kind != kind) continue;
    int64_t busy = 0;
    for (const StepResult* result : results) {
      const IoMeter& io = result->lanes[i].io;
      latencies.insert(latencies.end(), io.latency_nanos.begin(), io.latency_nanos.end());
      request_nanos += io.QueueDepth() * static_cast<double>(io.busy_nanos);
      busy += io.busy_nanos;
      summary.bytes += result->lanes[i].bytes;
    }
    busiest = std::max(busiest, busy);
  }
  summary.requests = static_cast<int64_t>(latencies.size());
  summary.p50_nanos = Quantile(latencies, 0.5);
  summary.p99_nanos = Quantile(latencies, 0.99);
  summary.busy_nanos = busiest;
  if (busiest > 0) summary.queue_depth = request_nanos / static_cast<double>(busiest);
  return summary;
}

StepMetrics SummarizeStep(const StepPlan& plan, const StepResult& result) {
  StepMetrics metrics;
  int64_t busiest = 0;
  for (size_t i = 0; i < result.lanes.size(); ++i) {
    const LaneStats& lane = result.lanes[i];
    busiest = std::max(busiest, lane.busy_nanos);
    for (int cause = 0; cause < kStallCauses; ++cause) metrics.stall_nanos[cause] += lane.stall_nanos[cause];
    const auto move = [&](Tier from, Tier to) {
      Add(lane.traffic_bytes, metrics.read[static_cast<int>(from)]);
      Add(lane.traffic_bytes, metrics.written[static_cast<int>(to)]);
    };
    const Tier beside_nvme = plan.lanes[i].direct ? Tier::kDevice : Tier::kHost;
    switch (plan.lanes[i].kind) {
      case LaneKind::kNvmeRead:
        move(Tier::kNvme, beside_nvme);
        break;
      case LaneKind::kNvmeWrite:
        move(beside_nvme, Tier::kNvme);
        break;
      case LaneKind::kH2D:
        move(Tier::kHost, Tier::kDevice);
        break;
      case LaneKind::kD2H:
        move(Tier::kDevice, Tier::kHost);
        break;
      case LaneKind::kCompute:
        for (const LaneKind kind :
             {LaneKind::kNvmeRead, LaneKind::kNvmeWrite, LaneKind::kH2D, LaneKind::kD2H}) {
          metrics.exposed_io_nanos += lane.wait_nanos[static_cast<int>(kind)];
        }
        break;
      case LaneKind::kControl:
      case LaneKind::kCpu:
        break;
    }
  }
  if (result.wall_nanos > 0)
    metrics.overlap_efficiency = static_cast<double>(busiest) / static_cast<double>(result.wall_nanos);
  metrics.io_read = SummarizeIo(plan, LaneKind::kNvmeRead, {&result});
  metrics.io_write = SummarizeIo(plan, LaneKind::kNvmeWrite, {&result});
  return metrics;
}

void VisitStepMetrics(const StepPlan& plan, const StepResult& result, const NvmeSpeeds& calibrated,
                      const std::function<void(const std::string& name, double value)>& visit) {
  const StepMetrics metrics = SummarizeStep(plan, result);
  visit("loss", result.loss);
  visit("grad_norm", result.grad_norm);
  visit("lr", result.lr);
  visit("skipped", result.skipped ? 1 : 0);
  visit("tokens", result.tokens);
  if (result.wall_nanos > 0)
    visit("tokens_per_s", result.tokens * 1e9 / static_cast<double>(result.wall_nanos));
  if (plan.compute_dtype == DType::kF16) visit("loss_scale", result.loss_scale);
  visit("step_ms", Millis(result.wall_nanos));
  for (size_t i = 0; i < result.lanes.size(); ++i) {
    // Lanes for what is done again mostly do nothing.
    if (result.lanes[i].operations == 0) continue;
    const std::string name = LaneName(plan.lanes[i]);
    visit(absl::StrCat("busy_ms.", name), Millis(result.lanes[i].busy_nanos));
    visit(absl::StrCat("bytes.", name), static_cast<double>(result.lanes[i].bytes));
  }
  if (result.redone) visit("speculative_redo", 1);
  visit("exposed_io_ms", Millis(metrics.exposed_io_nanos));
  visit("overlap_efficiency", metrics.overlap_efficiency);
  for (int cause = 0; cause < kStallCauses; ++cause) {
    if (metrics.stall_nanos[cause] == 0) continue;
    visit(absl::StrCat("stall_ms.", Name(static_cast<StallCause>(cause))),
          Millis(metrics.stall_nanos[cause]));
  }
  for (const Tier tier : {Tier::kDevice, Tier::kNvme}) {
    for (int traffic = 0; traffic < kTrafficClasses; ++traffic) {
      const auto bytes = [&](const char* verb, const std::array<TrafficBytes, kTierCount>& of) {
        const int64_t value = of[static_cast<int>(tier)][traffic];
        if (value == 0) return;
        visit(absl::StrCat(Name(tier), "_", verb, "_bytes.", Name(static_cast<TrafficClass>(traffic))),
              static_cast<double>(value));
      };
      bytes("read", metrics.read);
      bytes("written", metrics.written);
    }
  }
  const auto io = [&](const char* what, const IoSummary& summary, double speed, int64_t PathBytes::*moved) {
    if (summary.requests == 0) return;
    visit(absl::StrCat("io_", what, "_p50_ms"), Millis(summary.p50_nanos));
    visit(absl::StrCat("io_", what, "_p99_ms"), Millis(summary.p99_nanos));
    visit(absl::StrCat("io_", what, "_depth"), summary.queue_depth);
    visit(absl::StrCat("io_", what, "_gib_per_s"), summary.BytesPerSecond() / kGiB);
    if (speed > 0) visit(absl::StrCat("io_", what, "_of_calibrated"), summary.BytesPerSecond() / speed);
    for (size_t path = 0; path < result.path_bytes.size() && result.path_bytes.size() > 1; ++path) {
      const IoSummary share = {.bytes = result.path_bytes[path].*moved, .busy_nanos = summary.busy_nanos};
      visit(absl::StrCat("io_", what, "_gib_per_s.", path), share.BytesPerSecond() / kGiB);
    }
  };
  io("read", metrics.io_read, calibrated.read, &PathBytes::read);
  io("write", metrics.io_write, calibrated.write, &PathBytes::written);
  if (plan.arena_bytes[static_cast<int>(Tier::kNvme)] > 0) {
    visit("nvme_lifetime_written_bytes", static_cast<double>(result.store.written_bytes));
    visit("io_retries", static_cast<double>(result.store.retries));
    visit("checksum_errors", static_cast<double>(result.store.checksum_errors));
  }
}

}  // namespace strata
