// IoEngine on io_uring (liburing 2.3, Linux 5.6 and later; registrations need 5.19): one ring per engine.
#ifndef OFFLOAD_IO_IO_URING_ENGINE_H_
#define OFFLOAD_IO_IO_URING_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "offload/io/io_engine.h"

namespace strata {

struct IoUringOptions {
  unsigned depth = 32;  // Requests with the kernel at a time, 1 to 4096.
  // For tests: sees every completion's result (bytes, or -errno) and may replace it by a smaller count or an
  // error, as a kernel might report.
  std::function<int32_t(int32_t)> result_hook;
};

// kUnimplemented or kPermissionDenied where io_uring is missing or forbidden (container runtimes often block
// it), kResourceExhausted for lack of memory or descriptors; the message says what to do.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoUringEngine(const IoUringOptions& options);

}  // namespace strata

#endif  // OFFLOAD_IO_IO_URING_ENGINE_H_
