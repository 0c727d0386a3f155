// IoEngine on pread and pwrite in a few threads: for kernels and containers without io_uring.
#ifndef OFFLOAD_IO_THREAD_IO_ENGINE_H_
#define OFFLOAD_IO_THREAD_IO_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "offload/io/io_engine.h"

namespace strata {

// `depth` (1 to 64) threads, so that many requests are with the kernel at a time. `why_not_io_uring` is for
// the report.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateThreadIoEngine(unsigned depth,
                                                               std::string why_not_io_uring = "asked for");

}  // namespace strata

#endif  // OFFLOAD_IO_THREAD_IO_ENGINE_H_
