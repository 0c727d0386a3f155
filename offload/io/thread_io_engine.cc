#include "offload/io/thread_io_engine.h"

#include <unistd.h>

#include <cerrno>
#include <deque>
#include <utility>

#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"

namespace strata {
namespace {

constexpr unsigned kThreadsMax = 64;
constexpr char kNoRegistration[] = "only io_uring registers buffers and files";

class PosixIo : public BlockingIo {
 public:
  explicit PosixIo(std::string why_not_io_uring) : why_not_io_uring_(std::move(why_not_io_uring)) {}

  absl::StatusOr<size_t> Transfer(const IoRequest& request, size_t done) override {
    std::byte* const data = request.data + done;
    const size_t size = request.size - done;
    const auto offset = static_cast<off_t>(request.offset + done);
    while (true) {
      const ssize_t result = request.op == IoOp::kRead ? pread(request.file->fd(), data, size, offset)
                                                       : pwrite(request.file->fd(), data, size, offset);
      if (result >= 0) return static_cast<size_t>(result);
      if (errno != EINTR) return IoErrnoStatus(request, done, errno);
    }
  }
  absl::Status RegisterBuffer(std::span<std::byte>) override {
    return absl::UnimplementedError(kNoRegistration);
  }
  absl::Status RegisterFile(const IoFile&) override { return absl::UnimplementedError(kNoRegistration); }
  IoEngineReport report() const override {
    return {
        .backend = "threads", .why_not_io_uring = why_not_io_uring_, .why_not_registered = kNoRegistration};
  }

 private:
  const std::string why_not_io_uring_;
};

absl::Status Perform(BlockingIo& io, const IoRequest& request) {
  const size_t alignment = request.file->alignment();
  size_t done = 0;
  while (done < request.size) {
    STRATA_ASSIGN_OR_RETURN(const size_t moved, io.Transfer(request, done));
    // A direct file can only be continued on a block; less than one means that the file ends there.
    const size_t progress = moved / alignment * alignment;
    if (progress == 0) {
      return request.op == IoOp::kRead ? IoEndOfFileStatus(request, done + moved)
                                       : IoErrnoStatus(request, done, EIO);
    }
    done += progress;
  }
  return absl::OkStatus();
}

class ThreadIoEngine : public IoEngine {
 public:
  ThreadIoEngine(unsigned depth, std::unique_ptr<BlockingIo> io) : depth_(depth), io_(std::move(io)) {
    for (unsigned i = 0; i < depth; ++i) threads_.emplace_back("io-pool", [this] { Run(); });
  }

  ~ThreadIoEngine() override {
    {
      MutexLock lock(mu_);
      stopping_ = true;
      work_.SignalAll();
    }
    for (Thread& thread : threads_) thread.Join();  // Each ends the request it is in.
  }

  void Submit(std::span<const IoRequest> requests) override {
    MutexLock lock(mu_);
    for (const IoRequest& request : requests) {
      ++outstanding_;
      if (absl::Status status = CheckIoRequest(request); !status.ok()) {
        ready_.push_back({request.token, std::move(status)});
      } else {
        waiting_.push_back(request);
        work_.Signal();
      }
    }
  }

  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    size_t appended = 0;
    MutexLock lock(mu_);
    while (true) {
      appended += ready_.size();
      outstanding_ -= ready_.size();
      std::move(ready_.begin(), ready_.end(), std::back_inserter(out));
      ready_.clear();
      if (appended >= min_completions || outstanding_ == 0) return;
      completed_.Wait(mu_);
    }
  }

  size_t outstanding() const override {
    MutexLock lock(mu_);
    return outstanding_;
  }

  unsigned depth() const override { return depth_; }

  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return io_->RegisterBuffer(memory); }
  absl::Status RegisterFile(const IoFile& file) override { return io_->RegisterFile(file); }

  IoEngineReport report() const override {
    IoEngineReport report = io_->report();
    report.depth = depth_;
    return report;
  }

 private:
  void Run() {
    while (true) {
      IoRequest request;
      {
        MutexLock lock(mu_);
        while (waiting_.empty() && !stopping_) work_.Wait(mu_);
        if (stopping_) return;
        request = waiting_.front();
        waiting_.pop_front();
      }
      absl::Status status = Perform(*io_, request);
      MutexLock lock(mu_);
      ready_.push_back({request.token, std::move(status)});
      completed_.Signal();
    }
  }

  const unsigned depth_;
  const std::unique_ptr<BlockingIo> io_;
  mutable Mutex mu_;
  CondVar work_;
  CondVar completed_;
  std::deque<IoRequest> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<IoCompletion> ready_ ABSL_GUARDED_BY(mu_);
  size_t outstanding_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> CreateThreadIoEngine(unsigned depth,
                                                               std::unique_ptr<BlockingIo> io) {
  if (depth < 1 || depth > kThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("I/O depth ", depth, " is not between 1 and ", kThreadsMax, " for the thread backend"));
  }
  return std::make_unique<ThreadIoEngine>(depth, std::move(io));
}

absl::StatusOr<std::unique_ptr<IoEngine>> CreateThreadIoEngine(unsigned depth, std::string why_not_io_uring) {
  return CreateThreadIoEngine(depth, std::make_unique<PosixIo>(std::move(why_not_io_uring)));
}

}  // namespace strata
