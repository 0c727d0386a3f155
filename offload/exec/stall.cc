#include "offload/exec/stall.h"

namespace strata {
namespace {

bool Overlap(const Operand& a, const Operand& b) {
  return a.slot == b.slot && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

bool IsGradient(const Content& content) {
  return content.kind == ContentKind::kGradient || content.kind == ContentKind::kAccumulated ||
         content.kind == ContentKind::kPending;
}

StallCause ByProducer(const Op& producer, bool gradient) {
  switch (producer.kind) {
    case OpKind::kBatch:
      return StallCause::kBatch;
    case OpKind::kRead:
    case OpKind::kReadDirect:
      return StallCause::kRead;
    case OpKind::kWrite:
    case OpKind::kWriteDirect:
      return StallCause::kWrite;
    case OpKind::kH2D:
    case OpKind::kD2H:
    case OpKind::kActOut:
    case OpKind::kActIn:
      return gradient ? StallCause::kGradient : StallCause::kCopy;
    case OpKind::kForward:
    case OpKind::kRecompute:
    case OpKind::kLoss:
    case OpKind::kBackward:
      return gradient ? StallCause::kGradient : StallCause::kCompute;
    case OpKind::kAccumulate:
    case OpKind::kHandOver:
      return StallCause::kGradient;
    case OpKind::kNorm:
    case OpKind::kClip:
      return StallCause::kNorm;
    case OpKind::kUpdate:
      return StallCause::kUpdate;
    case OpKind::kCommit:
      return StallCause::kCommit;
  }
  return StallCause::kSlot;
}

}  // namespace

const char* Name(StallCause cause) {
  switch (cause) {
    case StallCause::kRead:
      return "wait_read";
    case StallCause::kCopy:
      return "wait_copy";
    case StallCause::kCompute:
      return "wait_compute";
    case StallCause::kGradient:
      return "wait_gradient";
    case StallCause::kNorm:
      return "wait_norm";
    case StallCause::kUpdate:
      return "wait_update";
    case StallCause::kWrite:
      return "wait_write";
    case StallCause::kSlot:
      return "wait_slot";
    case StallCause::kBatch:
      return "wait_batch";
    case StallCause::kCommit:
      return "wait_commit";
  }
  return "?";
}

StallCause StallCauseOf(const StepPlan& plan, const Op& op, const Dependency& dependency) {
  const Op& producer = plan.ops[dependency.op];
  bool conflict = false;
  for (const Operand& mine : op.operands) {
    for (const Operand& theirs : producer.operands) {
      if (!Overlap(mine, theirs)) continue;
      // Read after write: the bytes themselves are waited for.
      if (mine.access != Access::kWrite && theirs.access != Access::kRead)
        return ByProducer(producer, IsGradient(theirs.content));
      conflict |= mine.access != Access::kRead || theirs.access != Access::kRead;
    }
  }
  if (!conflict) return ByProducer(producer, false);
  return producer.kind == OpKind::kWrite || producer.kind == OpKind::kWriteDirect ? StallCause::kWrite
                                                                                  : StallCause::kSlot;
}

}  // namespace strata
