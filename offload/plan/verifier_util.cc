#include "offload/plan/verifier_util.h"

#include <utility>
#include <vector>

namespace strata::verifier {
int64_t AccSize(const StepPlan& plan) { return plan.compute_dtype == DType::kF64 ? 8 : 4; }

// Master weights and m and v: floats, or a byte each and a float for 64.
int64_t RecordSize(const StepPlan& plan, int64_t n) {
  return plan.moments == Moments::kF32 ? 12 * n : 4 * n + 2 * (n + (n + 63) / 64 * 4);
}

bool IsOfUnit(ContentKind kind) {
  return kind == ContentKind::kParams || kind == ContentKind::kGradient ||
         kind == ContentKind::kAccumulated || kind == ContentKind::kPending || kind == ContentKind::kRecord;
}

bool UnitRange(const StepPlan& plan, const Content& content, int64_t* begin, int64_t* end) {
  if (!IsOfUnit(content.kind)) return false;
  const std::vector<ChunkInfo>& chunks = plan.chunks[content.unit];
  const bool whole = content.chunk < 0;
  int64_t first = whole ? 0 : chunks[content.chunk].begin;
  int64_t last = whole ? chunks.back().end : chunks[content.chunk].end;
  int64_t size = AccSize(plan);
  if (content.kind == ContentKind::kParams) size = SizeOf(plan.compute_dtype);
  if (content.kind == ContentKind::kRecord) {
    last = RecordSize(plan, last - std::exchange(first, 0));  // Each chunk's record is a buffer of its own.
    size = 1;
  }
  *begin = first * size;
  *end = last * size;
  return true;
}

bool IsOfBlock(ContentKind kind) {
  return kind == ContentKind::kActivation || kind == ContentKind::kSaved || kind == ContentKind::kSavedRest ||
         kind == ContentKind::kActGradient;
}

BlockSizes::BlockSizes(const StepPlan& plan) {
  for (const Op& op : plan.ops) {
    if (IsStoreTransfer(op.kind)) continue;
    for (const Operand& operand : op.operands) {
      if (IsOfBlock(operand.content.kind))
        bytes_.emplace(std::pair(operand.content.kind, operand.content.block), operand.bytes);
    }
  }
}

int64_t BlockSizes::Of(const Content& content) const {
  const auto found = bytes_.find({content.kind, content.block});
  return found == bytes_.end() ? -1 : found->second;
}

bool IsStoreTransfer(OpKind kind) { return ReadsStore(kind) || kind == OpKind::kWrite || IsDirect(kind); }

bool IsTransfer(OpKind kind) {
  return IsStoreTransfer(kind) || kind == OpKind::kH2D || kind == OpKind::kD2H || kind == OpKind::kActOut ||
         kind == OpKind::kActIn;
}

}  // namespace strata::verifier
