#include "common/clock.h"

#include <time.h>

namespace strata {
namespace {

class RealClock : public Clock {
 public:
  int64_t MonotonicNanos() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  }
  absl::Time WallNow() override { return absl::Now(); }
};

}  // namespace

Clock& Clock::Real() {
  static RealClock* const clock = new RealClock;
  return *clock;
}

int64_t FakeClock::MonotonicNanos() {
  MutexLock lock(mu_);
  return nanos_;
}

absl::Time FakeClock::WallNow() { return absl::FromUnixNanos(1'700'000'000'000'000'000 + MonotonicNanos()); }

void FakeClock::Advance(absl::Duration by) {
  MutexLock lock(mu_);
  nanos_ += absl::ToInt64Nanoseconds(by);
}

}  // namespace strata
