#include "offload/io/io_engine.h"

#include <algorithm>
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

std::string DescribeRequest(const IoRequest& request, size_t done) {
  return absl::StrCat(request.op == IoOp::kRead ? "reading " : "writing ", request.size, " bytes at offset ",
                      request.offset, " of ", request.file == nullptr ? "no file" : request.file->path(),
                      done > 0 ? absl::StrCat(" (", done, " bytes done)") : "");
}

// One transfer cut into pieces, all submitted at once; piece i has token i.
class PieceTransfer {
 public:
  PieceTransfer(IoEngine& engine, IoOp op, const IoFile& file, uint64_t offset, std::byte* data, size_t size,
                size_t block_bytes)
      : engine_(engine), data_(data), size_(size), block_bytes_(block_bytes) {
    const size_t pieces = (size + block_bytes - 1) / block_bytes;
    arrived_.resize(pieces, false);
    completions_.reserve(pieces);
    std::vector<IoRequest> requests(pieces);
    for (size_t i = 0; i < pieces; ++i) {
      const std::span<std::byte> piece = Piece(i);
      requests[i] = {op, &file, offset + i * block_bytes, piece.data(), piece.size(), /*token=*/i};
    }
    engine_.Submit(requests);
  }

  size_t pieces() const { return arrived_.size(); }
  bool failed() const { return first_failed_ < pieces(); }
  bool arrived(size_t piece) const { return arrived_[piece]; }

  std::span<std::byte> Piece(size_t i) const {
    return {data_ + i * block_bytes_, std::min(block_bytes_, size_ - i * block_bytes_)};
  }

  void Poll(size_t min_completions) {
    completions_.clear();
    engine_.Poll(min_completions, completions_);
    for (IoCompletion& completion : completions_) {
      if (completion.status.ok()) {
        arrived_[completion.token] = true;
      } else if (completion.token < first_failed_) {
        first_failed_ = completion.token;
        error_ = std::move(completion.status);
      }
    }
  }

  absl::Status Finish() {
    while (engine_.outstanding() > 0) Poll(1);
    return error_;
  }

 private:
  IoEngine& engine_;
  std::byte* const data_;
  const size_t size_;
  const size_t block_bytes_;
  std::vector<bool> arrived_;
  std::vector<IoCompletion> completions_;
  size_t first_failed_ = SIZE_MAX;
  absl::Status error_;
};

}  // namespace

IoFile::IoFile(Fd fd, std::string path, bool direct, uint32_t alignment)
    : fd_(std::move(fd)), path_(std::move(path)), direct_(direct), alignment_(alignment), id_(NextFileId()) {
  STRATA_CHECK(!direct_ || alignment_ > 0);
}

absl::Status ReadExact(IoEngine& engine, const IoFile& file, uint64_t offset, std::span<std::byte> data,
                       size_t block_bytes, const IoPieceFn& on_piece) {
  STRATA_CHECK(engine.outstanding() == 0 && block_bytes > 0);
  PieceTransfer transfer(engine, IoOp::kRead, file, offset, data.data(), data.size(), block_bytes);
  if (on_piece != nullptr) {
    for (size_t next = 0; next < transfer.pieces(); ++next) {
      while (!transfer.arrived(next) && !transfer.failed()) transfer.Poll(1);
      if (transfer.failed()) break;
      on_piece(transfer.Piece(next));
      transfer.Poll(0);  // Keep the queue full while the next piece is looked at.
    }
  }
  return transfer.Finish();
}

absl::Status WriteExact(IoEngine& engine, const IoFile& file, uint64_t offset,
                        std::span<const std::byte> data, size_t block_bytes, const IoPieceFn& on_piece) {
  STRATA_CHECK(engine.outstanding() == 0 && block_bytes > 0);
  // IoRequest has one pointer for both directions; engines never store through that of a write.
  PieceTransfer transfer(engine, IoOp::kWrite, file, offset, const_cast<std::byte*>(data.data()), data.size(),
                         block_bytes);
  if (on_piece != nullptr) {
    for (size_t next = 0; next < transfer.pieces() && !transfer.failed(); ++next) {
      on_piece(transfer.Piece(next));
      transfer.Poll(0);
    }
  }
  return transfer.Finish();
}

absl::Status IoErrnoStatus(const IoRequest& request, size_t done, int error) {
  return ErrnoStatus(error, DescribeRequest(request, done));
}

absl::Status IoEndOfFileStatus(const IoRequest& request, size_t done) {
  return absl::OutOfRangeError(absl::StrCat(DescribeRequest(request, done), ": the file ends before that"));
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
  return absl::InvalidArgumentError(absl::StrCat(DescribeRequest(request, 0), ": ", wrong));
}

}  // namespace strata
