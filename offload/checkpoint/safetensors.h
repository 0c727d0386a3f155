// The safetensors file format: named tensors, row-major, little-endian, behind a JSON header.
// Byte format: FORMAT.md beside this file. Reading trusts nothing: header size, JSON, types, shapes and
// offsets are checked before anything is allocated for them.
#ifndef OFFLOAD_CHECKPOINT_SAFETENSORS_H_
#define OFFLOAD_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/fd.h"
#include "offload/checkpoint/file_ops.h"

namespace strata {

enum class StoredType { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool };

int64_t StoredTypeBytes(StoredType dtype);
// "F32", "BF16", ... as the format spells them.
absl::string_view StoredTypeName(StoredType dtype);
absl::StatusOr<StoredType> ParseStoredType(absl::string_view name);

// "[2, 3]"; "[]" is a scalar.
std::string FormatShape(std::span<const int64_t> shape);

// Product of the dimensions; kInvalidArgument for a negative dimension, more than 16 of them or 2^60
// elements.
absl::StatusOr<int64_t> ShapeElements(std::span<const int64_t> shape);

struct SafetensorsTensor {
  std::string name;
  StoredType dtype = StoredType::kF32;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int64_t begin = 0;  // First byte, relative to the end of the header.
  int64_t end = 0;    // One past the last byte.
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;       // In the order of their bytes.
  std::map<std::string, std::string> metadata;  // The "__metadata__" object.
};

// The reference implementation allows 100 MB, which as parsed JSON would be gigabytes; 100,000 tensors need
// 12 MB.
inline constexpr int64_t kSafetensorsHeaderLimitBytes = 32 << 20;

// `text` is the JSON header (trailing spaces allowed) of a file with `data_bytes` behind it. kDataLoss,
// naming the tensor, unless tensors cover the data exactly: no overlap, hole, overrun, duplicate name,
// unknown type, or a byte count that is not the shape's.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view text, int64_t data_bytes);

// An open file. Const members are thread-safe (pread).
class SafetensorsReader {
 public:
  static absl::StatusOr<SafetensorsReader> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsTensor>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // Offset in the file of data byte 0.
  int64_t data_offset() const { return data_offset_; }
  int64_t file_bytes() const { return file_bytes_; }

  // nullptr if there is none. Valid as long as this reader is neither moved nor destroyed.
  const SafetensorsTensor* Find(absl::string_view name) const;

  // Elements [element, element + out.size()) converted to float: F64 (rounded), F32, F16, BF16. Other types
  // and ranges outside the tensor are kInvalidArgument; a file that got shorter is kDataLoss.
  absl::Status ReadFloats(const SafetensorsTensor& tensor, int64_t element, std::span<float> out) const;

  // Bytes [offset, offset + out.size()) of the tensor as they are in the file.
  absl::Status ReadBytes(const SafetensorsTensor& tensor, int64_t offset, std::span<char> out) const;

 private:
  std::string path_;
  Fd fd_;
  int64_t file_bytes_ = 0;
  int64_t data_offset_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Converts `count` elements of `dtype` at `bytes` (any alignment) to float; kInvalidArgument for integers.
absl::Status ConvertToFloats(StoredType dtype, const char* bytes, std::span<float> out);

// A model on disk: one "model.safetensors", or the shards that "model.safetensors.index.json" names.
class SafetensorsModel {
 public:
  struct Location {
    const SafetensorsReader* reader;
    const SafetensorsTensor* tensor;
  };

  // Every shard is opened and its header checked; the index must agree with the shards.
  static absl::StatusOr<SafetensorsModel> Open(const std::string& folder);

  // nullptr members if there is none. Valid as long as this object lives (moving it is fine).
  Location Find(absl::string_view name) const;
  std::vector<std::string> Names() const;  // Sorted.

 private:
  std::vector<std::unique_ptr<SafetensorsReader>> shards_;
  std::map<std::string, Location, std::less<>> index_;
};

struct SafetensorsDeclaration {
  std::string name;
  StoredType dtype = StoredType::kF32;
  std::vector<int64_t> shape;
};

// Writes a new file front to back in bounded memory (one buffer of 1 MiB): the header at once, since all
// shapes are declared, then the tensors' elements in declared order. Not thread-safe. After an error every
// call returns that error. The destructor closes without finishing: a file without Finish() is not complete.
class SafetensorsWriter {
 public:
  struct Finished {
    int64_t bytes = 0;
    uint32_t crc32c = 0;                 // Of the whole file.
    std::vector<uint32_t> block_crc32c;  // Of each `block_bytes` of the file; the last block may be short.
  };

  // kInvalidArgument for duplicate or empty names and bad shapes; kAlreadyExists if the file is there.
  // `ops` must outlive the writer. `block_bytes` > 0.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      FileOps& ops, const std::string& path, const std::vector<SafetensorsDeclaration>& tensors,
      const std::map<std::string, std::string>& metadata, int64_t block_bytes);

  // The next bytes: `tensor` and `element` must be where the previous call ended (a call may end anywhere
  // inside a tensor; a finished tensor is followed by the next one, empty tensors are skipped), else
  // kInvalidArgument.
  absl::Status Append(size_t tensor, int64_t element, absl::string_view bytes);

  // Flushes, fsyncs and closes. kFailedPrecondition if elements are missing.
  absl::StatusOr<Finished> Finish();

  const std::string& path() const { return path_; }

 private:
  SafetensorsWriter(FileOps& ops, std::string path, int64_t block_bytes)
      : ops_(ops), path_(std::move(path)), block_bytes_(block_bytes) {}

  absl::Status Put(absl::string_view bytes);
  absl::Status Flush(absl::string_view bytes);
  void SkipFinishedTensors();

  FileOps& ops_;
  std::string path_;
  int64_t block_bytes_;
  Fd fd_;
  std::vector<SafetensorsTensor> tensors_;
  size_t tensor_ = 0;        // The tensor that the next byte belongs to ...
  int64_t tensor_byte_ = 0;  // ... and its offset inside it.
  std::string buffer_;
  int64_t block_fill_ = 0;
  uint32_t block_crc_ = 0;
  Finished finished_;
  absl::Status status_;
};

}  // namespace strata

#endif  // OFFLOAD_CHECKPOINT_SAFETENSORS_H_
