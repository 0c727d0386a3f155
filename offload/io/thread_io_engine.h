// IoEngine on blocking calls in a few threads: pread and pwrite, for kernels and containers without io_uring,
// or what a library has in their place.
#ifndef OFFLOAD_IO_THREAD_IO_ENGINE_H_
#define OFFLOAD_IO_THREAD_IO_ENGINE_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "offload/io/io_engine.h"

namespace strata {

// The calls that the threads make: of blocking I/O, such as pread and pwrite.
class BlockingIo {
 public:
  virtual ~BlockingIo() = default;

  // Transfers some of what is left of `request` behind its first `done` bytes: how much; 0 where the file
  // ends. Errors as IoEngine's. Any of the engine's threads.
  virtual absl::StatusOr<size_t> Transfer(const IoRequest& request, size_t done) = 0;
  // As IoEngine's.
  virtual absl::Status RegisterBuffer(std::span<std::byte> memory) = 0;
  virtual absl::Status RegisterFile(const IoFile& file) = 0;
  virtual IoEngineReport report() const = 0;  // but for `depth`
};

// `depth` (1 to 64) threads, so that many requests are with the kernel at a time.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateThreadIoEngine(unsigned depth,
                                                               std::unique_ptr<BlockingIo> io);

// On pread and pwrite. `why_not_io_uring` is for the report.
absl::StatusOr<std::unique_ptr<IoEngine>> CreateThreadIoEngine(unsigned depth,
                                                               std::string why_not_io_uring = "asked for");

}  // namespace strata

#endif  // OFFLOAD_IO_THREAD_IO_ENGINE_H_
