#include "offload/plan/plan_text.h"

#include "absl/strings/str_cat.h"

namespace strata {
namespace {

void AppendField(const char* name, int64_t value, std::string* text) {
  if (value >= 0) absl::StrAppend(text, " ", name, " ", value);
}

}  // namespace

std::string Describe(const Content& content) {
  std::string text = Name(content.kind);
  AppendField("block", content.block, &text);
  AppendField("unit", content.unit, &text);
  AppendField("chunk", content.chunk, &text);
  AppendField("micro-batch", content.micro_batch, &text);
  AppendField("contributions", content.contributions, &text);
  if (content.kind == ContentKind::kParams || content.kind == ContentKind::kRecord)
    AppendField("updates", content.updates, &text);
  return text;
}

std::string DescribeLane(const Lane& lane) {
  return absl::StrCat(Name(lane.kind), lane.direct ? "-direct." : ".", lane.index);
}

std::string DescribeOp(const StepPlan& plan, int32_t op) {
  if (op < 0 || op >= static_cast<int32_t>(plan.ops.size())) return absl::StrCat("op ", op);
  const Op& o = plan.ops[op];
  std::string text = absl::StrCat("op ", op, " ", Name(o.kind));
  AppendField("block", o.block, &text);
  AppendField("unit", o.unit, &text);
  AppendField("chunk", o.chunk, &text);
  AppendField("micro-batch", o.micro_batch, &text);
  if (o.lane >= 0 && o.lane < static_cast<int32_t>(plan.lanes.size()))
    absl::StrAppend(&text, " on ", DescribeLane(plan.lanes[o.lane]));
  return text;
}

std::string DescribeSlot(const StepPlan& plan, int32_t slot) {
  if (slot < 0 || slot >= static_cast<int32_t>(plan.slots.size())) return absl::StrCat("slot ", slot);
  const Slot& s = plan.slots[slot];
  return absl::StrCat("slot ", slot, " ", s.name, " (", Name(s.tier), ")");
}

}  // namespace strata
