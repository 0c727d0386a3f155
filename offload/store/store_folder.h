// The folder of an open store, <path>/strata-<owner>/, and what keeps two stores apart.
//
// Order of events, all of it under an exclusive flock of <path> itself (held for microseconds), so that
// making, sweeping and removing folders never interleave between processes:
//   open:   1. mkdir the folder if missing  2. flock it (refused: in use)  3. make the file  4. unlink its
//   name sweep:  for each strata-* folder nobody has locked: 1. unlink the file's name, if any  2. rmdir
//   close:  1. rmdir the folder  2. drop its lock
// A process killed at any point leaves at most an unlocked folder with at most one file, which a sweep
// removes.
#ifndef OFFLOAD_STORE_STORE_FOLDER_H_
#define OFFLOAD_STORE_STORE_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/fd.h"

namespace strata {

// <path>/strata-<owner>
std::string StoreFolderName(const std::string& path, const std::string& owner);

class StoreFolder {
 public:
  // Locks <path>/strata-<owner>/ until the object is destroyed or removed. kAlreadyExists: a living process
  // has it.
  static absl::StatusOr<StoreFolder> Lock(const std::string& path, const std::string& owner);
  StoreFolder(StoreFolder&&) = default;
  StoreFolder& operator=(StoreFolder&&) = delete;
  ~StoreFolder();  // Removes it, ignoring errors.

  struct File {
    Fd fd;
    bool unnamed = false;  // O_TMPFILE; else it had a name for a moment.
  };
  // A new empty file in the folder that has no name any more. `flags` are added to O_RDWR (O_DIRECT).
  absl::StatusOr<File> MakeUnnamedFile(int flags) const;

  // Removes the folder and drops the lock. Idempotent.
  absl::Status Remove();

  const std::string& name() const { return name_; }  // Full path.

 private:
  StoreFolder(std::string path, std::string name, Fd fd)
      : path_(std::move(path)), name_(std::move(name)), fd_(std::move(fd)) {}

  std::string path_;
  std::string name_;
  Fd fd_;
};

// Removes the store folders on `path` that no living process has locked, and returns how many. A folder with
// files that are not ours is left alone. Safe at any time beside open stores of any process. The agent calls
// it at its start and after a trainer died.
absl::StatusOr<unsigned> SweepStaleStores(const std::string& path);

}  // namespace strata

#endif  // OFFLOAD_STORE_STORE_FOLDER_H_
