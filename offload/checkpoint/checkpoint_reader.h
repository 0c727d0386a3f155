// Finds, verifies and reads checkpoints. No byte reaches the caller unchecked: structure when a checkpoint is
// opened, and the checksum of every block on every read of it.
#ifndef OFFLOAD_CHECKPOINT_CHECKPOINT_READER_H_
#define OFFLOAD_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/checkpoint/file_ops.h"
#include "offload/checkpoint/manifest.h"
#include "offload/checkpoint/safetensors.h"

namespace strata {

// One open checkpoint. Not thread-safe (it caches one block per file); open one per thread.
class CheckpointReader {
 public:
  // `path` is a step-* folder. Checks the manifest, every file's size, header and the header's checksum, and
  // that headers and manifest agree. `expected_digest`, if not empty, must be the manifest's. Errors:
  // kNotFound if there is no such checkpoint, kDataLoss (with path and offset) for wrong bytes.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& path,
                                                                absl::string_view expected_digest = "");

  ~CheckpointReader();

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& digest() const { return digest_; }

  // The tensors of one class in parameter order, ranges of one tensor joined: name and shape.
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;
    int64_t elements = 0;
  };
  std::vector<Tensor> Tensors(StateClass state) const;

  // Elements [element, element + out.size()) of a tensor, as float. kNotFound for an unknown name,
  // kInvalidArgument for a range outside the tensor, kDataLoss for bytes that fail their checksum. Reads in
  // rising order touch each block once.
  absl::Status ReadRange(StateClass state, absl::string_view tensor, int64_t element, std::span<float> out);

  // Whole items of a tensor of one class, of StateItemOf's type, from number `item` on. Errors as of
  // ReadRange; kInvalidArgument where codes are stored as another type.
  absl::Status ReadItems(StateClass state, absl::string_view tensor, int64_t item, std::span<std::byte> out);

  // Reads every byte of every file against its checksums.
  absl::Status Verify();

 private:
  class BlockFile;
  struct FileHeader {
    int64_t data_offset = 0;
    SafetensorsHeader header;
  };
  struct Segment {
    int64_t begin, end;  // Elements of the tensor.
    StoredType dtype;
    size_t file;
    int64_t offset;  // In the file, of element `begin`.
  };
  struct Entry {
    std::vector<int64_t> shape;
    int64_t elements = 0;
    size_t order = 0;               // Of the first range in the manifest.
    std::vector<Segment> segments;  // By rising `begin`, covering [0, elements).
  };

  CheckpointReader();
  absl::Status OpenFiles();
  absl::Status IndexTensors(const std::vector<FileHeader>& headers);
  // Where `count` elements of a tensor from `element` on are: calls `read(segment, offset in its file, done,
  // left)` until all are done; it returns how many it has read.
  template <typename Read>
  absl::Status ForEachPiece(StateClass state, absl::string_view tensor, int64_t element, int64_t count,
                            Read read);

  std::string path_;
  std::string digest_;
  Manifest manifest_;
  std::vector<std::unique_ptr<BlockFile>> files_;
  std::map<std::pair<StateClass, std::string>, Entry> entries_;
  std::string scratch_;
};

// Opens `path` and reads all of it.
absl::Status VerifyCheckpoint(const std::string& path, absl::string_view expected_digest = "");

struct CheckpointEntry {
  int64_t step = 0;
  std::string path;
};

// The step-* folders of `dir`, newest first; nothing is opened. A missing folder has none.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& dir);

struct CheckpointCandidate {
  std::string path;
  std::string digest;  // Empty: any.
};

struct OpenedCheckpoint {
  std::unique_ptr<CheckpointReader> reader;
  std::vector<std::string>
      rejected;  // One sentence for each candidate that was tried before and is not valid.
};

// The first candidate that is valid, every byte of it read. kNotFound if there is none, with all reasons. An
// error that says nothing about the bytes (no permission, too many open files) is returned, not taken for
// damage.
absl::StatusOr<OpenedCheckpoint> OpenNewestValid(const std::vector<CheckpointCandidate>& candidates);

// Removes the checkpoints of `steps` that are in `dir`. One that is being removed is first renamed to tmp-*,
// so it is never visible in part.
absl::Status RemoveCheckpoints(FileOps& ops, const std::string& dir, const std::set<int64_t>& steps);

}  // namespace strata

#endif  // OFFLOAD_CHECKPOINT_CHECKPOINT_READER_H_
