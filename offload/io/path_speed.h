// How fast a path is, for sharing bytes out between several.
#ifndef OFFLOAD_IO_PATH_SPEED_H_
#define OFFLOAD_IO_PATH_SPEED_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace strata {

struct PathSpeed {
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;

  // Bytes that are read and written back per second: what an optimizer's states do.
  double RoundTripBytesPerSecond() const {
    return 1 / (1 / read_bytes_per_second + 1 / write_bytes_per_second);
  }
};

constexpr uint64_t kPathSpeedBytes = uint64_t{64} << 20;

// Writes and reads `bytes` of an unnamed file on `path` in large requests, as the store does: O_DIRECT where
// the path has it. (Without it the page cache is measured, which is also what a job gets.) Errors as of
// ProbePath.
absl::StatusOr<PathSpeed> MeasurePathSpeed(const std::string& path, uint64_t bytes = kPathSpeedBytes);

}  // namespace strata

#endif  // OFFLOAD_IO_PATH_SPEED_H_
