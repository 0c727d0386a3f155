#include "offload/device/fake_cufile.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace strata {

int FakeCufile::calls() const {
  MutexLock lock(mu_);
  return calls_;
}

int FakeCufile::reads() const {
  MutexLock lock(mu_);
  return reads_;
}

int FakeCufile::writes() const {
  MutexLock lock(mu_);
  return writes_;
}

std::string FakeCufile::Complaints() const {
  MutexLock lock(mu_);
  std::vector<std::string> said;
  if (!misuses_.empty()) said.push_back(absl::StrCat("misuse: ", absl::StrJoin(misuses_, ", ")));
  if (open_ != 0 || !handles_.empty() || !buffers_.empty()) {
    said.push_back(absl::StrCat("not given back: ", open_, " opens of the driver, ", handles_.size(),
                                " files, ", buffers_.size(), " buffers"));
  }
  return absl::StrJoin(said, "; ");
}

bool FakeCufile::Fails() { return calls_++ == fail_call; }

cufile::Error FakeCufile::DriverOpen() {
  MutexLock lock(mu_);
  if (Fails()) return error;
  ++open_;
  return {};
}

cufile::Error FakeCufile::DriverClose() {
  MutexLock lock(mu_);
  if (--open_ < 0) misuses_.push_back("a driver that is not open was closed");
  return Fails() ? error : cufile::Error();
}

cufile::Error FakeCufile::DriverGetProperties(cufile::Properties* asked) {
  MutexLock lock(mu_);
  if (Fails()) return error;
  *asked = properties;
  return {};
}

cufile::Error FakeCufile::HandleRegister(cufile::Handle* handle, int fd) {
  MutexLock lock(mu_);
  if (Fails()) return error;
  if (open_ == 0) misuses_.push_back("a file was registered without the driver");
  for (const auto& [other, descriptor] : handles_) {
    if (descriptor == fd) return {cufile::kHandleAlreadyRegistered, 0};
  }
  *handle = reinterpret_cast<cufile::Handle>(static_cast<uintptr_t>(calls_));
  handles_[*handle] = fd;
  return {};
}

void FakeCufile::HandleDeregister(cufile::Handle handle) {
  MutexLock lock(mu_);
  if (handles_.erase(handle) == 0) misuses_.push_back("an unknown file was deregistered");
}

cufile::Error FakeCufile::BufRegister(const void* base, size_t bytes) {
  MutexLock lock(mu_);
  if (Fails()) return error;
  if (open_ == 0) misuses_.push_back("memory was registered without the driver");
  buffers_[base] = bytes;
  return {};
}

cufile::Error FakeCufile::BufDeregister(const void* base) {
  MutexLock lock(mu_);
  if (buffers_.erase(base) == 0) misuses_.push_back("unknown memory was deregistered");
  return {};
}

int FakeCufile::Begin(bool read, cufile::Handle handle, const void* base, size_t bytes, off_t base_offset) {
  MutexLock lock(mu_);
  if (Fails()) {
    errno = EIO;
    return error.code == -1 ? -1 : -error.code;
  }
  ++(read ? reads_ : writes_);
  const auto file = handles_.find(handle);
  const auto buffer = buffers_.find(base);
  if (file == handles_.end() || buffer == buffers_.end() ||
      static_cast<size_t>(base_offset) + bytes > buffer->second) {
    misuses_.push_back("a transfer of a file or memory that is not registered");
    return -cufile::kPointerInvalid;
  }
  return file->second;
}

ssize_t FakeCufile::Read(cufile::Handle handle, void* base, size_t bytes, off_t file_offset,
                         off_t base_offset) {
  const int fd = Begin(/*read=*/true, handle, base, bytes, base_offset);
  if (fd < 0) return fd;
  std::byte* const data = static_cast<std::byte*>(base) + base_offset;
  const ssize_t moved = pread(fd, data, std::min(bytes, most_at_once), file_offset);
  if (moved > 0 && after_read) after_read(data, static_cast<size_t>(moved));
  return moved;
}

ssize_t FakeCufile::Write(cufile::Handle handle, const void* base, size_t bytes, off_t file_offset,
                          off_t base_offset) {
  const int fd = Begin(/*read=*/false, handle, base, bytes, base_offset);
  if (fd < 0) return fd;
  return pwrite(fd, static_cast<const std::byte*>(base) + base_offset, std::min(bytes, most_at_once),
                file_offset);
}

}  // namespace strata
