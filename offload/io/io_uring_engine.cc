#include "offload/io/io_uring_engine.h"

#include <liburing.h>
#include <sys/uio.h>
#include <time.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr unsigned kDepthMax = 4096;
// One request moves at most this much per completion: the kernel's own limit is just below 2 GiB.
constexpr size_t kTransferMax = size_t{1} << 30;
// The kernel takes registered buffers of up to 1 GiB.
constexpr size_t kRegisteredSliceMax = size_t{1} << 30;
constexpr unsigned kBufferTableSize = 256;
constexpr unsigned kFileTableSize = 64;
// io_uring hides EAGAIN by waiting in its own threads, so a long row of them means something is wrong.
constexpr unsigned kRetriesMax = 1000;

void SleepOneMillisecond() {
  const timespec pause{0, 1'000'000};
  nanosleep(&pause, nullptr);
}

class IoUringEngine : public IoEngine {
 public:
  IoUringEngine(const io_uring& ring, const IoUringOptions& options)
      : ring_(ring), depth_(options.depth), result_hook_(options.result_hook), slots_(options.depth) {
    for (unsigned i = depth_; i > 0; --i) free_slots_.push_back(i - 1);
  }

  ~IoUringEngine() override {
    // Requests that never reached the kernel are forgotten; the others own their memory until they end.
    while (InKernel() > 0) {
      io_uring_cqe* cqe = nullptr;
      const int result = io_uring_wait_cqe(&ring_, &cqe);
      if (result == -EINTR || result == -EAGAIN) continue;
      STRATA_CHECK(result == 0);
      free_slots_.push_back(static_cast<unsigned>(io_uring_cqe_get_data64(cqe)));
      io_uring_cqe_seen(&ring_, cqe);
    }
    io_uring_queue_exit(&ring_);
  }

