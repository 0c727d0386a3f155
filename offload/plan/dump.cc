#include "offload/plan/dump.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "offload/plan/plan_text.h"

namespace strata {
namespace {

const char* AccessName(Access access) {
  switch (access) {
    case Access::kRead:
      return "R";
    case Access::kWrite:
      return "W";
    case Access::kReadWrite:
      return "RW";
  }
  return "?";
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      absl::StrAppend(&out, "\\", std::string(1, c));
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&out, "\\u%04x", c);
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

std::string DependencyText(const Dependency& on) {
  return absl::StrCat(on.op, on.distance == 0 ? "" : "'");  // ': of the step before
}

std::string OpJson(const StepPlan& plan, const Op& op) {
  std::string out =
      absl::StrCat("{\"kind\":\"", Name(op.kind), "\",\"lane\":\"", DescribeLane(plan.lanes[op.lane]),
                   "\",\"block\":", op.block, ",\"unit\":", op.unit, ",\"chunk\":", op.chunk,
                   ",\"micro_batch\":", op.micro_batch, ",\"bytes\":", op.bytes,
                   absl::StrFormat(",\"flops\":%.0f,\"operands\":[", op.flops));
  for (size_t i = 0; i < op.operands.size(); ++i) {
    const Operand& operand = op.operands[i];
    absl::StrAppend(&out, i == 0 ? "" : ",", "{\"access\":\"", AccessName(operand.access),
                    "\",\"slot\":", operand.slot, ",\"offset\":", operand.offset,
                    ",\"bytes\":", operand.bytes, ",\"content\":", Quoted(Describe(operand.content)));
    if (operand.access == Access::kReadWrite)
      absl::StrAppend(&out, ",\"before\":", Quoted(Describe(operand.before)));
    absl::StrAppend(&out, "}");
  }
  absl::StrAppend(&out, "],\"dependencies\":[");
  for (size_t i = 0; i < op.dependencies.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ",", "{\"op\":", op.dependencies[i].op,
                    ",\"distance\":", op.dependencies[i].distance, "}");
  }
  return out + "]}";
}

const char* KindName(PlanKind kind) { return kind == PlanKind::kTrain ? "train" : "eval"; }

}  // namespace

std::string DumpText(const StepPlan& plan) {
  std::string out = absl::StrCat(KindName(plan.kind), " plan, mode ", Name(plan.mode),
                                 plan.clip ? ", clipping" : "", ", ", plan.micro_batches, " micro-batches, ",
                                 Name(plan.compute_dtype), ", ", OptimizerName(plan.moments), ", ",
                                 plan.ops.size(), " operations on ", plan.lanes.size(), " lanes\n");
  for (int t = 0; t < kTierCount; ++t)
    absl::StrAppend(&out, Name(static_cast<Tier>(t)), " ", plan.arena_bytes[t], " bytes\n");
  for (size_t s = 0; s < plan.slots.size(); ++s) {
    const Slot& slot = plan.slots[s];
    absl::StrAppend(&out, DescribeSlot(plan, static_cast<int32_t>(s)), " at ", slot.offset, ", ", slot.bytes,
                    " bytes", slot.persistent ? ", persistent" : "", "\n");
  }
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    absl::StrAppend(&out, DescribeOp(plan, static_cast<int32_t>(i)));
    for (const Dependency& on : op.dependencies)
      absl::StrAppend(&out, &on == &op.dependencies[0] ? ", after " : " ", DependencyText(on));
    absl::StrAppend(&out, "\n");
    for (const Operand& operand : op.operands) {
      absl::StrAppend(&out, "  ", AccessName(operand.access), " ", DescribeSlot(plan, operand.slot), " +",
                      operand.offset, " ", operand.bytes, " bytes: ", Describe(operand.content), "\n");
    }
  }
  return out;
}

std::string DumpJson(const StepPlan& plan) {
  std::string out =
      absl::StrCat("{\"kind\":\"", KindName(plan.kind), "\",\"mode\":\"", Name(plan.mode),
                   "\",\"clip\":", plan.clip ? "true" : "false", ",\"micro_batches\":", plan.micro_batches,
                   ",\"compute_dtype\":\"", Name(plan.compute_dtype), "\",\"optimizer\":\"",
                   OptimizerName(plan.moments), "\",\"arena_bytes\":{");
  for (int t = 0; t < kTierCount; ++t)
    absl::StrAppend(&out, t == 0 ? "" : ",", "\"", Name(static_cast<Tier>(t)), "\":", plan.arena_bytes[t]);
  absl::StrAppend(&out, "},\"lanes\":[");
  for (size_t i = 0; i < plan.lanes.size(); ++i)
    absl::StrAppend(&out, i == 0 ? "" : ",", "\"", DescribeLane(plan.lanes[i]), "\"");
  absl::StrAppend(&out, "],\"slots\":[");
  for (size_t s = 0; s < plan.slots.size(); ++s) {
    const Slot& slot = plan.slots[s];
    absl::StrAppend(&out, s == 0 ? "" : ",", "{\"name\":", Quoted(slot.name), ",\"tier\":\"", Name(slot.tier),
                    "\",\"offset\":", slot.offset, ",\"bytes\":", slot.bytes,
                    ",\"persistent\":", slot.persistent ? "true" : "false", "}");
  }
  absl::StrAppend(&out, "],\"ops\":[");
  for (size_t i = 0; i < plan.ops.size(); ++i)
    absl::StrAppend(&out, i == 0 ? "\n" : ",\n", OpJson(plan, plan.ops[i]));
  return out + "]}\n";
}

}  // namespace strata
