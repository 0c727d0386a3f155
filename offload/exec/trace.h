// Trace: one span per executed operation, as Chrome trace JSON (chrome://tracing, ui.perfetto.dev).
#ifndef OFFLOAD_EXEC_TRACE_H_
#define OFFLOAD_EXEC_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "offload/plan/step_plan.h"

namespace strata {

struct Span {
  int32_t op = 0;
  int64_t step = 0;
  int64_t wait_begin_nanos = 0;  // the lane began to wait for the operation's dependencies
  int64_t begin_nanos = 0;
  int64_t end_nanos = 0;
};

// Bounded: each lane keeps the spans of its first `capacity` operations and counts the rest.
class LaneTrace {
 public:
  explicit LaneTrace(size_t capacity) : capacity_(capacity) { spans_.reserve(capacity); }
  void Add(const Span& span) {
    if (spans_.size() < capacity_) {
      spans_.push_back(span);
    } else {
      ++dropped_;
    }
  }
  const std::vector<Span>& spans() const { return spans_; }
  int64_t dropped() const { return dropped_; }

 private:
  size_t capacity_;
  int64_t dropped_ = 0;
  std::vector<Span> spans_;
};

// One thread row per lane; times in microseconds since the first span. Durable write; the error names the
// path.
absl::Status WriteChromeTrace(const std::string& path, const StepPlan& plan,
                              const std::vector<LaneTrace>& lanes);

// "READ record.wte.3": what an operation does, for traces and error messages.
std::string Describe(const StepPlan& plan, const Op& op);
std::string LaneName(const Lane& lane);

}  // namespace strata

#endif  // OFFLOAD_EXEC_TRACE_H_