  void Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      if (absl::Status status = CheckIoRequest(request); !status.ok()) {
        ready_.push_back({request.token, std::move(status)});
      } else {
        waiting_.push_back(request);
      }
    }
    StartWaiting();
    EnterKernel(/*wait_for=*/0);
  }

  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    size_t appended = 0;
    while (true) {
      Reap();
      StartWaiting();
      appended += ready_.size();
      std::move(ready_.begin(), ready_.end(), std::back_inserter(out));
      ready_.clear();
      if (appended >= min_completions || outstanding() == 0) break;
      EnterKernel(/*wait_for=*/1);
    }
    if (io_uring_sq_ready(&ring_) > 0) EnterKernel(/*wait_for=*/0);
  }

  size_t outstanding() const override {
    return (depth_ - free_slots_.size()) + waiting_.size() + ready_.size();
  }

  unsigned depth() const override { return depth_; }

  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return Note(RegisterSlices(memory)); }

  absl::Status RegisterFile(const IoFile& file) override { return Note(RegisterOneFile(file)); }

  IoEngineReport report() const override {
    IoEngineReport report;
    report.backend = "io_uring";
    report.depth = depth_;
    for (const Slice& slice : slices_) report.registered_buffer_bytes += slice.memory.size();
    report.registered_files = static_cast<unsigned>(files_.size());
    report.why_not_registered = why_not_registered_;
    return report;
  }

 private:
  struct Slot {
    IoRequest request;
    size_t done = 0;
    unsigned retries = 0;
  };
  struct Slice {
    std::span<std::byte> memory;
    int index;
  };

  // Keeps the first reason.
  absl::Status Note(absl::Status status) {
    if (!status.ok() && why_not_registered_.empty()) why_not_registered_ = std::string(status.message());
    return status;
  }

  size_t InKernel() const { return depth_ - free_slots_.size() - io_uring_sq_ready(&ring_); }

  void StartWaiting() {
    while (!waiting_.empty() && !free_slots_.empty()) {
      const unsigned slot = free_slots_.back();
      free_slots_.pop_back();
      slots_[slot] = {waiting_.front()};
      waiting_.pop_front();
      Prepare(slot);
    }
  }

  // Queues what is left of a slot's request. The submission queue has at least depth_ entries, so one is
  // free.
  void Prepare(unsigned slot) {
    const IoRequest& request = slots_[slot].request;
    const size_t done = slots_[slot].done;
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    STRATA_CHECK(sqe != nullptr);
    std::byte* data = request.data + done;
    const auto size = static_cast<unsigned>(std::min(request.size - done, kTransferMax));
    const uint64_t offset = request.offset + done;
    const int file = FileIndex(*request.file);
    const int fd = file >= 0 ? file : request.file->fd();
    const int buffer = BufferIndex(data, size);
    if (request.op == IoOp::kRead) {
      if (buffer >= 0) {
        io_uring_prep_read_fixed(sqe, fd, data, size, offset, buffer);
      } else {
        io_uring_prep_read(sqe, fd, data, size, offset);
      }
    } else {
      if (buffer >= 0) {
        io_uring_prep_write_fixed(sqe, fd, data, size, offset, buffer);
      } else {
        io_uring_prep_write(sqe, fd, data, size, offset);
      }
    }
    if (file >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data64(sqe, slot);
  }

  // Submits everything queued and, if asked, waits until a completion is there.
  void EnterKernel(unsigned wait_for) {
    while (true) {
      if (wait_for > 0 && io_uring_cq_ready(&ring_) >= wait_for) wait_for = 0;
      const unsigned queued = io_uring_sq_ready(&ring_);
      if (queued == 0 && wait_for == 0) return;
      const int result = wait_for > 0 ? io_uring_submit_and_wait(&ring_, wait_for) : io_uring_submit(&ring_);
      if (result >= 0 && static_cast<unsigned>(result) < queued) continue;
      if (result >= 0 || result == -EINTR) {
        if (wait_for == 0 && result >= 0) return;
        continue;
      }
      // Out of requests or of room for completions. What is with the kernel will make room; with nothing
      // there we wait as a blocking read would that finds no memory.
      STRATA_CHECK(result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
      if (InKernel() > 0) {
        if (wait_for == 0) return;  // The next Poll goes on.
        io_uring_cqe* cqe = nullptr;
        const int waited = io_uring_wait_cqe(&ring_, &cqe);
        STRATA_CHECK(waited == 0 || waited == -EINTR || waited == -EAGAIN);
        if (waited == 0) return;
      } else {
        SleepOneMillisecond();
      }
    }
  }

  void Reap() {
    io_uring_cqe* cqes[64];
    while (const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes, 64)) {
      for (unsigned i = 0; i < count; ++i) {
        const auto slot = static_cast<unsigned>(io_uring_cqe_get_data64(cqes[i]));
        int32_t result = cqes[i]->res;
        if (result_hook_ != nullptr) result = result_hook_(result);
        Complete(slot, result);
      }
      io_uring_cq_advance(&ring_, count);
    }
  }

  void Complete(unsigned index, int32_t result) {
    Slot& slot = slots_[index];
    const IoRequest& request = slot.request;
    if (result < 0) {
      const bool again = result == -EINTR || result == -EAGAIN;
      if (again && ++slot.retries <= kRetriesMax) return Prepare(index);
      return Finish(index, IoErrnoStatus(request, slot.done, -result));
    }
    // A direct file can only be continued on a block; what lies before it is moved again. Less than a block
    // means that the file ends there.
    const size_t alignment = request.file->alignment();
    STRATA_CHECK(static_cast<size_t>(result) <= request.size - slot.done);
    const size_t progress = static_cast<size_t>(result) / alignment * alignment;
    if (progress == 0) {
      return Finish(index, request.op == IoOp::kRead
                               ? IoEndOfFileStatus(request, slot.done + static_cast<size_t>(result))
                               : IoErrnoStatus(request, slot.done, EIO));
    }
    slot.done += progress;
    slot.retries = 0;
    if (slot.done < request.size) return Prepare(index);
    Finish(index, absl::OkStatus());
  }

  void Finish(unsigned slot, absl::Status status) {
    ready_.push_back({slots_[slot].request.token, std::move(status)});
    free_slots_.push_back(slot);
  }

  int FileIndex(const IoFile& file) const {
    for (size_t i = 0; i < files_.size(); ++i) {
      if (files_[i] == file.id()) return static_cast<int>(i);
    }
    return -1;
  }

  int BufferIndex(const std::byte* data, size_t size) const {
    for (const Slice& slice : slices_) {
      const std::byte* begin = slice.memory.data();
      if (data >= begin && data + size <= begin + slice.memory.size()) return slice.index;
    }
    return -1;
  }

  absl::Status RegisterSlices(std::span<std::byte> memory) {
    if (!buffer_table_) {
      const int result = io_uring_register_buffers_sparse(&ring_, kBufferTableSize);
      if (result < 0) return ErrnoStatus(-result, "registered buffers are off (they need Linux 5.19)");
      buffer_table_ = true;
    }
    while (!memory.empty()) {
      const auto index = static_cast<unsigned>(slices_.size());
      if (index == kBufferTableSize) {
        return absl::ResourceExhaustedError(
            absl::StrCat("registered buffers: only the first ", kBufferTableSize, " GiB are registered"));
      }
      const std::span<std::byte> part = memory.first(std::min(memory.size(), kRegisteredSliceMax));
      const iovec vector{part.data(), part.size()};
      const __u64 tag = 0;
      const int result = io_uring_register_buffers_update_tag(&ring_, index, &vector, &tag, 1);
      if (result < 0) {
        return ErrnoStatus(-result, absl::StrCat("registered buffers are off for ", memory.size(),
                                                 " bytes (raise RLIMIT_MEMLOCK, or give CAP_IPC_LOCK)"));
      }
      slices_.push_back({part, static_cast<int>(index)});
      memory = memory.subspan(part.size());
    }
    return absl::OkStatus();
  }

  absl::Status RegisterOneFile(const IoFile& file) {
    if (FileIndex(file) >= 0) return absl::OkStatus();
    if (!file_table_) {
      const int result = io_uring_register_files_sparse(&ring_, kFileTableSize);
      if (result < 0) return ErrnoStatus(-result, "registered files are off (they need Linux 5.19)");
      file_table_ = true;
    }
    if (files_.size() == kFileTableSize) {
      return absl::ResourceExhaustedError(absl::StrCat("only ", kFileTableSize, " files can be registered"));
    }
    const int fd = file.fd();
    const int result = io_uring_register_files_update(&ring_, static_cast<unsigned>(files_.size()), &fd, 1);
    if (result < 0) return ErrnoStatus(-result, absl::StrCat("registering ", file.path()));
    files_.push_back(file.id());
    return absl::OkStatus();
  }

  io_uring ring_;
  const unsigned depth_;
  const std::function<int32_t(int32_t)> result_hook_;
  std::vector<Slot> slots_;
  std::vector<unsigned> free_slots_;
  std::deque<IoRequest> waiting_;    // Not yet in a slot.
  std::vector<IoCompletion> ready_;  // Not yet polled.
  std::vector<Slice> slices_;
  std::vector<uint64_t> files_;  // Ids by index in the kernel's table.
  bool buffer_table_ = false;
  bool file_table_ = false;
  std::string why_not_registered_;
};

