// FileOps: the seam for durable file operations of checkpoints, so that a test can fail the Nth of them.
#ifndef OFFLOAD_CHECKPOINT_FILE_OPS_H_
#define OFFLOAD_CHECKPOINT_FILE_OPS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fd.h"

namespace strata {

// Every operation either happened as described or returns a typed error that names its path. None is
// retried here except on EINTR of open and write; above all a failed fsync is final: the kernel may have
// marked the lost pages clean, so a second fsync would succeed without the bytes. Thread-safe.
class FileOps {
 public:
  virtual ~FileOps() = default;

  // A new file for writing; kAlreadyExists if the name is taken.
  virtual absl::StatusOr<Fd> CreateFile(const std::string& path) = 0;
  // All of `data` at the file's position.
  virtual absl::Status Write(const Fd& fd, absl::string_view data, const std::string& path) = 0;
  virtual absl::Status Sync(const Fd& fd, const std::string& path) = 0;
  virtual absl::Status Close(Fd fd, const std::string& path) = 0;
  // Makes `path` and its parents, and syncs the parent of each folder it made. An existing folder is fine.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // rename(2): of a folder onto nothing or an empty folder.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Swaps two existing names in one step. kUnimplemented where the file system cannot (NFS, for one).
  virtual absl::Status Exchange(const std::string& a, const std::string& b) = 0;
  // rm -rf; a missing path is fine.
  virtual absl::Status RemoveTree(const std::string& path) = 0;

  // The machine's file system; lives forever.
  static FileOps& Real();
};

}  // namespace strata

#endif  // OFFLOAD_CHECKPOINT_FILE_OPS_H_
