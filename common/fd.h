// Fd: owns a file descriptor. Files: small helpers for durable file operations.
#ifndef COMMON_FD_H_
#define COMMON_FD_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// Owns one descriptor. The destructor closes and ignores the error: files whose close can lose data
// are synced first, and end with `std::move(fd).Close()`.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  absl::Status Close() &&;

 private:
  int fd_ = -1;
};

// open(2) with O_CLOEXEC; the error names the path.
absl::StatusOr<Fd> OpenFile(const std::string& path, int flags, uint32_t mode = 0644);

// Writes all of `data` at the current position, continuing short writes.
absl::Status WriteAll(const Fd& fd, absl::string_view data, absl::string_view path);

// The whole file, refused above `limit_bytes` before any allocation.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit_bytes);

// Writes `path`.tmp, fsyncs it, renames it over `path`, fsyncs the directory: afterwards the file has
// the old or the new bytes, never a mix. A failed fsync is an error and is not retried.
absl::Status WriteFileDurably(const std::string& path, absl::string_view data);

absl::Status SyncDirectory(const std::string& path);

// mkdir -p; existing directories are fine.
absl::Status MakeDirectories(const std::string& path);

// The names in a folder, without "." and "..", sorted.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

// rm -rf; a missing path is fine.
absl::Status RemoveTree(const std::string& path);

}  // namespace strata

#endif  // COMMON_FD_H_
