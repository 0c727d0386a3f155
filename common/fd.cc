#include "common/fd.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "common/status.h"

namespace strata {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

absl::Status Fd::Close() && {
  const int fd = Release();
  if (fd >= 0 && close(fd) != 0) return ErrnoStatus(errno, "close");
  return absl::OkStatus();
}

absl::StatusOr<Fd> OpenFile(const std::string& path, int flags, uint32_t mode) {
  int fd;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  return Fd(fd);
}

absl::Status WriteAll(const Fd& fd, absl::string_view data, absl::string_view path) {
  while (!data.empty()) {
    const ssize_t n = write(fd.get(), data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("writing ", path));
    data.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit_bytes) {
  STRATA_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_RDONLY));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is a directory"));
  std::string data;
  // Procfs and pipes report size 0, so the limit is enforced on what arrives, not on st_size alone.
  if (info.st_size > limit_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", info.st_size, " bytes, the limit is ", limit_bytes));
  }
  data.reserve(static_cast<size_t>(info.st_size));
  char buffer[65536];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
    if (n == 0) return data;
    if (static_cast<int64_t>(data.size()) + n > limit_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " is longer than the limit of ", limit_bytes, " bytes"));
    }
    data.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status WriteFileDurably(const std::string& path, absl::string_view data) {
  const std::string temporary = path + ".tmp";
  const auto undo = [&](absl::Status status) {
    unlink(temporary.c_str());
    return status;
  };
  {
    STRATA_ASSIGN_OR_RETURN(Fd fd, OpenFile(temporary, O_WRONLY | O_CREAT | O_TRUNC));
    if (absl::Status written = WriteAll(fd, data, temporary); !written.ok()) return undo(std::move(written));
    if (fsync(fd.get()) != 0) return undo(ErrnoStatus(errno, absl::StrCat("fsync of ", temporary)));
    if (absl::Status closed = std::move(fd).Close(); !closed.ok()) return undo(Annotate(closed, temporary));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0)
    return undo(ErrnoStatus(errno, absl::StrCat("renaming ", temporary)));
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

absl::Status SyncDirectory(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_RDONLY | O_DIRECTORY));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync of directory ", path));
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("creating directory ", path));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("listing ", path));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("removing ", path));
  return absl::OkStatus();
}

}  // namespace strata
