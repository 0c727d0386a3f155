// IoEngine: the seam for asynchronous positioned reads and writes of memory the caller lends.
//
// Shape: a thread submits requests (each with a token of its choice) and polls for their completions. Every
// request gets exactly one completion. Errors travel only in completions, so there is one place to look.
//
// Exact lengths: a request succeeds only when all of its bytes were transferred. Short transfers are
// continued, EINTR and EAGAIN are retried, the end of the file is kOutOfRange, every other failure is typed
// by errno (ErrnoStatus; EIO is kDataLoss, ENOSPC kResourceExhausted) and names the path, the offset and the
// errno.
//
// Ownership: between Submit and its completion a request's memory belongs to the kernel (a write's must not
// change, a read's must not be looked at). The destructor drains: it returns only when no operation
// can touch lent memory any more; completions not yet polled are dropped.
//
// Threads: an engine is used by one thread at a time (it may be created by another). Each lane thread owns
// its engine; engines share nothing, so a fault or a full queue of one lane never stalls another.
#ifndef OFFLOAD_IO_IO_ENGINE_H_
#define OFFLOAD_IO_IO_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/fd.h"

namespace strata {

// An open file an engine may work on. It outlives every request on it. Immutable, so any thread may share it.
class IoFile {
 public:
  // `direct`: opened with O_DIRECT; then offsets, sizes and memory must be multiples of `alignment`.
  IoFile(Fd fd, std::string path, bool direct, uint32_t alignment);
  IoFile(const IoFile&) = delete;
  IoFile& operator=(const IoFile&) = delete;

  int fd() const { return fd_.get(); }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  uint32_t alignment() const { return direct_ ? alignment_ : 1; }
  // Unique within the process for ever, unlike the descriptor's number.
  uint64_t id() const { return id_; }

 private:
  const Fd fd_;
  const std::string path_;
  const bool direct_;
  const uint32_t alignment_;
  const uint64_t id_;
};

enum class IoOp : uint8_t { kRead, kWrite };

struct IoRequest {
  IoOp op = IoOp::kRead;
  const IoFile* file = nullptr;
  uint64_t offset = 0;
  std::byte* data = nullptr;  // Never written to by a kWrite.
  size_t size = 0;            // > 0
  uint64_t token = 0;
};

struct IoCompletion {
  uint64_t token = 0;
  absl::Status status;
};

// What an engine is and which of its optional parts are on; shown in the status of the worker and the job.
struct IoEngineReport {
  std::string backend;  // "io_uring", "threads"
  unsigned depth = 0;
  uint64_t registered_buffer_bytes = 0;
  unsigned registered_files = 0;
  // Why and what to do; "" when there is nothing to say.
  std::string why_not_io_uring;
  std::string why_not_registered;  // A buffer or a file that was offered is not registered.
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;

  // Hands `requests` to the engine, in one batch where it can; at most depth() of them are with the kernel at
  // a time, the others wait inside. Never blocks for I/O to complete. A request that can never work (size 0,
  // or misaligned on a direct file) completes with kInvalidArgument.
  virtual void Submit(std::span<const IoRequest> requests) = 0;

  // Appends completions to `out`, in any order. Blocks until `min_completions` were appended by this call, or
  // nothing is outstanding any more. Poll(0) never blocks; it also pushes waiting requests on to the kernel.
  virtual void Poll(size_t min_completions, std::vector<IoCompletion>& out) = 0;

  // Requests submitted whose completion was not yet returned by Poll.
  virtual size_t outstanding() const = 0;
  virtual unsigned depth() const = 0;

  // Optional speed-ups for memory and files used again and again. A failure leaves the engine fully usable
  // without that registration, and is noted in the report. Registered memory and files must stay valid until
  // the engine is destroyed; a registered file's space returns to the file system only then.
  virtual absl::Status RegisterBuffer(std::span<std::byte> memory) = 0;
  virtual absl::Status RegisterFile(const IoFile& file) = 0;

  virtual IoEngineReport report() const = 0;
};

// For engines: "reading 1048576 bytes at offset 0 of <path>", `done` bytes of which had been transferred, and
// the Status of a request that failed, "<that>: ... (errno 5)".
std::string DescribeIoRequest(const IoRequest& request, size_t done);
absl::Status IoErrnoStatus(const IoRequest& request, size_t done, int error);
absl::Status IoEndOfFileStatus(const IoRequest& request, size_t done);
// OK, or why the request can never work.
absl::Status CheckIoRequest(const IoRequest& request);

}  // namespace strata

#endif  // OFFLOAD_IO_IO_ENGINE_H_
