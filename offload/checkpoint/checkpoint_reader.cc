#include "offload/checkpoint/checkpoint_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/checked.h"
#include "common/crc32c.h"
#include "common/fd.h"
#include "common/status.h"
#include "offload/checkpoint/checkpoint_writer.h"

namespace strata {
namespace {

constexpr char kStepPrefix[] = "step-";
constexpr int64_t kPrefixBytes = 8;            // Of a safetensors file: the length of its header.
constexpr size_t kConvertElements = 64 << 10;  // Converted through one scratch buffer at a time.

}  // namespace

// A file whose every block is checked against the manifest whenever it is read.
class CheckpointReader::BlockFile {
 public:
  static absl::StatusOr<std::unique_ptr<BlockFile>> Open(const std::string& path, const ManifestFile& file,
                                                         int64_t block_bytes) {
    STRATA_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_RDONLY | O_NONBLOCK));
    struct stat info;
    if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
    if (!S_ISREG(info.st_mode)) return absl::DataLossError(absl::StrCat(path, " is not a regular file"));
    if (info.st_size != file.bytes) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", info.st_size, " bytes, the manifest says ", file.bytes));
    }
    return std::unique_ptr<BlockFile>(new BlockFile(std::move(fd), path, file, block_bytes));
  }

  const std::string& path() const { return path_; }
  int64_t bytes() const { return file_.bytes; }

  // Bytes [offset, offset + out.size()), which lie inside the file.
  absl::Status Read(int64_t offset, std::span<char> out) {
    while (!out.empty()) {
      const int64_t block = offset / block_bytes_;
      const int64_t begin = block * block_bytes_, length = BlockLength(block);
      const auto count = std::min(out.size(), static_cast<size_t>(begin + length - offset));
      if (static_cast<int64_t>(count) == length && block != cached_) {
        STRATA_RETURN_IF_ERROR(ReadBlock(block, out.first(count)));  // Whole: no detour over the cache.
      } else {
        STRATA_RETURN_IF_ERROR(Load(block));
        std::memcpy(out.data(), cache_.data() + (offset - begin), count);
      }
      offset += static_cast<int64_t>(count);
      out = out.subspan(count);
    }
    return absl::OkStatus();
  }

  absl::Status Verify() {
    uint32_t crc = 0;
    for (int64_t block = 0; block * block_bytes_ < file_.bytes; ++block) {
      cached_ = -1;  // What was read before proves nothing about the disk now.
      STRATA_RETURN_IF_ERROR(Load(block));
      crc = Crc32c(cache_.data(), static_cast<size_t>(BlockLength(block)), crc);
    }
    if (crc != file_.crc32c) {
      return absl::DataLossError(absl::StrFormat("%s: crc32c of the file is %08x, the manifest says %08x",
                                                 path_, crc, file_.crc32c));
    }
    return absl::OkStatus();
  }

 private:
  BlockFile(Fd fd, const std::string& path, const ManifestFile& file, int64_t block_bytes)
      : fd_(std::move(fd)), path_(path), file_(file), block_bytes_(block_bytes) {}

  int64_t BlockLength(int64_t block) const {
    return std::min(block_bytes_, file_.bytes - block * block_bytes_);
  }

  absl::Status Load(int64_t block) {
    if (block == cached_) return absl::OkStatus();
    cached_ = -1;
    cache_.resize(static_cast<size_t>(std::min(block_bytes_, file_.bytes)));
    STRATA_RETURN_IF_ERROR(ReadBlock(block, {cache_.data(), static_cast<size_t>(BlockLength(block))}));
    cached_ = block;
    return absl::OkStatus();
  }

  absl::Status ReadBlock(int64_t block, std::span<char> out) {
    const int64_t begin = block * block_bytes_;
    for (size_t done = 0; done < out.size();) {
      const int64_t at = begin + static_cast<int64_t>(done);
      const ssize_t n = pread(fd_.get(), out.data() + done, out.size() - done, at);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path_, " at offset ", at));
      if (n == 0)
        return absl::DataLossError(absl::StrCat(path_, " ends at offset ", at, " of ", file_.bytes));
      done += static_cast<size_t>(n);
    }
    const uint32_t crc = Crc32c(out.data(), out.size());
    const uint32_t expected = file_.block_crc32c[static_cast<size_t>(block)];
    if (crc != expected) {
      return absl::DataLossError(
          absl::StrFormat("%s: bytes [%d, %d) have crc32c %08x, the manifest says %08x", path_, begin,
                          begin + static_cast<int64_t>(out.size()), crc, expected));
    }
    return absl::OkStatus();
  }

  Fd fd_;
  std::string path_;
  const ManifestFile& file_;  // Of the reader's manifest, which outlives this.
  int64_t block_bytes_;
  std::vector<char> cache_;
  int64_t cached_ = -1;
};

