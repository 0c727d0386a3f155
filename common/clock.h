// Clock: the seam for time. Durations and leases use MonotonicNow; WallNow is only for people.
#ifndef COMMON_CLOCK_H_
#define COMMON_CLOCK_H_

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace strata {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds on a clock that never goes back; comparable within one process (and its machine).
  virtual int64_t MonotonicNanos() = 0;
  virtual absl::Time WallNow() = 0;

  // The machine's clock; lives forever.
  static Clock& Real();
};

// Moves only when told to. Thread-safe.
class FakeClock : public Clock {
 public:
  explicit FakeClock(int64_t start_nanos = 1'000'000'000) : nanos_(start_nanos) {}
  int64_t MonotonicNanos() override;
  absl::Time WallNow() override;
  void Advance(absl::Duration by);

 private:
  Mutex mu_;
  int64_t nanos_ ABSL_GUARDED_BY(mu_);
};

}  // namespace strata

#endif  // COMMON_CLOCK_H_
