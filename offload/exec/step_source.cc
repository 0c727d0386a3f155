#include "offload/exec/step_source.h"

namespace strata {

const char* Name(TrafficClass traffic) {
  switch (traffic) {
    case TrafficClass::kParams:
      return "params";
    case TrafficClass::kRecords:
      return "records";
    case TrafficClass::kGradients:
      return "gradients";
    case TrafficClass::kActivations:
      return "activations";
    case TrafficClass::kOther:
      return "other";
  }
  return "?";
}

TrafficClass TrafficClassOf(const Op& op) {
  if (op.operands.empty()) return TrafficClass::kOther;
  switch (op.operands[0].content.kind) {
    case ContentKind::kParams:
      return TrafficClass::kParams;
    case ContentKind::kRecord:
      return TrafficClass::kRecords;
    case ContentKind::kGradient:
    case ContentKind::kAccumulated:
    case ContentKind::kPending:
      return TrafficClass::kGradients;
    case ContentKind::kActivation:
    case ContentKind::kSaved:
    case ContentKind::kSavedRest:
    case ContentKind::kActGradient:
      return TrafficClass::kActivations;
    case ContentKind::kBatch:
    case ContentKind::kWorkspace:
      return TrafficClass::kOther;
  }
  return TrafficClass::kOther;
}

}  // namespace strata