CheckpointReader::CheckpointReader() = default;
CheckpointReader::~CheckpointReader() = default;

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(const std::string& path,
                                                                         absl::string_view expected_digest) {
  auto reader = std::unique_ptr<CheckpointReader>(new CheckpointReader);
  reader->path_ = path;
  const std::string manifest_path = absl::StrCat(path, "/", kManifestName);
  STRATA_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(manifest_path, kManifestLimitBytes));
  reader->digest_ = Sha256Hex(bytes);
  if (!expected_digest.empty() && expected_digest != reader->digest_) {
    return absl::DataLossError(absl::StrCat(manifest_path, " has the digest ", reader->digest_,
                                            ", committed was ", expected_digest));
  }
  STRATA_ASSIGN_OR_RETURN(reader->manifest_, ParseManifest(bytes), manifest_path);
  STRATA_RETURN_IF_ERROR(reader->OpenFiles());
  return reader;
}

absl::Status CheckpointReader::OpenFiles() {
  std::vector<FileHeader> headers;
  for (const ManifestFile& file : manifest_.files) {
    absl::StatusOr<std::unique_ptr<BlockFile>> opened =
        BlockFile::Open(absl::StrCat(path_, "/", file.name), file, manifest_.block_bytes);
    // A file that is missing is a damaged checkpoint, not an absent one.
    if (absl::IsNotFound(opened.status())) return absl::DataLossError(opened.status().message());
    STRATA_RETURN_IF_ERROR(opened.status());
    BlockFile& blocks = **opened;
    if (file.bytes < kPrefixBytes)
      return absl::DataLossError(absl::StrCat(blocks.path(), " is too short for safetensors"));
    uint64_t header_bytes = 0;
    STRATA_RETURN_IF_ERROR(blocks.Read(0, {reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes)}));
    const int64_t limit = std::min(kSafetensorsHeaderLimitBytes, file.bytes - kPrefixBytes);
    if (header_bytes > static_cast<uint64_t>(limit)) {
      return absl::DataLossError(absl::StrCat(blocks.path(), " claims a header of ", header_bytes, " bytes"));
    }
    std::string text(static_cast<size_t>(header_bytes), '\0');
    STRATA_RETURN_IF_ERROR(blocks.Read(kPrefixBytes, text));
    FileHeader header;
    header.data_offset = kPrefixBytes + static_cast<int64_t>(header_bytes);
    STRATA_ASSIGN_OR_RETURN(header.header, ParseSafetensorsHeader(text, file.bytes - header.data_offset),
                            "header of ", blocks.path());
    headers.push_back(std::move(header));
    files_.push_back(*std::move(opened));
  }
  return IndexTensors(headers);
}

