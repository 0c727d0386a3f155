#include "offload/io/faulty_io_engine.h"

#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "common/random.h"

namespace strata {
namespace {

constexpr size_t kScratchAlignment = 4096;

struct FreeDeleter {
  void operator()(std::byte* data) const { free(data); }
};
using Scratch = std::unique_ptr<std::byte, FreeDeleter>;

Scratch CopyOf(const IoRequest& request) {
  const size_t size = (request.size + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  Scratch copy(static_cast<std::byte*>(aligned_alloc(kScratchAlignment, size)));
  STRATA_CHECK(copy != nullptr);
  memcpy(copy.get(), request.data, request.size);
  return copy;
}

void FlipBit(std::byte* data, size_t size, uint64_t seed) {
  const uint64_t bit = CounterRandom(seed, /*stream=*/0).Below(0, size * 8);
  data[bit / 8] ^= std::byte{1} << (bit % 8);
}

// A place of the same size inside the file, beside the request's; nullopt when the file has none.
std::optional<uint64_t> NeighbourOffset(const IoRequest& request) {
  struct stat info;
  STRATA_CHECK(fstat(request.file->fd(), &info) == 0);
  if (request.offset + 2 * request.size <= static_cast<uint64_t>(info.st_size)) {
    return request.offset + request.size;
  }
  if (request.offset >= request.size) return request.offset - request.size;
  return std::nullopt;
}

class FaultyIoEngine : public IoEngine {
 public:
  FaultyIoEngine(std::unique_ptr<IoEngine> base, FaultPlan& plan) : base_(std::move(base)), plan_(plan) {}

  void Submit(std::span<const IoRequest> requests) override {
    std::vector<IoRequest> forwarded;
    for (const IoRequest& request : requests) {
      std::optional<Fault> fault;
      if (CheckIoRequest(request).ok()) fault = plan_.Next(request.op);
      Pending pending{request, fault, nullptr};
      std::optional<IoRequest> changed =
          fault.has_value() ? Change(request, *fault, pending.scratch) : request;
      if (!changed.has_value()) continue;  // Completed at once.
      changed->token = next_token_++;
      pending_.emplace(changed->token, std::move(pending));
      forwarded.push_back(*changed);
    }
    base_->Submit(forwarded);
  }

  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    size_t appended = ready_.size();
    std::move(ready_.begin(), ready_.end(), std::back_inserter(out));
    ready_.clear();
    std::vector<IoCompletion> completions;
    base_->Poll(appended >= min_completions ? 0 : min_completions - appended, completions);
    for (IoCompletion& completion : completions) {
      const auto it = pending_.find(completion.token);
      STRATA_CHECK(it != pending_.end());
      const Pending& pending = it->second;
      if (pending.fault.has_value() && pending.fault->kind == FaultKind::kReadFlip &&
          completion.status.ok()) {
        FlipBit(pending.request.data, pending.request.size, pending.fault->seed);
      }
      out.push_back({pending.request.token, std::move(completion.status)});
      pending_.erase(it);
    }
  }

  size_t outstanding() const override { return ready_.size() + base_->outstanding(); }
  unsigned depth() const override { return base_->depth(); }
  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return base_->RegisterBuffer(memory); }
  absl::Status RegisterFile(const IoFile& file) override { return base_->RegisterFile(file); }
  IoEngineReport report() const override { return base_->report(); }

 private:
  struct Pending {
    IoRequest request;
    std::optional<Fault> fault;
    Scratch scratch;  // What is written instead of the caller's bytes.
  };

  // The request to forward instead; nullopt when it was completed here.
  std::optional<IoRequest> Change(IoRequest request, const Fault& fault, Scratch& scratch) {
    const uint64_t half = request.size / 2 / kScratchAlignment * kScratchAlignment;
    switch (fault.kind) {
      case FaultKind::kReadError:
      case FaultKind::kWriteError:
        ready_.push_back({request.token, IoErrnoStatus(request, 0, fault.error)});
        return std::nullopt;
      case FaultKind::kReadFlip:
        return request;
      case FaultKind::kWriteFlip:
        scratch = CopyOf(request);
        request.data = scratch.get();
        FlipBit(request.data, request.size, fault.seed);
        return request;
      case FaultKind::kReadShort:
      case FaultKind::kWriteTorn:
        if (half == 0) break;
        request.size = half;
        return request;
      case FaultKind::kWriteLost:
        break;
      case FaultKind::kReadMisdirected:
      case FaultKind::kWriteMisdirected:
        if (const std::optional<uint64_t> offset = NeighbourOffset(request); offset.has_value()) {
          request.offset = *offset;
          return request;
        }
        break;
    }
    ready_.push_back({request.token, absl::OkStatus()});  // Claims success without doing anything.
    return std::nullopt;
  }

  // Pending scratch memory must outlive the operations that use it, so base_ is destroyed (and drains) first.
  std::unordered_map<uint64_t, Pending> pending_;
  std::vector<IoCompletion> ready_;
  uint64_t next_token_ = 0;
  const std::unique_ptr<IoEngine> base_;
  FaultPlan& plan_;
};

}  // namespace

bool IsReadFault(FaultKind kind) {
  return kind == FaultKind::kReadError || kind == FaultKind::kReadFlip || kind == FaultKind::kReadShort ||
         kind == FaultKind::kReadMisdirected;
}

const char* FaultKindName(FaultKind kind) {
  switch (kind) {
    case FaultKind::kReadError:
      return "read error";
    case FaultKind::kWriteError:
      return "write error";
    case FaultKind::kReadFlip:
      return "flipped read";
    case FaultKind::kReadShort:
      return "short read";
    case FaultKind::kReadMisdirected:
      return "misdirected read";
    case FaultKind::kWriteFlip:
      return "flipped write";
    case FaultKind::kWriteTorn:
      return "torn write";
    case FaultKind::kWriteLost:
      return "lost write";
    case FaultKind::kWriteMisdirected:
      return "misdirected write";
  }
  return "unknown";
}

void FaultPlan::Arm(const Fault& fault) {
  MutexLock lock(mu_);
  fault_ = fault;
  fired_ = reads_ = writes_ = 0;
}

void FaultPlan::Disarm() {
  MutexLock lock(mu_);
  fault_.reset();
}

uint64_t FaultPlan::fired() const {
  MutexLock lock(mu_);
  return fired_;
}

uint64_t FaultPlan::reads() const {
  MutexLock lock(mu_);
  return reads_;
}

uint64_t FaultPlan::writes() const {
  MutexLock lock(mu_);
  return writes_;
}

std::optional<Fault> FaultPlan::Next(IoOp op) {
  MutexLock lock(mu_);
  const uint64_t n = op == IoOp::kRead ? reads_++ : writes_++;
  if (!fault_.has_value() || IsReadFault(fault_->kind) != (op == IoOp::kRead)) return std::nullopt;
  if (n < fault_->nth || n - fault_->nth >= fault_->count) return std::nullopt;
  ++fired_;
  return fault_;
}

std::unique_ptr<IoEngine> MakeFaultyIoEngine(std::unique_ptr<IoEngine> base, FaultPlan& plan) {
  return std::make_unique<FaultyIoEngine>(std::move(base), plan);
}

}  // namespace strata
