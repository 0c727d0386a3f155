#include "offload/plan/estimate.h"

#include <algorithm>
#include <array>

namespace strata {

double OpSeconds(const StepPlan& plan, const Op& op, const MachineProfile& profile) {
  const double bytes = static_cast<double>(op.bytes);
  double seconds = profile.per_op_seconds;
  switch (plan.lanes[op.lane].kind) {
    case LaneKind::kControl:
      break;
    case LaneKind::kNvmeRead:
      seconds += bytes / profile.nvme_read_bytes_per_second;
      break;
    case LaneKind::kNvmeWrite:
      seconds += bytes / profile.nvme_write_bytes_per_second;
      break;
    case LaneKind::kH2D:
      seconds += bytes / profile.h2d_bytes_per_second;
      break;
    case LaneKind::kD2H:
      seconds += bytes / profile.d2h_bytes_per_second;
      break;
    case LaneKind::kCompute:  // an optimizer on the device touches bytes as one on the CPU does
      seconds += op.flops / profile.compute_flops + bytes / profile.cpu_bytes_per_second;
      break;
    case LaneKind::kCpu:
      seconds += bytes / profile.cpu_bytes_per_second;
      break;
  }
  return seconds;
}

PlanEstimate EstimatePlan(const StepPlan& plan, const MachineProfile& profile) {
  constexpr int kSteps = 3;
  PlanEstimate estimate;
  for (const Lane& lane : plan.lanes) estimate.lanes.push_back(LaneEstimate{lane});
  std::array<double, 7> busy_by_kind{};
  for (const Op& op : plan.ops) {
    LaneEstimate& lane = estimate.lanes[op.lane];
    const double seconds = OpSeconds(plan, op, profile);
    ++lane.operations;
    lane.bytes += op.bytes;
    lane.busy_seconds += seconds;
    busy_by_kind[static_cast<size_t>(lane.lane.kind)] += seconds;
  }
  for (size_t i = 0; i < estimate.lanes.size(); ++i) {
    if (estimate.lanes[i].busy_seconds > estimate.lanes[estimate.binding_lane].busy_seconds)
      estimate.binding_lane = static_cast<int>(i);
  }

  const size_t ops = plan.ops.size();
  std::vector<double> lane_free(plan.lanes.size(), 0), before(ops, 0), end(ops, 0);
  double committed = 0;
  for (int step = 0; step < kSteps; ++step) {
    std::swap(before, end);
    for (size_t i = 0; i < ops; ++i) {
      const Op& op = plan.ops[i];
      double start = lane_free[op.lane];
      for (const Dependency& on : op.dependencies)
        start = std::max(start, on.distance == 0 ? end[on.op] : before[on.op]);
      end[i] = start + OpSeconds(plan, op, profile);
      lane_free[op.lane] = end[i];
    }
    if (ops > 0) estimate.step_seconds = end.back() - committed;
    if (ops > 0) committed = end.back();
  }
  for (const LaneKind kind : {LaneKind::kNvmeRead, LaneKind::kNvmeWrite})
    estimate.step_seconds = std::max(estimate.step_seconds, busy_by_kind[static_cast<size_t>(kind)]);
  return estimate;
}

}  // namespace strata
