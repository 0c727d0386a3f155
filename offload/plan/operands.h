// Operands and contents in few words: the vocabulary of what emits operations.
#ifndef OFFLOAD_PLAN_OPERANDS_H_
#define OFFLOAD_PLAN_OPERANDS_H_

#include <cstdint>

#include "offload/plan/step_plan.h"

namespace strata::operands {

inline Operand Make(Access access, int32_t slot, int64_t offset, int64_t bytes, Content content) {
  Operand operand;
  operand.access = access;
  operand.slot = slot;
  operand.offset = offset;
  operand.bytes = bytes;
  operand.content = content;
  return operand;
}
inline Operand R(int32_t slot, int64_t offset, int64_t bytes, Content content) {
  return Make(Access::kRead, slot, offset, bytes, content);
}
inline Operand W(int32_t slot, int64_t offset, int64_t bytes, Content content) {
  return Make(Access::kWrite, slot, offset, bytes, content);
}
inline Operand RW(int32_t slot, int64_t offset, int64_t bytes, Content before, Content after) {
  Operand operand = Make(Access::kReadWrite, slot, offset, bytes, after);
  operand.before = before;
  return operand;
}

inline Content Params(int unit, int chunk, int updates) {
  Content content;
  content.kind = ContentKind::kParams;
  content.unit = unit;
  content.chunk = chunk;
  content.updates = static_cast<int8_t>(updates);
  return content;
}
inline Content Record(int unit, int chunk, int updates) {
  Content content = Params(unit, chunk, updates);
  content.kind = ContentKind::kRecord;
  return content;
}
inline Content Pending(int unit, int chunk, int updates) {
  Content content = Params(unit, chunk, updates);
  content.kind = ContentKind::kPending;
  return content;
}
inline Content OfBlock(ContentKind kind, int block, int mb) {
  Content content;
  content.kind = kind;
  content.block = static_cast<int16_t>(block);
  content.micro_batch = mb;
  return content;
}
inline Content Gradient(int block, int unit, int mb) {
  Content content = OfBlock(ContentKind::kGradient, block, mb);
  content.unit = unit;
  return content;
}
inline Content Accumulated(int unit, int chunk, int64_t contributions) {
  Content content;
  content.kind = ContentKind::kAccumulated;
  content.unit = unit;
  content.chunk = chunk;
  content.contributions = static_cast<int32_t>(contributions);
  return content;
}
inline Content Batch(int mb) {
  Content content;
  content.kind = ContentKind::kBatch;
  content.micro_batch = mb;
  return content;
}

}  // namespace strata::operands

#endif  // OFFLOAD_PLAN_OPERANDS_H_
