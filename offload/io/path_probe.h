// ProbePath: what a folder can really do, found by doing it.
#ifndef OFFLOAD_IO_PATH_PROBE_H_
#define OFFLOAD_IO_PATH_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/fd.h"

namespace strata {

struct PathInfo {
  std::string path;
  bool writable = false;         // Always true in a result: an unwritable path is an error.
  bool o_direct = false;         // Blocks written with O_DIRECT came back the same.
  std::string o_direct_why_not;  // Empty when o_direct.
  uint32_t block_alignment = 0;  // Of offset, size and memory with O_DIRECT: 512 or 4096; 1 without.
  bool o_tmpfile = false;        // Files without a name can be made, so kill -9 leaves nothing.
  std::string fs_type;           // "ext4", "xfs", "tmpfs", ..., or "0x<magic>".
  uint64_t free_bytes = 0;       // Available to this user.
  uint64_t total_bytes = 0;
};

// Writes a few blocks into an unnamed (or at once unlinked) file in the folder `path`, reads them back and
// compares. Leaves nothing behind. kNotFound, kInvalidArgument (not a folder), kPermissionDenied (not
// writable), kResourceExhausted (full), kDataLoss (came back different); each names the path and a remedy.
// Blocking; any thread.
absl::StatusOr<PathInfo> ProbePath(const std::string& path);

// Whether what is written below `path` stays in memory (tmpfs, ramfs), and counts as such in a control group.
// False where the path cannot be looked at.
bool IsInMemory(const std::string& path);

// An empty file in the folder `path` without a name: by O_TMPFILE (`o_tmpfile`), else by unlinking it at
// once.
absl::StatusOr<Fd> MakeProbeFile(const std::string& path, bool& o_tmpfile);

}  // namespace strata

#endif  // OFFLOAD_IO_PATH_PROBE_H_
