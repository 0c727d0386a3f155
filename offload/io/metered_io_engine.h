// MeteredIoEngine: an engine that measures another one: how long each request took and how many were out at a
// time, as the thread that submits them sees it.
#ifndef OFFLOAD_IO_METERED_IO_ENGINE_H_
#define OFFLOAD_IO_METERED_IO_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "offload/io/io_engine.h"

namespace strata {

struct IoMeter {
  std::vector<int64_t> latency_nanos;  // of each completed request, from Submit to Poll
  int64_t busy_nanos = 0;              // at least one request was out

  // Mean number of requests out while any was (Little's law); 0 when none was.
  double QueueDepth() const;
  void Add(const IoMeter& other);
};

class MeteredIoEngine : public IoEngine {
 public:
  MeteredIoEngine(std::unique_ptr<IoEngine> base, Clock& clock);

  void Submit(std::span<const IoRequest> requests) override;
  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override;
  size_t outstanding() const override { return base_->outstanding(); }
  unsigned depth() const override { return base_->depth(); }
  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return base_->RegisterBuffer(memory); }
  absl::Status RegisterFile(const IoFile& file) override { return base_->RegisterFile(file); }
  IoEngineReport report() const override { return base_->report(); }

  // Adds what was measured since the last call to `to`.
  void TakeInto(IoMeter& to);

 private:
  struct Out {
    uint64_t token = 0;  // the submitter's
    int64_t begin_nanos = 0;
  };

  const std::unique_ptr<IoEngine> base_;
  Clock& clock_;
  std::vector<Out> out_;        // by the token that the base sees
  std::vector<uint64_t> free_;  // indices into out_
  std::vector<IoRequest> batch_;
  int64_t busy_since_ = 0;  // while anything is out
  IoMeter meter_;
};

}  // namespace strata

#endif  // OFFLOAD_IO_METERED_IO_ENGINE_H_
