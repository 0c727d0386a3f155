#include "offload/plan/lane_set.h"

#include <algorithm>

namespace strata {
namespace {

// Operations of an NVMe lane in flight. Two keep the disk busy across the end of one; more help where they
// are small.
constexpr int kNvmeWindowMax = 4;

int32_t AddLane(LaneKind kind, std::vector<Lane>* lanes, int32_t window = 1) {
  int32_t index = 0;
  for (const Lane& lane : *lanes) index += lane.kind == kind;
  lanes->push_back(Lane{kind, index, window});
  return static_cast<int32_t>(lanes->size() - 1);
}

NvmeLanes AddNvmeLanes(const PlanChoice& choice, std::vector<Lane>* lanes) {
  const int32_t window = std::min(choice.prefetch_depth, kNvmeWindowMax);
  NvmeLanes added;
  added.read = AddLane(LaneKind::kNvmeRead, lanes, window);
  added.write = AddLane(LaneKind::kNvmeWrite, lanes, window);
  return added;
}

}  // namespace

LaneSet MakeLanes(const PlanChoice& choice, const std::vector<bool>& frozen, const SlotTable& table,
                  PlanKind kind, bool redoes, std::vector<Lane>* lanes) {
  const bool train = kind == PlanKind::kTrain;
  LaneSet set;
  set.batch = AddLane(LaneKind::kControl, lanes);
  set.commit = AddLane(LaneKind::kControl, lanes);
  set.compute = AddLane(LaneKind::kCompute, lanes);
  set.cpu = AddLane(LaneKind::kCpu, lanes);
  set.h2d = AddLane(LaneKind::kH2D, lanes);
  set.d2h = AddLane(LaneKind::kD2H, lanes);
  bool home = false, params = false, records = false, held = false, sums = false;
  for (size_t u = 0; u < choice.units.size(); ++u) {
    const PlanChoice::UnitHome& unit = choice.units[u];
    params |= unit.params == Tier::kNvme;
    if (frozen[u]) continue;
    home |= train && unit.params == Tier::kDevice && unit.record != Tier::kDevice;
    records |= unit.record == Tier::kNvme;
    sums |= train && unit.gradients == Tier::kNvme;
  }
  for (const SlotTable::Held* of : {&table.activation, &table.saved, &table.saved_rest}) {
    for (const int32_t item : of->item) held |= item >= 0;
  }
  if (home) set.home = AddLane(LaneKind::kH2D, lanes);
  if (choice.io_threads == 1 && (params || records || held || sums)) {
    const NvmeLanes all = AddNvmeLanes(choice, lanes);
    set.params = set.held = set.sums = all;
    set.records = {all};
  } else {
    if (params) set.params = AddNvmeLanes(choice, lanes);
    const int count = std::max(1, choice.io_threads - static_cast<int>(params) - held - sums);
    for (int i = 0; records && i < count; ++i) set.records.push_back(AddNvmeLanes(choice, lanes));
    if (held) set.held = AddNvmeLanes(choice, lanes);
    if (sums) set.sums = AddNvmeLanes(choice, lanes);
  }
  if (redoes) set.redo = AddNvmeLanes(choice, lanes);
  return set;
}

}  // namespace strata
