// What the parts of the verifier share: content ranges and the form of a refusal.
#ifndef OFFLOAD_PLAN_VERIFIER_UTIL_H_
#define OFFLOAD_PLAN_VERIFIER_UTIL_H_

#include <cstdint>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "offload/plan/step_plan.h"

namespace strata::verifier {

constexpr int64_t kBlock = 4096;

template <typename... Parts>
absl::Status Wrong(const Parts&... parts) {
  return absl::InternalError(absl::StrCat("unsafe plan: ", parts...));
}

// The bytes that a content of a unit takes: [begin, end) of the unit's buffer of that kind. False for other
// kinds, whose size is the operand's.
bool UnitRange(const StepPlan& plan, const Content& content, int64_t* begin, int64_t* end);
// Of an optimizer record of n elements.
int64_t RecordSize(const StepPlan& plan, int64_t n);
// Bytes per element of sums of gradients.
int64_t AccSize(const StepPlan& plan);
bool IsOfUnit(ContentKind kind);
bool IsOfBlock(ContentKind kind);

// The bytes of each block's activations, saved areas and their gradients, as the first operation that uses
// one says: all others must agree.
class BlockSizes {
 public:
  explicit BlockSizes(const StepPlan& plan);
  // -1: none; not a content of a block, or one that only moves to or from the NVMe store.
  int64_t Of(const Content& content) const;

 private:
  std::map<std::pair<ContentKind, int32_t>, int64_t> bytes_;
};

// READ and WRITE, direct or not: whole blocks to and from the NVMe store.
bool IsStoreTransfer(OpKind kind);
// Those and the copies between host and device.
bool IsTransfer(OpKind kind);

// The passes, in this order; each relies on those before it.
absl::Status CheckStructure(const StepPlan& plan);  // indices, ranges, memory, no cycle
absl::Status CheckStep(const StepPlan& plan);       // operands by kind, and the whole step
absl::Status CheckRuns(const StepPlan& plan);       // happens-before, and what every byte holds

}  // namespace strata::verifier

#endif  // OFFLOAD_PLAN_VERIFIER_UTIL_H_
