// Chooses an I/O backend: the ladder io_uring -> threads.
#ifndef OFFLOAD_IO_IO_FACTORY_H_
#define OFFLOAD_IO_IO_FACTORY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/io/io_engine.h"

namespace strata {

enum class IoBackend {
  kAuto,     // io_uring, else threads; the reason is in the report.
  kIoUring,  // Required: fails with the remedy where it cannot be had.
  kThreads,
};

// "auto", "io_uring", "threads"; else kInvalidArgument.
absl::StatusOr<IoBackend> ParseIoBackend(absl::string_view name);

struct IoEngineOptions {
  IoBackend backend = IoBackend::kAuto;
  unsigned depth = 32;  // Threads are capped at 16: more only fight for two cores.
};

absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(const IoEngineOptions& options);

}  // namespace strata

#endif  // OFFLOAD_IO_IO_FACTORY_H_
