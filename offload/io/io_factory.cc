#include "offload/io/io_factory.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "offload/io/io_uring_engine.h"
#include "offload/io/thread_io_engine.h"

namespace strata {
namespace {

constexpr unsigned kFactoryThreadsMax = 16;

}  // namespace

absl::StatusOr<IoBackend> ParseIoBackend(absl::string_view name) {
  if (name == "auto") return IoBackend::kAuto;
  if (name == "io_uring") return IoBackend::kIoUring;
  if (name == "threads") return IoBackend::kThreads;
  return absl::InvalidArgumentError(
      absl::StrCat("I/O backend \"", name, "\" is unknown: use auto, io_uring or threads"));
}

absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoEngine(const IoEngineOptions& options) {
  const unsigned threads = std::min(options.depth, kFactoryThreadsMax);
  if (options.backend == IoBackend::kThreads) return CreateThreadIoEngine(threads);
  absl::StatusOr<std::unique_ptr<IoEngine>> ring = CreateIoUringEngine({.depth = options.depth});
  const bool give_up =
      options.backend == IoBackend::kIoUring || ring.status().code() == absl::StatusCode::kInvalidArgument;
  if (ring.ok() || give_up) return ring;
  return CreateThreadIoEngine(threads, std::string(ring.status().message()));
}

}  // namespace strata
