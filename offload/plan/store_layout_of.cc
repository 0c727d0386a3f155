#include "offload/plan/store_layout_of.h"

namespace strata {

StoreLayout StoreLayoutOf(const StepPlan& plan) {
  StoreLayout layout;
  layout.write_ahead_items = 0;
  for (size_t s = 0; s < plan.slots.size(); ++s) {
    if (plan.slots[s].tier != Tier::kNvme) continue;
    StoreItem item;
    item.id = static_cast<ItemId>(s);
    item.bytes = static_cast<uint64_t>(plan.slots[s].bytes);
    item.kind = plan.slots[s].persistent ? ItemKind::kVersioned : ItemKind::kScratch;
    layout.items.push_back(item);
  }
  return layout;
}

}  // namespace strata
