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

absl::Status Perform(const IoRequest& request) {
  const size_t alignment = request.file->alignment();
  size_t done = 0;
  while (done < request.size) {
    std::byte* data = request.data + done;
    const size_t size = request.size - done;
    const auto offset = static_cast<off_t>(request.offset + done);
    const ssize_t result = request.op == IoOp::kRead ? pread(request.file->fd(), data, size, offset)
                                                     : pwrite(request.file->fd(), data, size, offset);
    if (result < 0 && errno == EINTR) continue;
    if (result < 0) return IoErrnoStatus(request, done, errno);
    // A direct file can only be continued on a block; less than one means that the file ends there.
    const size_t progress = static_cast<size_t>(result) / alignment * alignment;
    if (progress == 0) {
      return request.op == IoOp::kRead ? IoEndOfFileStatus(request, done + static_cast<size_t>(result))
                                       : IoErrnoStatus(request, done, EIO);
    }
    done += progress;
  }
  return absl::OkStatus();
}

class ThreadIoEngine : public IoEngine {
 public:
  ThreadIoEngine(unsigned depth, std::string why_not_io_uring)
      : depth_(depth), why_not_io_uring_(std::move(why_not_io_uring)) {
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

  absl::Status RegisterBuffer(std::span<std::byte>) override {
    return absl::UnimplementedError(kNoRegistration);
  }
  absl::Status RegisterFile(const IoFile&) override { return absl::UnimplementedError(kNoRegistration); }

  IoEngineReport report() const override {
    IoEngineReport report;
    report.backend = "threads";
    report.depth = depth_;
    report.why_not_io_uring = why_not_io_uring_;
    report.why_not_registered = kNoRegistration;
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
      absl::Status status = Perform(request);
      MutexLock lock(mu_);
      ready_.push_back({request.token, std::move(status)});
      completed_.Signal();
    }
  }

  const unsigned depth_;
  const std::string why_not_io_uring_;
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

absl::StatusOr<std::unique_ptr<IoEngine>> CreateThreadIoEngine(unsigned depth, std::string why_not_io_uring) {
  if (depth < 1 || depth > kThreadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("I/O depth ", depth, " is not between 1 and ", kThreadsMax, " for the thread backend"));
  }
  return std::make_unique<ThreadIoEngine>(depth, std::move(why_not_io_uring));
}

}  // namespace strata
