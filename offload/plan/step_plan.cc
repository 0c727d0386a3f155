#include "offload/plan/step_plan.h"

namespace strata {

const char* Name(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "device";
    case Tier::kHost:
      return "host";
    case Tier::kNvme:
      return "nvme";
  }
  return "?";
}

const char* Name(LaneKind kind) {
  switch (kind) {
    case LaneKind::kControl:
      return "control";
    case LaneKind::kNvmeRead:
      return "nvme-read";
    case LaneKind::kNvmeWrite:
      return "nvme-write";
    case LaneKind::kH2D:
      return "h2d";
    case LaneKind::kD2H:
      return "d2h";
    case LaneKind::kCompute:
      return "compute";
    case LaneKind::kCpu:
      return "cpu";
  }
  return "?";
}

const char* Name(OpKind kind) {
  switch (kind) {
    case OpKind::kBatch:
      return "BATCH";
    case OpKind::kRead:
      return "READ";
    case OpKind::kWrite:
      return "WRITE";
    case OpKind::kReadDirect:
      return "READ_DIRECT";
    case OpKind::kWriteDirect:
      return "WRITE_DIRECT";
    case OpKind::kH2D:
      return "H2D";
    case OpKind::kD2H:
      return "D2H";
    case OpKind::kActOut:
      return "ACT_OUT";
    case OpKind::kActIn:
      return "ACT_IN";
    case OpKind::kForward:
      return "FORWARD";
    case OpKind::kRecompute:
      return "RECOMPUTE";
    case OpKind::kLoss:
      return "LOSS";
    case OpKind::kBackward:
      return "BACKWARD";
    case OpKind::kAccumulate:
      return "ACCUMULATE";
    case OpKind::kNorm:
      return "NORM";
    case OpKind::kClip:
      return "CLIP";
    case OpKind::kUpdate:
      return "UPDATE";
    case OpKind::kHandOver:
      return "HAND_OVER";
    case OpKind::kCommit:
      return "COMMIT";
  }
  return "?";
}

const char* Name(Mode mode) {
  switch (mode) {
    case Mode::kSync:
      return "sync";
    case Mode::kOverlap:
      return "overlap";
    case Mode::kForwardOverlap:
      return "forward-overlap";
    case Mode::kSpeculative:
      return "speculative";
    case Mode::kDelayed:
      return "delayed";
  }
  return "?";
}

const char* Name(ContentKind kind) {
  switch (kind) {
    case ContentKind::kBatch:
      return "batch";
    case ContentKind::kParams:
      return "params";
    case ContentKind::kGradient:
      return "gradient";
    case ContentKind::kAccumulated:
      return "accumulated";
    case ContentKind::kPending:
      return "pending";
    case ContentKind::kRecord:
      return "record";
    case ContentKind::kActivation:
      return "activation";
    case ContentKind::kSaved:
      return "saved";
    case ContentKind::kSavedRest:
      return "saved-rest";
    case ContentKind::kActGradient:
      return "act-gradient";
    case ContentKind::kWorkspace:
      return "workspace";
  }
  return "?";
}

}  // namespace strata
