// Structure: everything that later passes may rely on.
#include <algorithm>
#include <tuple>
#include <vector>

#include "common/checked.h"
#include "common/status.h"
#include "offload/plan/plan_text.h"
#include "offload/plan/verifier_util.h"

namespace strata::verifier {
namespace {

absl::Status CheckSlots(const StepPlan& plan) {
  std::vector<int32_t> order;
  for (int32_t s = 0; s < static_cast<int32_t>(plan.slots.size()); ++s) {
    const Slot& slot = plan.slots[s];
    if (static_cast<int>(slot.tier) >= kTierCount) return Wrong("slot ", s, " is in no tier");
    if (slot.bytes <= 0 || slot.bytes % kSlotAlignment != 0)
      return Wrong(DescribeSlot(plan, s), ": ", slot.bytes, " bytes are not whole blocks of ",
                   kSlotAlignment);
    if (slot.tier == Tier::kNvme) continue;
    const int64_t arena = plan.arena_bytes[static_cast<int>(slot.tier)];
    if (slot.offset < 0 || slot.offset % kSlotAlignment != 0 || slot.bytes > arena ||
        slot.offset > arena - slot.bytes)
      return Wrong(DescribeSlot(plan, s), ": [", slot.offset, ", +", slot.bytes,
                   ") is not aligned or not inside the arena of ", arena, " bytes");
    order.push_back(s);
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::tie(plan.slots[a].tier, plan.slots[a].offset) <
           std::tie(plan.slots[b].tier, plan.slots[b].offset);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const Slot& before = plan.slots[order[i - 1]];
    const Slot& slot = plan.slots[order[i]];
    if (before.tier == slot.tier && before.offset + before.bytes > slot.offset)
      return Wrong(DescribeSlot(plan, order[i - 1]), " and ", DescribeSlot(plan, order[i]), " overlap");
  }
  int64_t nvme = 0;
  for (const Slot& slot : plan.slots) {
    // A state has the committed version and the next one; what does not persist is overwritten in place.
    if (slot.tier == Tier::kNvme) nvme += (slot.persistent ? 2 : 1) * slot.bytes;
  }
  if (plan.arena_bytes[static_cast<int>(Tier::kNvme)] < nvme)
    return Wrong("NVMe capacity of ", plan.arena_bytes[static_cast<int>(Tier::kNvme)], " bytes for items of ",
                 nvme, " bytes");
  return absl::OkStatus();
}

absl::Status CheckLanes(const StepPlan& plan) {
  for (const Lane& lane : plan.lanes) {
    const bool nvme = lane.kind == LaneKind::kNvmeRead || lane.kind == LaneKind::kNvmeWrite;
    if (lane.window < 1 || (lane.window > 1 && !nvme))
      return Wrong(DescribeLane(lane), ": ", lane.window, " operations in flight");
    if (lane.direct && !nvme) return Wrong(DescribeLane(lane), " cannot be direct: it is no NVMe lane");
  }
  return absl::OkStatus();
}

absl::Status CheckHome(const StepPlan& plan, size_t unit, size_t chunk, const char* what, int32_t slot,
                       int64_t offset, int64_t bytes) {
  if (slot < 0 || slot >= static_cast<int32_t>(plan.slots.size()))
    return Wrong(what, " of unit ", unit, " chunk ", chunk, " have no home");
  const Slot& home = plan.slots[slot];
  if (!home.persistent)
    return Wrong(what, " of unit ", unit, " chunk ", chunk, ": ", DescribeSlot(plan, slot),
                 " does not persist");
  if (offset < 0 || offset > home.bytes - bytes || (home.tier == Tier::kNvme && offset != 0))
    return Wrong(what, " of unit ", unit, " chunk ", chunk, " do not fit in ", DescribeSlot(plan, slot));
  return absl::OkStatus();
}

absl::Status CheckPending(const StepPlan& plan) {
  if (plan.pending.size() != (plan.mode == Mode::kDelayed ? plan.chunks.size() : 0))
    return Wrong(plan.pending.size(), " pending gradients for ", plan.chunks.size(), " units in mode ",
                 Name(plan.mode));
  for (size_t u = 0; u < plan.pending.size(); ++u) {
    Content content;
    content.kind = ContentKind::kPending;
    content.unit = static_cast<int32_t>(u);
    int64_t begin = 0, end = 0;
    UnitRange(plan, content, &begin, &end);
    STRATA_RETURN_IF_ERROR(CheckHome(plan, u, 0, "pending gradients", plan.pending[u], 0, end));
    if (plan.slots[plan.pending[u]].tier == Tier::kNvme)
      return Wrong("the pending gradient of unit ", u, " is on NVMe");
  }
  return absl::OkStatus();
}

absl::Status CheckChunks(const StepPlan& plan) {
  if (plan.frozen.size() != plan.chunks.size())
    return Wrong("what is frozen is said of ", plan.frozen.size(), " of ", plan.chunks.size(), " units");
  if (plan.homes.size() != plan.chunks.size()) return Wrong("homes and chunks are of different units");
  for (size_t u = 0; u < plan.chunks.size(); ++u) {
    if (plan.chunks[u].empty() || plan.homes[u].size() != plan.chunks[u].size())
      return Wrong("unit ", u, " has ", plan.chunks[u].size(), " chunks and ", plan.homes[u].size(),
                   " homes");
    int64_t at = 0;
    for (size_t k = 0; k < plan.chunks[u].size(); ++k) {
      const ChunkInfo& chunk = plan.chunks[u][k];
      if (chunk.unit != static_cast<int32_t>(u) || chunk.begin != at || chunk.end <= at)
        return Wrong("chunk ", k, " of unit ", u, " does not continue the unit at element ", at);
      at = chunk.end;
      const ChunkHome& home = plan.homes[u][k];
      const int64_t n = chunk.end - chunk.begin;
      STRATA_RETURN_IF_ERROR(CheckHome(plan, u, k, "optimizer records", home.record_slot, home.record_offset,
                                       RecordSize(plan, n)));
      STRATA_RETURN_IF_ERROR(CheckHome(plan, u, k, "parameters", home.params_slot, home.params_offset,
                                       n * SizeOf(plan.compute_dtype)));
    }
  }
  return absl::OkStatus();
}

// Between runs one chunk's record and parameters pass through the host arena behind the persistent slots.
absl::Status CheckStateStaging(const StepPlan& plan) {
  int64_t persistent = 0, staging = 0;
  for (const Slot& slot : plan.slots) {
    if (slot.tier == Tier::kHost && slot.persistent)
      persistent = std::max(persistent, slot.offset + slot.bytes);
  }
  for (const auto& unit : plan.chunks) {
    for (const ChunkInfo& chunk : unit) {
      const int64_t n = chunk.end - chunk.begin;
      staging = std::max(
          staging, RoundUp(RecordSize(plan, n), kBlock) + RoundUp(n * SizeOf(plan.compute_dtype), kBlock));
    }
  }
  const int64_t arena = plan.arena_bytes[static_cast<int>(Tier::kHost)];
  if (arena - persistent < staging)
    return Wrong("a host arena of ", arena, " bytes has no ", staging,
                 " bytes for states behind the persistent ", persistent);
  return absl::OkStatus();
}

absl::Status CheckSize(const StepPlan& plan, int32_t op, const Operand& operand, const Content& content,
                       int64_t bytes) {
  if (bytes < 0) return Wrong(DescribeOp(plan, op), ": no operation makes or uses ", Describe(content));
  if (IsStoreTransfer(plan.ops[op].kind)) bytes = RoundUp(bytes, kBlock);
  if (operand.bytes != bytes)
    return Wrong(DescribeOp(plan, op), ": ", Describe(content), " is ", bytes, " bytes, not ", operand.bytes);
  return absl::OkStatus();
}

absl::Status CheckContent(const StepPlan& plan, const BlockSizes& sizes, int32_t op, const Operand& operand,
                          const Content& content) {
  if (IsOfBlock(content.kind)) return CheckSize(plan, op, operand, content, sizes.Of(content));
  if (!IsOfUnit(content.kind)) return absl::OkStatus();
  if (content.unit < 0 || content.unit >= static_cast<int32_t>(plan.chunks.size()) ||
      content.chunk >= static_cast<int32_t>(plan.chunks[content.unit].size()) || content.chunk < -1)
    return Wrong(DescribeOp(plan, op), ": ", Describe(content), " does not exist");
  if (content.kind == ContentKind::kRecord && content.chunk < 0)
    return Wrong(DescribeOp(plan, op), ": a record without its chunk");
  int64_t begin = 0, end = 0;
  UnitRange(plan, content, &begin, &end);
  return CheckSize(plan, op, operand, content, end - begin);
}

// What an operation writes is nothing else that it uses.
absl::Status CheckOperandsApart(const StepPlan& plan, int32_t op) {
  const std::vector<Operand>& operands = plan.ops[op].operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const Operand &a = operands[j], &b = operands[i];
      if (a.slot != b.slot || (a.access == Access::kRead && b.access == Access::kRead)) continue;
      if (a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes)
        return Wrong(DescribeOp(plan, op), ": ", Describe(a.content), " and ", Describe(b.content),
                     " overlap in ", DescribeSlot(plan, a.slot));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOps(const StepPlan& plan) {
  const int32_t ops = static_cast<int32_t>(plan.ops.size());
  const BlockSizes sizes(plan);
  for (int32_t i = 0; i < ops; ++i) {
    const Op& op = plan.ops[i];
    if (op.lane < 0 || op.lane >= static_cast<int32_t>(plan.lanes.size()))
      return Wrong(DescribeOp(plan, i), ": no lane ", op.lane);
    for (const Operand& operand : op.operands) {
      if (operand.slot < 0 || operand.slot >= static_cast<int32_t>(plan.slots.size()))
        return Wrong(DescribeOp(plan, i), ": no slot ", operand.slot);
      const int64_t size = plan.slots[operand.slot].bytes;
      if (operand.bytes < 0 || operand.offset < 0 || operand.offset % 64 != 0 || operand.bytes > size ||
          operand.offset > size - operand.bytes)
        return Wrong(DescribeOp(plan, i), ": [", operand.offset, ", +", operand.bytes,
                     ") is not aligned or not inside ", DescribeSlot(plan, operand.slot), " of ", size,
                     " bytes");
      STRATA_RETURN_IF_ERROR(CheckContent(plan, sizes, i, operand, operand.content));
      if (operand.access == Access::kReadWrite)
        STRATA_RETURN_IF_ERROR(CheckContent(plan, sizes, i, operand, operand.before));
    }
    STRATA_RETURN_IF_ERROR(CheckOperandsApart(plan, i));
    for (const Dependency& on : op.dependencies) {
      if (on.op < 0 || on.op >= ops || on.distance < 0 || on.distance > 1)
        return Wrong(DescribeOp(plan, i), " waits for op ", on.op, " at distance ", on.distance,
                     ", which does not exist");
      if (on.distance == 0 && on.op >= i)
        return Wrong(DescribeOp(plan, i), " waits for ", DescribeOp(plan, on.op),
                     ", which is not earlier in program order: a cycle");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStructure(const StepPlan& plan) {
  STRATA_RETURN_IF_ERROR(CheckSlots(plan));
  STRATA_RETURN_IF_ERROR(CheckLanes(plan));
  STRATA_RETURN_IF_ERROR(CheckChunks(plan));
  STRATA_RETURN_IF_ERROR(CheckPending(plan));
  STRATA_RETURN_IF_ERROR(CheckStateStaging(plan));
  return CheckOps(plan);
}

}  // namespace strata::verifier