absl::Status CheckpointReader::IndexTensors(const std::vector<FileHeader>& headers) {
  std::vector<std::map<std::string, const SafetensorsTensor*>> in_file(headers.size());
  for (size_t file = 0; file < headers.size(); ++file) {
    for (const SafetensorsTensor& tensor : headers[file].header.tensors) in_file[file][tensor.name] = &tensor;
  }
  for (size_t i = 0; i < manifest_.tensors.size(); ++i) {
    const ManifestTensor& range = manifest_.tensors[i];
    const auto it = in_file[range.file].find(range.name);
    const bool whole = range.begin == 0 && range.end == range.elements;
    const std::vector<int64_t> stored = whole ? range.shape : std::vector<int64_t>{range.end - range.begin};
    if (it == in_file[range.file].end() || it->second->dtype != range.dtype || it->second->shape != stored) {
      return absl::DataLossError(absl::StrCat(files_[range.file]->path(), " does not hold tensor ",
                                              range.name, " as ", StoredTypeName(range.dtype), " ",
                                              FormatShape(stored), ", as the manifest says"));
    }
    Entry& entry = entries_[{range.state, range.name}];
    if (entry.segments.empty()) {
      entry.shape = range.shape;
      entry.elements = range.elements;
      entry.order = i;
    }
    entry.segments.push_back({range.begin, range.end, range.dtype, range.file,
                              headers[range.file].data_offset + it->second->begin});
  }
  for (auto& [key, entry] : entries_) {
    std::sort(entry.segments.begin(), entry.segments.end(),
              [](const auto& a, const auto& b) { return a.begin < b.begin; });
  }
  return absl::OkStatus();
}

std::vector<CheckpointReader::Tensor> CheckpointReader::Tensors(StateClass state) const {
  std::vector<std::pair<size_t, Tensor>> ordered;
  for (const auto& [key, entry] : entries_) {
    if (key.first == state) ordered.push_back({entry.order, {key.second, entry.shape, entry.elements}});
  }
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Tensor> tensors;
  for (auto& [order, tensor] : ordered) tensors.push_back(std::move(tensor));
  return tensors;
}

template <typename Read>
absl::Status CheckpointReader::ForEachPiece(StateClass state, absl::string_view tensor, int64_t element,
                                            int64_t count, Read read) {
  const auto it = entries_.find({state, std::string(tensor)});
  if (it == entries_.end()) {
    return absl::NotFoundError(absl::StrCat(path_, " has no ", StateClassName(state), " of tensor ", tensor));
  }
  const Entry& entry = it->second;
  if (element < 0 || element > entry.elements || count > entry.elements - element) {
    return absl::InvalidArgumentError(absl::StrCat("elements [", element, ", ", element, " + ", count,
                                                   ") are outside tensor ", tensor, " of ", entry.elements,
                                                   " elements in ", path_));
  }
  auto segment = std::upper_bound(entry.segments.begin(), entry.segments.end(), element,
                                  [](int64_t value, const Segment& s) { return value < s.begin; }) -
                 1;
  for (int64_t done = 0; done < count;) {
    if (element + done == segment->end) ++segment;
    const int64_t at = element + done;
    const int64_t offset = segment->offset + (at - segment->begin) * StoredTypeBytes(segment->dtype);
    STRATA_ASSIGN_OR_RETURN(const int64_t pieces,
                            read(*segment, offset, done, std::min(count - done, segment->end - at)));
    done += pieces;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadRange(StateClass state, absl::string_view tensor, int64_t element,
                                         std::span<float> out) {
  return ForEachPiece(
      state, tensor, element, static_cast<int64_t>(out.size()),
      [&](const Segment& segment, int64_t offset, int64_t done, int64_t left) -> absl::StatusOr<int64_t> {
        const std::span<float> to = out.subspan(static_cast<size_t>(done));
        if (segment.dtype == StoredType::kF32) {
          STRATA_RETURN_IF_ERROR(files_[segment.file]->Read(
              offset, {reinterpret_cast<char*>(to.data()), static_cast<size_t>(left) * sizeof(float)}));
          return left;
        }
        const size_t count = std::min(static_cast<size_t>(left), kConvertElements);
        scratch_.resize(count * static_cast<size_t>(StoredTypeBytes(segment.dtype)));
        STRATA_RETURN_IF_ERROR(files_[segment.file]->Read(offset, scratch_));
        STRATA_RETURN_IF_ERROR(ConvertToFloats(segment.dtype, scratch_.data(), to.first(count)), "tensor ",
                               tensor);
        return static_cast<int64_t>(count);
      });
}

absl::Status CheckpointReader::ReadItems(StateClass state, absl::string_view tensor, int64_t item,
                                         std::span<std::byte> out) {
  const StateItem expected = StateItemOf(state, manifest_.state.moments);
  if (expected.type == StoredType::kF32) {
    return ReadRange(state, tensor, item, {reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)});
  }
  return ForEachPiece(
      state, tensor, item, static_cast<int64_t>(out.size()) / expected.bytes(),
      [&](const Segment& segment, int64_t offset, int64_t done, int64_t left) -> absl::StatusOr<int64_t> {
        if (segment.dtype != expected.type) {
          return absl::InvalidArgumentError(
              absl::StrCat(StateClassName(state), " of tensor ", tensor, " in ", path_, " is stored as ",
                           StoredTypeName(segment.dtype), ", not ", StoredTypeName(expected.type)));
        }
        const std::span<std::byte> to = out.subspan(static_cast<size_t>(done * expected.bytes()),
                                                    static_cast<size_t>(left * expected.bytes()));
        STRATA_RETURN_IF_ERROR(
            files_[segment.file]->Read(offset, {reinterpret_cast<char*>(to.data()), to.size()}));
        return left;
      });
}

absl::Status CheckpointReader::Verify() {
  for (const auto& file : files_) STRATA_RETURN_IF_ERROR(file->Verify());
  return absl::OkStatus();
}

absl::Status VerifyCheckpoint(const std::string& path, absl::string_view expected_digest) {
  STRATA_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(path, expected_digest));
  return reader->Verify();
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& dir) {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  std::filesystem::directory_iterator it(dir, error), end;
  if (error.value() == ENOENT) return entries;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    int64_t step = 0;
    if (name.rfind(kStepPrefix, 0) != 0 || !absl::SimpleAtoi(name.substr(sizeof(kStepPrefix) - 1), &step))
      continue;
    if (step < 0 || name != CheckpointFolderName(step)) continue;
    entries.push_back({step, it->path().string()});
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("listing ", dir));
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return entries;
}

