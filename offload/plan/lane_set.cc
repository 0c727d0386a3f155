#include "offload/plan/lane_set.h"

#include <algorithm>

namespace strata {
namespace {

int32_t AddLane(LaneKind kind, std::vector<Lane>* lanes) {
  int32_t index = 0;
  for (const Lane& lane : *lanes) index += lane.kind == kind;
  lanes->push_back(Lane{kind, index});
  return static_cast<int32_t>(lanes->size() - 1);
}

NvmeLanes AddNvmeLanes(std::vector<Lane>* lanes) {
  NvmeLanes added;
  added.read = AddLane(LaneKind::kNvmeRead, lanes);
  added.write = AddLane(LaneKind::kNvmeWrite, lanes);
  return added;
}

}  // namespace

LaneSet MakeLanes(const PlanChoice& choice, const SlotTable& table, PlanKind kind, std::vector<Lane>* lanes) {
  const bool train = kind == PlanKind::kTrain;
  LaneSet set;
  set.batch = AddLane(LaneKind::kControl, lanes);
  set.commit = AddLane(LaneKind::kControl, lanes);
  set.compute = AddLane(LaneKind::kCompute, lanes);
  set.cpu = AddLane(LaneKind::kCpu, lanes);
  set.h2d = AddLane(LaneKind::kH2D, lanes);
  set.d2h = AddLane(LaneKind::kD2H, lanes);
  bool home = false, params = false, records = false, held = false, sums = false;
  for (const PlanChoice::UnitHome& unit : choice.units) {
    home |= train && unit.params == Tier::kDevice && unit.record != Tier::kDevice;
    params |= unit.params == Tier::kNvme;
    records |= unit.record == Tier::kNvme;
    sums |= train && unit.gradients == Tier::kNvme;
  }
  for (const SlotTable::Held* of : {&table.activation, &table.saved, &table.saved_rest}) {
    for (const int32_t item : of->item) held |= item >= 0;
  }
  if (home) set.home = AddLane(LaneKind::kH2D, lanes);
  if (choice.io_threads == 1) {
    if (!params && !records && !held && !sums) return set;
    const NvmeLanes all = AddNvmeLanes(lanes);
    set.params = set.held = set.sums = all;
    set.records = {all};
    return set;
  }
  if (params) set.params = AddNvmeLanes(lanes);
  if (records) {
    const int count = std::max(1, choice.io_threads - static_cast<int>(params) - held - sums);
    for (int i = 0; i < count; ++i) set.records.push_back(AddNvmeLanes(lanes));
  }
  if (held) set.held = AddNvmeLanes(lanes);
  if (sums) set.sums = AddNvmeLanes(lanes);
  return set;
}

}  // namespace strata
