#include "server/service/checkpoint_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/crc32c.h"
#include "common/status.h"
#include "server/service/errors.h"

namespace strata::server {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;

absl::Status Corrupt(const std::string& path, int64_t offset, const std::string& expected,
                     const std::string& actual) {
  return MakeError(
      absl::StatusCode::kDataLoss, "CHECKPOINT_CORRUPT",
      absl::StrCat(path, " at ", offset, ": expected ", expected, ", found ", actual),
      {{"path", path}, {"offset", absl::StrCat(offset)}, {"expected", expected}, {"actual", actual}});
}

}  // namespace

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const v1::Checkpoint& checkpoint,
                                                        const std::string& path, int64_t offset) {
  const auto file =
      std::find_if(checkpoint.files().begin(), checkpoint.files().end(),
                   [&](const v1::CheckpointFile& candidate) { return candidate.path() == path; });
  if (file == checkpoint.files().end()) {
    return NotFound("file", absl::StrCat(TruncateUtf8(path, 200), " of ", checkpoint.name()));
  }
  if (offset < 0 || offset > file->bytes()) {
    return InvalidField("offset", absl::StrCat("must be 0 to ", file->bytes(), ", the size of ", path));
  }
  const std::string whole = absl::StrCat(checkpoint.path(), "/", path);
  Fd at(open(checkpoint.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  for (size_t i = 0; at.valid() && i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    const int flags = O_CLOEXEC | O_NOFOLLOW | (last ? O_RDONLY | O_NONBLOCK : O_PATH | O_DIRECTORY);
    at = Fd(openat(at.get(), parts[i].c_str(), flags));
  }
  if (!at.valid()) return Corrupt(whole, 0, "a file", ErrnoStatus(errno, "open").ToString());
  struct stat stat {};
  if (fstat(at.get(), &stat) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", whole));
  if (!S_ISREG(stat.st_mode)) return Corrupt(whole, 0, "a regular file", "something else");
  if (stat.st_size != file->bytes()) {
    return Corrupt(whole, std::min<int64_t>(stat.st_size, file->bytes()),
                   absl::StrCat(file->bytes(), " bytes"), absl::StrCat(stat.st_size, " bytes"));
  }
  return CheckpointReader(std::move(at), whole, *file, offset);
}

absl::StatusOr<v1::FileChunk> CheckpointReader::Next() {
  v1::FileChunk chunk;
  chunk.set_offset(offset_);
  chunk.set_total_bytes(file_.bytes());
  std::string& data = *chunk.mutable_data();
  data.resize(std::min(kChunkBytes, file_.bytes() - offset_));
  size_t got = 0;
  while (got < data.size()) {
    const ssize_t n = pread(fd_.get(), data.data() + got, data.size() - got, offset_ + got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path_, " at ", offset_ + got));
    if (n == 0)
      return Corrupt(path_, offset_ + got, absl::StrCat(file_.bytes(), " bytes"), "the end of the file");
    got += n;
  }
  chunk.set_crc32c(Crc32c(data.data(), data.size()));
  crc_ = Crc32c(data.data(), data.size(), crc_);
  offset_ += static_cast<int64_t>(data.size());
  if (start_ == 0 && offset_ == file_.bytes() && crc_ != file_.crc32c()) {
    return Corrupt(path_, 0, absl::StrCat("crc32c ", absl::Hex(file_.crc32c(), absl::kZeroPad8)),
                   absl::StrCat("crc32c ", absl::Hex(crc_, absl::kZeroPad8)));
  }
  return chunk;
}

}  // namespace strata::server
