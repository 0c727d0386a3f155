#include "proto/duration/duration.h"

#include <algorithm>
#include <cstdint>

namespace strata {

google::protobuf::Duration ToProto(absl::Duration duration) {
  google::protobuf::Duration to;
  const int64_t nanos = absl::ToInt64Nanoseconds(duration);
  to.set_seconds(nanos / 1'000'000'000);
  to.set_nanos(static_cast<int32_t>(nanos % 1'000'000'000));
  return to;
}

absl::Duration FromProto(const google::protobuf::Duration& duration) {
  constexpr int64_t kSecondsMax = int64_t{3650} * 24 * 3600;
  return absl::Seconds(std::clamp(duration.seconds(), -kSecondsMax, kSecondsMax)) +
         absl::Nanoseconds(std::clamp(duration.nanos(), -999'999'999, 999'999'999));
}

}  // namespace strata
