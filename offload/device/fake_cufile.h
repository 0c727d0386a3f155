// FakeCufile: a machine with GPUDirect Storage, or with what a test takes away. Device memory is a
// FakeCuda's, so the host can move its bytes. It counts what stays open and records misuse.
#ifndef OFFLOAD_DEVICE_FAKE_CUFILE_H_
#define OFFLOAD_DEVICE_FAKE_CUFILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "offload/device/cufile_api.h"

namespace strata {

class FakeCufile : public CufileApi {
 public:
  // Set before use.
  cufile::Properties properties = {
      .nvfs_major = 2, .nvfs_minor = 19, .status = 1u << cufile::kNvmeSupported, .features = 0};
  int fail_call = -1;                                   // this call, counted from 0, fails ...
  cufile::Error error = {cufile::kNvfsDriverError, 0};  // ... so; code -1: Read and Write by errno EIO
  size_t most_at_once = SIZE_MAX;                       // Read and Write move no more
  // Of each Read that succeeds, before it returns.
  std::function<void(std::byte* data, size_t bytes)> after_read;

  int calls() const ABSL_LOCKS_EXCLUDED(mu_);
  int reads() const ABSL_LOCKS_EXCLUDED(mu_);
  int writes() const ABSL_LOCKS_EXCLUDED(mu_);
  // "misuse: ...; not given back: ...": "" when there is nothing to say.
  std::string Complaints() const ABSL_LOCKS_EXCLUDED(mu_);

  cufile::Error DriverOpen() override;
  cufile::Error DriverClose() override;
  cufile::Error DriverGetProperties(cufile::Properties* asked) override;
  cufile::Error HandleRegister(cufile::Handle* handle, int fd) override;
  void HandleDeregister(cufile::Handle handle) override;
  cufile::Error BufRegister(const void* base, size_t bytes) override;
  cufile::Error BufDeregister(const void* base) override;
  ssize_t Read(cufile::Handle handle, void* base, size_t bytes, off_t file_offset,
               off_t base_offset) override;
  ssize_t Write(cufile::Handle handle, const void* base, size_t bytes, off_t file_offset,
                off_t base_offset) override;

 private:
  // Counts the call: whether it fails.
  bool Fails() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Before a transfer: its file descriptor, or below 0 what it returns.
  int Begin(bool read, cufile::Handle handle, const void* base, size_t bytes, off_t base_offset)
      ABSL_LOCKS_EXCLUDED(mu_);

  mutable Mutex mu_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  int reads_ ABSL_GUARDED_BY(mu_) = 0, writes_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<cufile::Handle, int> handles_ ABSL_GUARDED_BY(mu_);  // their descriptors
  std::map<const void*, size_t> buffers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> misuses_ ABSL_GUARDED_BY(mu_);
};

// As the loader on a machine without it.
inline absl::StatusOr<CufileApi*> NoCufile() { return absl::FailedPreconditionError("no cuFile here"); }

}  // namespace strata

#endif  // OFFLOAD_DEVICE_FAKE_CUFILE_H_
