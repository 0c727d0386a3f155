#include "offload/io/metered_io_engine.h"

#include <numeric>
#include <utility>

namespace strata {

double IoMeter::QueueDepth() const {
  if (busy_nanos <= 0) return 0;
  const int64_t total = std::accumulate(latency_nanos.begin(), latency_nanos.end(), int64_t{0});
  return static_cast<double>(total) / static_cast<double>(busy_nanos);
}

void IoMeter::Add(const IoMeter& other) {
  latency_nanos.insert(latency_nanos.end(), other.latency_nanos.begin(), other.latency_nanos.end());
  busy_nanos += other.busy_nanos;
}

MeteredIoEngine::MeteredIoEngine(std::unique_ptr<IoEngine> base, Clock& clock)
    : base_(std::move(base)), clock_(clock) {}

void MeteredIoEngine::Submit(std::span<const IoRequest> requests) {
  const int64_t now = clock_.MonotonicNanos();
  if (base_->outstanding() == 0) busy_since_ = now;
  batch_.assign(requests.begin(), requests.end());
  for (IoRequest& request : batch_) {
    uint64_t index = out_.size();
    if (free_.empty()) {
      out_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    out_[index] = {request.token, now};
    request.token = index;
  }
  base_->Submit(batch_);
}

void MeteredIoEngine::Poll(size_t min_completions, std::vector<IoCompletion>& out) {
  const size_t first = out.size();
  base_->Poll(min_completions, out);
  if (out.size() == first) return;
  const int64_t now = clock_.MonotonicNanos();
  for (size_t i = first; i < out.size(); ++i) {
    const uint64_t index = out[i].token;
    out[i].token = out_[index].token;
    meter_.latency_nanos.push_back(now - out_[index].begin_nanos);
    free_.push_back(index);
  }
  meter_.busy_nanos += now - std::exchange(busy_since_, now);
}

void MeteredIoEngine::TakeInto(IoMeter& to) {
  to.Add(meter_);
  meter_.latency_nanos.clear();
  meter_.busy_nanos = 0;
}

}  // namespace strata
