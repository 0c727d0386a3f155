#include "offload/plan/update_order.h"

#include <algorithm>

namespace strata {
namespace {

// Of a step's computing. Copies and what else a pass waits for are in no FLOPs: never less than a quarter.
double ForwardShare(const ModelLayout& layout, const PlanChoice& choice) {
  double forward = 0, backward = 0;
  for (size_t b = 0; b < layout.blocks.size(); ++b) {
    const Block& block = layout.blocks[b];
    forward += block.forward_flops;
    backward += block.backward_flops;
    if (block.kind != BlockKind::kTransformer) continue;
    if (choice.blocks[b].saved == PlanChoice::Saved::kSelective) backward += block.rest_flops;
    if (choice.blocks[b].saved == PlanChoice::Saved::kRecompute) backward += block.forward_flops;
  }
  return forward + backward > 0 ? std::clamp(forward / (forward + backward), 0.25, 0.5) : 0.5;
}

}  // namespace

std::vector<bool> UpdatedBeforeClip(const ModelLayout& layout, const std::vector<int>& first_use_order,
                                    const PlanChoice& choice) {
  std::vector<bool> before(layout.units.size(), false);
  if (!MayAssume(choice.mode)) return before;
  const double forward_share = ForwardShare(layout, choice);
  double elements_before = 0, elements_after = 0;
  for (const int u : first_use_order) {
    if (choice.units[u].record != Tier::kNvme || layout.units[u].frozen()) continue;
    before[u] = elements_before * forward_share < elements_after * (1 - forward_share);
    (before[u] ? elements_before : elements_after) += static_cast<double>(layout.units[u].elements);
  }
  return before;
}

}  // namespace strata
