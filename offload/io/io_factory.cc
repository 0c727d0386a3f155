#include "offload/io/io_factory.h"

#include <algorithm>
#include <utility>

#include "common/status.h"
#include "offload/io/io_uring_engine.h"
#include "offload/io/thread_io_engine.h"

namespace strata {
namespace {

constexpr unsigned kFactoryThreadsMax = 16;

// A thread engine that remembers why it was chosen.
class FallbackEngine : public IoEngine {
 public:
  FallbackEngine(std::unique_ptr<IoEngine> base, std::string why)
      : base_(std::move(base)), why_(std::move(why)) {}

  void Submit(std::span<const IoRequest> requests) override { base_->Submit(requests); }
  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    base_->Poll(min_completions, out);
  }
  size_t outstanding() const override { return base_->outstanding(); }
  unsigned depth() const override { return base_->depth(); }
  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return base_->RegisterBuffer(memory); }
  absl::Status RegisterFile(const IoFile& file) override { return base_->RegisterFile(file); }
  IoEngineReport report() const override {
    IoEngineReport report = base_->report();
    report.notes.push_back(why_);
    return report;
  }

 private:
  const std::unique_ptr<IoEngine> base_;
  const std::string why_;
};

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
  STRATA_ASSIGN_OR_RETURN(std::unique_ptr<IoEngine> engine, CreateThreadIoEngine(threads));
  return std::make_unique<FallbackEngine>(std::move(engine), std::string(ring.status().message()));
}

}  // namespace strata