// Sends a request that does nothing through the ring: 0, or -errno.
int TryRing(io_uring& ring) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring);
  io_uring_prep_nop(sqe);
  io_uring_cqe* cqe = nullptr;
  int result;
  do {
    result = io_uring_submit_and_wait(&ring, 1);
  } while (result == -EINTR || result == -EAGAIN);
  if (result < 0) return result;
  result = io_uring_peek_cqe(&ring, &cqe);
  if (result < 0) return result;
  result = cqe->res;
  io_uring_cqe_seen(&ring, cqe);
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<IoEngine>> CreateIoUringEngine(const IoUringOptions& options) {
  if (options.depth < 1 || options.depth > kDepthMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("I/O depth ", options.depth, " is not between 1 and ", kDepthMax));
  }
  io_uring ring;
  // Without interrupts of the submitting thread for every completion; Poll looks for them anyway.
  int result =
      io_uring_queue_init(options.depth, &ring, IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG);
  if (result == -EINVAL) result = io_uring_queue_init(options.depth, &ring, 0);  // Before Linux 5.19.
  if (result == 0) {
    // A filter of system calls may let a ring be made but not be entered: better known now than in a step.
    result = TryRing(ring);
    if (result < 0) io_uring_queue_exit(&ring);
  }
  switch (-result) {
    case 0:
      return std::make_unique<IoUringEngine>(ring, options);
    case ENOSYS:
      return absl::UnimplementedError(
          "this kernel has no io_uring (Linux 5.6 or later is needed), or a seccomp profile hides it");
    case EPERM:
    case EACCES:
      return absl::PermissionDeniedError(
          "io_uring is forbidden here: set kernel.io_uring_disabled to 0, and in a container allow "
          "io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile");
    default:
      return ErrnoStatus(-result, absl::StrCat("creating an io_uring of depth ", options.depth));
  }
}

}  // namespace strata
