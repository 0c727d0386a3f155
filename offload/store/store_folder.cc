#include "offload/store/store_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr char kPrefix[] = "strata-";
constexpr char kProbePrefix[] = "strata-probe-";  // Of files (ProbePath), where folders are stores.
constexpr char kFileName[] = "extents";           // Only seen where the file system has no O_TMPFILE.
constexpr size_t kOwnerMax = 200;

// Opens <path> and holds its lock: whoever makes, sweeps or removes store folders there does so alone.
absl::StatusOr<Fd> EnterGate(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(Fd gate, OpenFile(path, O_RDONLY | O_DIRECTORY));
  int result;
  do {
    result = flock(gate.get(), LOCK_EX);
  } while (result != 0 && errno == EINTR);
  if (result != 0)
    return ErrnoStatus(errno, absl::StrCat("locking ", path, " (its file system needs flock)"));
  return gate;
}

absl::Status CheckOwner(const std::string& owner) {
  bool good = !owner.empty() && owner.size() <= kOwnerMax && owner[0] != '.';
  for (const char c : owner) good = good && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("store owner \"", owner, "\": 1 to ", kOwnerMax,
                                                 " of A-Z a-z 0-9 . _ - and not starting with '.'"));
}

}  // namespace

std::string StoreFolderName(const std::string& path, const std::string& owner) {
  return absl::StrCat(path, "/", kPrefix, owner);
}

absl::StatusOr<StoreFolder> StoreFolder::Lock(const std::string& path, const std::string& owner) {
  STRATA_RETURN_IF_ERROR(CheckOwner(owner));
  const std::string name = StoreFolderName(path, owner);
  const std::string base = name.substr(path.size() + 1);
  STRATA_ASSIGN_OR_RETURN(const Fd gate, EnterGate(path));
  if (mkdirat(gate.get(), base.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("making ", name));
  }
  Fd fd(openat(gate.get(), base.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", name));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, absl::StrCat("locking ", name));
    return absl::AlreadyExistsError(absl::StrCat(
        name, " is in use by another open store: end the other process, or use another path or owner"));
  }
  if (unlinkat(fd.get(), kFileName, 0) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("removing ", name, "/", kFileName, ", left by a dead process"));
  }
  return StoreFolder(path, name, std::move(fd));
}

StoreFolder::~StoreFolder() { (void)Remove(); }

absl::StatusOr<StoreFolder::File> StoreFolder::MakeUnnamedFile(int flags) const {
  const int open_flags = O_RDWR | O_CLOEXEC | flags;
  File file;
  file.fd = Fd(openat(fd_.get(), ".", O_TMPFILE | open_flags, 0600));
  file.unnamed = file.fd.valid();
  if (file.unnamed) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("making a file in ", name_));
  }
  file.fd = Fd(openat(fd_.get(), kFileName, O_CREAT | O_EXCL | open_flags, 0600));
  if (!file.fd.valid()) return ErrnoStatus(errno, absl::StrCat("making ", name_, "/", kFileName));
  if (unlinkat(fd_.get(), kFileName, 0) != 0) {
    return ErrnoStatus(errno, absl::StrCat("unlinking ", name_, "/", kFileName));
  }
  return file;
}

absl::Status StoreFolder::Remove() {
  if (!fd_.valid()) return absl::OkStatus();
  const Fd held = std::move(fd_);  // The lock goes last.
  STRATA_ASSIGN_OR_RETURN(const Fd gate, EnterGate(path_), "removing ", name_);
  const std::string base = name_.substr(path_.size() + 1);
  if (unlinkat(gate.get(), base.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, absl::StrCat("removing ", name_));
  }
  return absl::OkStatus();
}

absl::StatusOr<unsigned> SweepStaleStores(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(const Fd gate, EnterGate(path));
  Fd listing_fd(openat(gate.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!listing_fd.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(fdopendir(listing_fd.get()), &closedir);
  if (listing == nullptr) return ErrnoStatus(errno, absl::StrCat("listing ", path));
  listing_fd.Release();  // Now closedir's.
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(listing.get())) {
    if (absl::StartsWith(entry->d_name, kPrefix)) names.push_back(entry->d_name);
  }
  if (errno != 0) return ErrnoStatus(errno, absl::StrCat("listing ", path));

  unsigned swept = 0;
  for (const std::string& name : names) {
    const Fd folder(openat(gate.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder.valid()) {
      // A probe killed between making and unlinking its file; one that lives does not mind losing the name.
      if (errno == ENOTDIR && absl::StartsWith(name, kProbePrefix)) unlinkat(gate.get(), name.c_str(), 0);
      continue;
    }
    if (flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;  // Alive.
    unlinkat(folder.get(), kFileName, 0);
    // Fails, as it should, when there is anything else in it.
    if (unlinkat(gate.get(), name.c_str(), AT_REMOVEDIR) == 0) ++swept;
  }
  return swept;
}

}  // namespace strata
