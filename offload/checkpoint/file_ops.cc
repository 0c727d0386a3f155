#include "offload/checkpoint/file_ops.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace strata {
namespace {

class RealFileOps : public FileOps {
 public:
  absl::StatusOr<Fd> CreateFile(const std::string& path) override {
    return OpenFile(path, O_WRONLY | O_CREAT | O_EXCL);
  }

  absl::Status Write(const Fd& fd, absl::string_view data, const std::string& path) override {
    return WriteAll(fd, data, path);
  }

  absl::Status Sync(const Fd& fd, const std::string& path) override {
    if (fsync(fd.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync of ", path));
    return absl::OkStatus();
  }

  absl::Status Close(Fd fd, const std::string& path) override {
    STRATA_RETURN_IF_ERROR(std::move(fd).Close(), path);
    return absl::OkStatus();
  }

  absl::Status MakeDirectory(const std::string& path) override {
    struct stat info;
    if (stat(path.c_str(), &info) == 0) {
      if (S_ISDIR(info.st_mode)) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat(path, " is not a folder"));
    }
    if (errno != ENOENT) return ErrnoStatus(errno, absl::StrCat("creating folder ", path));
    const std::string parent = Parent(path);
    if (parent != path) STRATA_RETURN_IF_ERROR(MakeDirectory(parent));
    // EEXIST: somebody else made it in between, which is as good.
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("creating folder ", path));
    }
    return strata::SyncDirectory(parent);
  }

  absl::Status SyncDirectory(const std::string& path) override { return strata::SyncDirectory(path); }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) {
      return ErrnoStatus(errno == ENOTEMPTY ? EEXIST : errno, absl::StrCat("renaming ", from, " to ", to));
    }
    return absl::OkStatus();
  }

  absl::Status Exchange(const std::string& a, const std::string& b) override {
    if (renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return absl::OkStatus();
    const std::string what = absl::StrCat("exchanging ", a, " and ", b);
    // EINVAL is what file systems without the flag return; the names themselves are ours and valid.
    if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return absl::UnimplementedError(what);
    return ErrnoStatus(errno, what);
  }

  absl::Status RemoveTree(const std::string& path) override { return strata::RemoveTree(path); }

 private:
  // The folder that holds the name `path`; "." for a name without one.
  static std::string Parent(const std::string& path) {
    std::filesystem::path p(path);
    if (!p.has_filename()) p = p.parent_path();  // A trailing slash.
    const std::string parent = p.parent_path().string();
    return parent.empty() ? "." : parent;
  }
};

}  // namespace

FileOps& FileOps::Real() {
  static RealFileOps* const real = new RealFileOps;
  return *real;
}

}  // namespace strata
