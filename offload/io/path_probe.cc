#include "offload/io/path_probe.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "common/fd.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr size_t kProbeBytes = 8192;
constexpr uint32_t kAlignments[] = {512, 4096};

struct FreeDeleter {
  void operator()(unsigned char* data) const { free(data); }
};

std::string FileSystemName(uint64_t magic) {
  switch (magic) {
    case EXT4_SUPER_MAGIC:
      return "ext4";
    case XFS_SUPER_MAGIC:
      return "xfs";
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case F2FS_SUPER_MAGIC:
      return "f2fs";
    case TMPFS_MAGIC:
      return "tmpfs";
    case RAMFS_MAGIC:
      return "ramfs";
    case OVERLAYFS_SUPER_MAGIC:
      return "overlayfs";
    case NFS_SUPER_MAGIC:
      return "nfs";
    case FUSE_SUPER_MAGIC:
      return "fuse";
    case 0x2FC12FC1:
      return "zfs";
    default:
      return absl::StrCat("0x", absl::Hex(magic));
  }
}

absl::Status WithRemedy(const absl::Status& status) {
  const char* remedy = "choose another folder";
  if (absl::IsNotFound(status)) remedy = "create the folder, or choose another one";
  if (absl::IsPermissionDenied(status)) remedy = "make it writable for this user, or choose another folder";
  if (absl::IsResourceExhausted(status)) remedy = "free some space or descriptors, or choose another folder";
  return absl::Status(status.code(), absl::StrCat(status.message(), "; ", remedy));
}

}  // namespace

bool IsInMemory(const std::string& path) {
  struct statfs info;
  if (statfs(path.c_str(), &info) != 0) return false;
  const auto magic = static_cast<uint64_t>(info.f_type);
  return magic == TMPFS_MAGIC || magic == RAMFS_MAGIC;
}

absl::StatusOr<Fd> MakeProbeFile(const std::string& path, bool& o_tmpfile) {
  absl::StatusOr<Fd> fd = OpenFile(path, O_TMPFILE | O_RDWR, 0600);
  o_tmpfile = fd.ok();
  if (fd.ok() || absl::IsPermissionDenied(fd.status()) || absl::IsResourceExhausted(fd.status())) return fd;
  std::string name = absl::StrCat(path, "/strata-probe-XXXXXX");
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named < 0 &&
      errno == ENOENT) {  // The folder exists, but is one of a kind without files of ours (/proc).
    return absl::PermissionDeniedError(absl::StrCat("no file can be made in ", path));
  }
  if (named < 0) return ErrnoStatus(errno, absl::StrCat("making a file in ", path));
  Fd result(named);
  if (unlink(name.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(errno, absl::StrCat("unlinking ", name));
  return result;
}

namespace {

// Writes `size` bytes of a pattern chosen by `salt` at `offset` and reads them back.
absl::Status WriteAndReadBack(int fd, const std::string& path, unsigned char* data, size_t size,
                              uint64_t offset, unsigned salt) {
  const auto pattern = [salt](size_t i) { return static_cast<unsigned char>((i * 131 + salt * 29) >> 3); };
  for (size_t i = 0; i < size; ++i) data[i] = pattern(i);
  const ssize_t written = pwrite(fd, data, size, static_cast<off_t>(offset));
  if (written < 0) return ErrnoStatus(errno, absl::StrCat("writing ", size, " bytes to a file in ", path));
  if (static_cast<size_t>(written) != size) {
    return absl::ResourceExhaustedError(
        absl::StrCat("only ", written, " of ", size, " bytes could be written to a file in ", path));
  }
  memset(data, 0, size);
  const ssize_t read = pread(fd, data, size, static_cast<off_t>(offset));
  if (read < 0) return ErrnoStatus(errno, absl::StrCat("reading back a file in ", path));
  bool same = static_cast<size_t>(read) == size;
  for (size_t i = 0; same && i < size; ++i) same = data[i] == pattern(i);
  if (!same)
    return absl::DataLossError(absl::StrCat("bytes written to a file in ", path, " came back different"));
  return absl::OkStatus();
}

// Turns O_DIRECT on for `fd` and finds the smallest alignment with which it works.
absl::Status ProbeDirect(int fd, unsigned char* data, PathInfo& info) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0) {
    info.o_direct_why_not =
        absl::StrCat(info.fs_type, " at ", info.path, " has no O_DIRECT (", strerror(errno), ")");
    return absl::OkStatus();
  }
  absl::Status last;
  for (const uint32_t alignment : kAlignments) {
    // Offset, size and memory are odd multiples of the alignment, so a stricter file system refuses them.
    last = WriteAndReadBack(fd, info.path, data + alignment, alignment, alignment, alignment);
    if (last.ok()) {
      info.o_direct = true;
      info.block_alignment = alignment;
      return absl::OkStatus();
    }
    if (absl::IsDataLoss(last) || absl::IsResourceExhausted(last)) return last;
  }
  info.o_direct_why_not =
      absl::StrCat("O_DIRECT on ", info.fs_type, " at ", info.path, " does not work: ", last.message());
  return absl::OkStatus();
}

absl::StatusOr<PathInfo> Probe(const std::string& path) {
  PathInfo info;
  info.path = path;
  struct stat stats;
  if (stat(path.c_str(), &stats) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(stats.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a folder"));
  struct statfs fs;
  if (statfs(path.c_str(), &fs) != 0) return ErrnoStatus(errno, absl::StrCat("statfs of ", path));
  info.fs_type = FileSystemName(static_cast<uint64_t>(fs.f_type));
  info.free_bytes = static_cast<uint64_t>(fs.f_bavail) * static_cast<uint64_t>(fs.f_bsize);
  info.total_bytes = static_cast<uint64_t>(fs.f_blocks) * static_cast<uint64_t>(fs.f_bsize);
  info.block_alignment = 1;

  STRATA_ASSIGN_OR_RETURN(const Fd fd, MakeProbeFile(path, info.o_tmpfile));
  const std::unique_ptr<unsigned char, FreeDeleter> buffer(
      static_cast<unsigned char*>(aligned_alloc(2 * kProbeBytes, 2 * kProbeBytes)));
  if (buffer == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no memory to probe ", path));
  STRATA_RETURN_IF_ERROR(WriteAndReadBack(fd.get(), path, buffer.get(), kProbeBytes, 0, /*salt=*/1), "with ",
                         info.free_bytes, " bytes free");
  info.writable = true;
  STRATA_RETURN_IF_ERROR(ProbeDirect(fd.get(), buffer.get(), info));
  return info;
}

}  // namespace

absl::StatusOr<PathInfo> ProbePath(const std::string& path) {
  absl::StatusOr<PathInfo> info = Probe(path);
  if (!info.ok()) return WithRemedy(info.status());
  return info;
}

}  // namespace strata
