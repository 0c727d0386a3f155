#include "offload/store/latency_histogram.h"

#include <algorithm>
#include <bit>

namespace strata {

// Values below 1 us share bucket 0. Above, with v in units of 1/4 us: the octave is the position of the
// leading bit, the quarter the two bits after it.
int LatencyHistogram::BucketOf(int64_t nanos) {
  const uint64_t quarters = static_cast<uint64_t>(std::max<int64_t>(nanos, 0)) / 250;
  if (quarters < 4) return 0;
  const int octave = std::bit_width(quarters) - 3;
  const int quarter = static_cast<int>(quarters >> octave) & 3;
  return std::min(octave * 4 + quarter + 1, kBuckets - 1);
}

int64_t LatencyHistogram::UpperEdgeNanos(int bucket) {
  if (bucket == 0) return 1000;
  const int octave = (bucket - 1) / 4;
  const int quarter = (bucket - 1) % 4;
  return (int64_t{5 + quarter} << octave) * 250;
}

void LatencyHistogram::Record(int64_t nanos) {
  buckets_[static_cast<size_t>(BucketOf(nanos))].fetch_add(1, std::memory_order_relaxed);
}

uint64_t LatencyHistogram::count() const {
  uint64_t total = 0;
  for (const auto& bucket : buckets_) total += bucket.load(std::memory_order_relaxed);
  return total;
}

int64_t LatencyHistogram::QuantileNanos(double fraction) const {
  const uint64_t total = count();
  if (total == 0) return 0;
  // The smallest rank that has at least this fraction of the values at or below it.
  const double exact = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(total);
  uint64_t rank = static_cast<uint64_t>(exact);
  if (static_cast<double>(rank) < exact || rank == 0) ++rank;
  uint64_t below = 0;
  for (int i = 0; i < kBuckets; ++i) {
    below += buckets_[static_cast<size_t>(i)].load(std::memory_order_relaxed);
    if (below >= rank) return UpperEdgeNanos(i);
  }
  return UpperEdgeNanos(kBuckets - 1);
}

}  // namespace strata
