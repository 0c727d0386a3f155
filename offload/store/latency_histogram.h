// Durations in fixed buckets: recording is one atomic increment, memory is constant.
#ifndef OFFLOAD_STORE_LATENCY_HISTOGRAM_H_
#define OFFLOAD_STORE_LATENCY_HISTOGRAM_H_

#include <array>
#include <atomic>
#include <cstdint>

namespace strata {

// Four buckets for each power of two from 1 us to about 1 hour: a percentile is at most 19 % (one bucket)
// high. Thread-safe.
class LatencyHistogram {
 public:
  void Record(int64_t nanos);
  uint64_t count() const;
  // The upper edge, in ns, of the bucket holding the `fraction` (0 to 1) quantile; 0 when nothing was
  // recorded.
  int64_t QuantileNanos(double fraction) const;

 private:
  static constexpr int kOctaves = 32;
  static constexpr int kBuckets = kOctaves * 4;
  static int BucketOf(int64_t nanos);
  static int64_t UpperEdgeNanos(int bucket);

  std::array<std::atomic<uint64_t>, kBuckets> buckets_{};
};

}  // namespace strata

#endif  // OFFLOAD_STORE_LATENCY_HISTOGRAM_H_
