#include "offload/plan/lane_set.h"

#include <algorithm>

namespace strata {
namespace {

// Operations of an NVMe lane in flight. Two keep the disk busy across the end of one; more help where they
// are small.
constexpr int kNvmeWindowMax = 4;

class Adder {
 public:
  Adder(const PlanChoice& choice, std::vector<Lane>* lanes)
      : window_(std::min(choice.prefetch_depth, kNvmeWindowMax)), lanes_(*lanes) {}

  int32_t Add(LaneKind kind) { return Add(Lane{.kind = kind}); }
  int32_t AddNvme(LaneKind kind, bool direct) {
    return Add(Lane{.kind = kind, .window = window_, .direct = direct});
  }
  NvmeLanes AddNvmeLanes(bool direct = false) {
    NvmeLanes added;
    added.read = AddNvme(LaneKind::kNvmeRead, direct);
    added.write = AddNvme(LaneKind::kNvmeWrite, direct);
    return added;
  }

 private:
  int32_t Add(Lane lane) {
    for (const Lane& other : lanes_) lane.index += other.kind == lane.kind;
    lanes_.push_back(lane);
    return static_cast<int32_t>(lanes_.size() - 1);
  }

  const int32_t window_;
  std::vector<Lane>& lanes_;
};

}  // namespace

LaneSet MakeLanes(const PlanChoice& choice, const std::vector<bool>& frozen, const SlotTable& table,
                  PlanKind kind, bool redoes, std::vector<Lane>* lanes) {
  const bool train = kind == PlanKind::kTrain;
  Adder add(choice, lanes);
  LaneSet set;
  set.batch = add.Add(LaneKind::kControl);
  set.commit = add.Add(LaneKind::kControl);
  set.compute = add.Add(LaneKind::kCompute);
  set.cpu = add.Add(LaneKind::kCpu);
  set.h2d = add.Add(LaneKind::kH2D);
  set.d2h = add.Add(LaneKind::kD2H);
  bool home = false, params = false, updated = false, records = false, held = false, sums = false;
  for (size_t u = 0; u < choice.units.size(); ++u) {
    const PlanChoice::UnitHome& unit = choice.units[u];
    params |= unit.params == Tier::kNvme;
    if (frozen[u]) continue;
    home |= train && unit.params == Tier::kDevice && unit.record != Tier::kDevice;
    updated |= train && unit.params == Tier::kNvme;
    records |= unit.record == Tier::kNvme;
    sums |= train && unit.gradients == Tier::kNvme;
  }
  for (const SlotTable::Held* of : {&table.activation, &table.saved, &table.saved_rest}) {
    for (const int32_t item : of->item) held |= item >= 0;
  }
  if (home) set.home = add.Add(LaneKind::kH2D);
  NvmeLanes direct_params, direct_held;
  if (choice.direct && params) direct_params.read = add.AddNvme(LaneKind::kNvmeRead, /*direct=*/true);
  if (choice.direct && held) direct_held = add.AddNvmeLanes(/*direct=*/true);
  if (choice.direct) {
    // What is left for lanes of the host's memory.
    params = updated;
    held = false;
  }
  if (choice.io_threads == 1 && (params || records || held || sums)) {
    const NvmeLanes all = add.AddNvmeLanes();
    set.params = set.held = set.sums = all;
    set.records = {all};
  } else {
    if (params && choice.direct) set.params.write = add.AddNvme(LaneKind::kNvmeWrite, /*direct=*/false);
    if (params && !choice.direct) set.params = add.AddNvmeLanes();
    const int count = std::max(1, choice.io_threads - static_cast<int>(params) - held - sums);
    for (int i = 0; records && i < count; ++i) set.records.push_back(add.AddNvmeLanes());
    if (held) set.held = add.AddNvmeLanes();
    if (sums) set.sums = add.AddNvmeLanes();
  }
  if (redoes) set.redo = add.AddNvmeLanes();
  if (choice.direct) {
    set.params.read = direct_params.read;
    set.held = direct_held;
  }
  return set;
}

}  // namespace strata