absl::StatusOr<OpenedCheckpoint> OpenNewestValid(const std::vector<CheckpointCandidate>& candidates) {
  OpenedCheckpoint opened;
  for (const CheckpointCandidate& candidate : candidates) {
    absl::StatusOr<std::unique_ptr<CheckpointReader>> reader =
        CheckpointReader::Open(candidate.path, candidate.digest);
    const absl::Status status = reader.ok() ? (*reader)->Verify() : reader.status();
    if (status.ok()) {
      opened.reader = *std::move(reader);
      return opened;
    }
    // Wrong or absent bytes stay so; anything else (no permission, no descriptors) may pass, and going back
    // to an older checkpoint because of it would throw work away.
    if (!absl::IsDataLoss(status) && !absl::IsNotFound(status) && !absl::IsInvalidArgument(status))
      return status;
    opened.rejected.push_back(absl::StrCat(candidate.path, " is not usable: ", status.ToString()));
  }
  return absl::NotFoundError(absl::StrCat("no valid checkpoint among ", candidates.size(), ": ",
                                          absl::StrJoin(opened.rejected, "; ")));
}

absl::Status RemoveCheckpoints(FileOps& ops, const std::string& dir, const std::set<int64_t>& steps) {
  STRATA_ASSIGN_OR_RETURN(const std::vector<CheckpointEntry> entries, ListCheckpoints(dir));
  for (const CheckpointEntry& entry : entries) {
    if (!steps.contains(entry.step)) continue;
    const std::string doomed = absl::StrCat(dir, "/tmp-removed-", entry.step);
    STRATA_RETURN_IF_ERROR(ops.RemoveTree(doomed));
    STRATA_RETURN_IF_ERROR(ops.Rename(entry.path, doomed));
    STRATA_RETURN_IF_ERROR(ops.RemoveTree(doomed));
  }
  return absl::OkStatus();
}

}  // namespace strata
