#include "offload/io/io_engine.h"

#include <atomic>
#include <utility>

#include "common/check.h"
#include "common/status.h"

namespace strata {
namespace {

uint64_t NextFileId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

IoFile::IoFile(Fd fd, std::string path, bool direct, uint32_t alignment)
    : fd_(std::move(fd)), path_(std::move(path)), direct_(direct), alignment_(alignment), id_(NextFileId()) {
  STRATA_CHECK(!direct_ || alignment_ > 0);
}

std::string DescribeIoRequest(const IoRequest& request, size_t done) {
  return absl::StrCat(request.op == IoOp::kRead ? "reading " : "writing ", request.size, " bytes at offset ",
                      request.offset, " of ", request.file == nullptr ? "no file" : request.file->path(),
                      done > 0 ? absl::StrCat(" (", done, " bytes done)") : "");
}

absl::Status IoErrnoStatus(const IoRequest& request, size_t done, int error) {
  return ErrnoStatus(error, DescribeIoRequest(request, done));
}

absl::Status IoEndOfFileStatus(const IoRequest& request, size_t done) {
  return absl::OutOfRangeError(absl::StrCat(DescribeIoRequest(request, done), ": the file ends before that"));
}

absl::Status CheckIoRequest(const IoRequest& request) {
  const char* wrong = nullptr;
  if (request.file == nullptr || request.data == nullptr || request.size == 0) {
    wrong = "a request needs a file, memory and a size";
  } else if (request.offset > static_cast<uint64_t>(INT64_MAX) ||
             request.size > static_cast<uint64_t>(INT64_MAX) - request.offset) {
    wrong = "the end is above 2^63";
  } else {
    const uint64_t alignment = request.file->alignment();
    if (request.offset % alignment != 0) wrong = "O_DIRECT needs an aligned offset";
    if (request.size % alignment != 0) wrong = "O_DIRECT needs an aligned size";
    if (reinterpret_cast<uintptr_t>(request.data) % alignment != 0) wrong = "O_DIRECT needs aligned memory";
  }
  if (wrong == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(DescribeIoRequest(request, 0), ": ", wrong));
}

}  // namespace strata
