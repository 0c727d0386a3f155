// CheckpointReader: the bytes of one file of a committed checkpoint, in checked pieces.
#ifndef SERVER_SERVICE_CHECKPOINT_READER_H_
#define SERVER_SERVICE_CHECKPOINT_READER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/fd.h"
#include "proto/strata/v1/checkpoints.pb.h"

namespace strata::server {

class CheckpointReader {
 public:
  // `path` must be in the checkpoint's file list. Symbolic links are followed nowhere below the checkpoint's
  // folder. CHECKPOINT_CORRUPT when the file is not there or has another size than was committed.
  static absl::StatusOr<CheckpointReader> Open(const v1::Checkpoint& checkpoint, const std::string& path,
                                               int64_t offset);

  // The next chunk, at most 1 MiB; empty data at the end of the file. Whoever reads from offset 0 to the end
  // has also had the whole file compared with the committed checksum: a difference is CHECKPOINT_CORRUPT in
  // place of the last chunk.
  absl::StatusOr<v1::FileChunk> Next();

 private:
  CheckpointReader(Fd fd, std::string path, const v1::CheckpointFile& file, int64_t offset)
      : fd_(std::move(fd)), path_(std::move(path)), file_(file), start_(offset), offset_(offset) {}

  Fd fd_;
  std::string path_;
  v1::CheckpointFile file_;
  int64_t start_;
  int64_t offset_;
  uint32_t crc_ = 0;
};

}  // namespace strata::server

#endif  // SERVER_SERVICE_CHECKPOINT_READER_H_
