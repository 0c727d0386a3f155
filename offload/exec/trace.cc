#include "offload/exec/trace.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/fd.h"

namespace strata {

std::string Describe(const StepPlan& plan, const Op& op) {
  std::string text = Name(op.kind);
  if (op.block >= 0) absl::StrAppend(&text, " block ", op.block);
  if (op.unit >= 0) absl::StrAppend(&text, " unit ", op.unit);
  if (op.chunk >= 0) absl::StrAppend(&text, " chunk ", op.chunk);
  if (op.micro_batch >= 0) absl::StrAppend(&text, " micro-batch ", op.micro_batch);
  for (const Operand& operand : op.operands) {
    if (operand.access != Access::kRead && operand.content.kind != ContentKind::kWorkspace) {
      absl::StrAppend(&text, " -> ", plan.slots[operand.slot].name);
      break;
    }
  }
  return text;
}

std::string LaneName(const Lane& lane) {
  return absl::StrCat(Name(lane.kind), lane.direct ? "-direct" : "",
                      lane.index == 0 ? "" : absl::StrCat("-", lane.index + 1));
}

absl::Status WriteChromeTrace(const std::string& path, const StepPlan& plan,
                              const std::vector<LaneTrace>& lanes) {
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const LaneTrace& lane : lanes) {
    if (!lane.spans().empty()) origin = std::min(origin, lane.spans().front().wait_begin_nanos);
  }
  std::string json = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  absl::StrAppend(&json, R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"strata trainer"}})");
  for (size_t i = 0; i < lanes.size(); ++i) {
    // Names hold letters, digits, dots and dashes only: they need no JSON escapes.
    absl::StrAppendFormat(
        &json, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}",
        i, LaneName(plan.lanes[i]));
    absl::StrAppendFormat(
        &json,
        ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}",
        i, i);
    for (const Span& span : lanes[i].spans()) {
      const Op& op = plan.ops[span.op];
      absl::StrAppendFormat(
          &json,
          ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"cat\":\"%s\",\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f,"
          "\"args\":{\"step\":%d,\"bytes\":%d,\"flops\":%.0f,\"waited_us\":%.3f}}",
          i, Name(op.kind), Describe(plan, op), static_cast<double>(span.begin_nanos - origin) / 1e3,
          static_cast<double>(span.end_nanos - span.begin_nanos) / 1e3, span.step, op.bytes, op.flops,
          static_cast<double>(span.begin_nanos - span.wait_begin_nanos) / 1e3);
    }
  }
  json += "\n]}\n";
  return WriteFileDurably(path, json);
}

}  // namespace strata
