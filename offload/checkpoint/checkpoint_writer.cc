// The sequence that makes a checkpoint exist. Its order must not change: after a crash between any two steps,
// what carries the name step-* is complete.
//
//   1. MakeDirectory <dir> and <dir>/tmp-<step>.<attempt>; remove what an earlier try left under that name.
//   2. Create master.safetensors, m.safetensors, v.safetensors, ... in it; stream headers and elements.
//   3. fsync and close each of them. A failed fsync ends the attempt: it is never retried.
//   4. Write manifest.json (sizes and checksums of step 2), fsync, close.
//   5. fsync tmp-<step>.<attempt>: the four names are durable.
//   6. Rename it to step-<step>, or, if that exists, exchange the two names: at no moment is there no
//   step-<step>.
//   7. fsync <dir>: the new name is durable. Only now is the checkpoint reported.
//   8. Remove the old checkpoint that step 6 left under the temporary name.
#include "offload/checkpoint/checkpoint_writer.h"

#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/bytes.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr int64_t kStepLimit = 1'000'000'000'000;
constexpr char kTemporaryPrefix[] = "tmp-";
constexpr uint64_t kHeaderSpace = 256;     // of a tensor in a file's header and in the manifest
constexpr uint64_t kManifestSpace = 4096;  // beside its tensors

std::string DataFileName(StateClass state) { return absl::StrCat(StateClassName(state), ".safetensors"); }

// The attempt that wrote the checkpoint at `path`; nullopt if there is none or it cannot be read, which makes
// it worth no protection.
std::optional<int64_t> AttemptOf(const std::string& path) {
  const absl::StatusOr<std::string> bytes =
      ReadFile(absl::StrCat(path, "/", kManifestName), kManifestLimitBytes);
  if (!bytes.ok()) return std::nullopt;
  const absl::StatusOr<Manifest> manifest = ParseManifest(*bytes);
  if (!manifest.ok()) return std::nullopt;
  return manifest->attempt;
}

absl::StatusOr<bool> Exists(const std::string& path) {
  std::error_code error;
  const bool exists = std::filesystem::exists(std::filesystem::symlink_status(path, error));
  if (error && error.value() != ENOENT) return ErrnoStatus(error.value(), path);
  return exists;
}

// A later attempt has written this step already, so ours lost its lease and must not overwrite it.
absl::Status CheckNotStale(const std::string& target, int64_t attempt) {
  const std::optional<int64_t> other = AttemptOf(target);
  if (other.has_value() && *other > attempt) {
    return absl::FailedPreconditionError(absl::StrCat(target, " was written by attempt ", *other,
                                                      ", this is attempt ", attempt,
                                                      ", which is stale and must stop"));
  }
  return absl::OkStatus();
}

// What will not fit is not begun: it would take from others the space that it then cannot use. Who fills the
// disk meanwhile is met by the write that fails.
absl::Status CheckSpace(const std::string& folder, const TrainingState& state,
                        const std::vector<CheckpointTensor>& tensors) {
  uint64_t need = kManifestSpace;
  for (const CheckpointTensor& tensor : tensors) {
    const absl::StatusOr<int64_t> elements = ShapeElements(tensor.shape);
    if (!elements.ok()) continue;  // which the files refuse
    for (const StateClass one : StateClassesOf(state)) {
      const StateItem item = StateItemOf(one, state.moments);
      need += static_cast<uint64_t>(item.Count(*elements) * item.bytes()) + kHeaderSpace;
    }
  }
  struct statvfs info;
  if (statvfs(folder.c_str(), &info) != 0) return ErrnoStatus(errno, folder);
  const uint64_t have = uint64_t{info.f_bavail} * info.f_frsize;
  if (need <= have) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      folder, ": a checkpoint needs ", need, " bytes (", FormatBytes(static_cast<int64_t>(need)),
      "), there are ", have, " bytes (", FormatBytes(static_cast<int64_t>(have)),
      "): free space, lower checkpoint.keep_last, or give the worker a --checkpoint-root with more"));
}

}  // namespace

std::string CheckpointFolderName(int64_t step) { return absl::StrFormat("step-%012d", step); }

CheckpointWriter::CheckpointWriter(FileOps& ops, std::string dir, CheckpointDescription description,
                                   std::vector<CheckpointTensor> tensors)
    : ops_(ops),
      dir_(std::move(dir)),
      temporary_(absl::StrCat(dir_, "/", kTemporaryPrefix, description.step, ".", description.attempt)),
      description_(std::move(description)),
      tensors_(std::move(tensors)) {}

CheckpointWriter::~CheckpointWriter() {
  for (auto& file : files_) file.reset();
  // Nothing depends on this: what stays is swept at the next start.
  if (temporary_exists_) ops_.RemoveTree(temporary_).IgnoreError();
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Create(
    FileOps& ops, const std::string& dir, CheckpointDescription description,
    std::vector<CheckpointTensor> tensors) {
  if (description.step < 0 || description.step >= kStepLimit || description.attempt < 0) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint of step ", description.step, ", attempt ",
                                                   description.attempt, ": outside the range"));
  }
  if (tensors.empty()) return absl::InvalidArgumentError("a checkpoint needs at least one tensor");
  STRATA_RETURN_IF_ERROR(
      CheckNotStale(absl::StrCat(dir, "/", CheckpointFolderName(description.step)), description.attempt));
  auto writer = std::unique_ptr<CheckpointWriter>(
      new CheckpointWriter(ops, dir, std::move(description), std::move(tensors)));
  // Step 1.
  STRATA_RETURN_IF_ERROR(ops.RemoveTree(writer->temporary_));
  writer->temporary_exists_ = true;
  STRATA_RETURN_IF_ERROR(ops.MakeDirectory(writer->temporary_));
  STRATA_RETURN_IF_ERROR(CheckSpace(writer->temporary_, writer->description_.state, writer->tensors_));
  // Step 2.
  for (const StateClass state : writer->classes()) {
    std::vector<SafetensorsDeclaration> declarations;
    for (const CheckpointTensor& tensor : writer->tensors_) {
      STRATA_ASSIGN_OR_RETURN(std::vector<int64_t> shape, writer->StoredShape(state, tensor));
      declarations.push_back({tensor.name, writer->ItemOf(state).type, std::move(shape)});
    }
    STRATA_ASSIGN_OR_RETURN(
        writer->files_[static_cast<size_t>(state)],
        SafetensorsWriter::Create(ops, absl::StrCat(writer->temporary_, "/", DataFileName(state)),
                                  declarations, {{"format", "pt"}}, kCheckpointBlockBytes));
  }
  return writer;
}

absl::StatusOr<std::vector<int64_t>> CheckpointWriter::StoredShape(StateClass state,
                                                                   const CheckpointTensor& tensor) const {
  if (ItemOf(state).elements == 1) return tensor.shape;
  STRATA_ASSIGN_OR_RETURN(const int64_t elements, ShapeElements(tensor.shape), tensor.name);
  return std::vector<int64_t>{ItemOf(state).Count(elements)};
}

absl::Status CheckpointWriter::Append(StateClass state, size_t tensor, int64_t item,
                                      std::span<const std::byte> items) {
  STRATA_RETURN_IF_ERROR(status_);
  return status_ = files_[static_cast<size_t>(state)]->Append(
             tensor, item, {reinterpret_cast<const char*>(items.data()), items.size()});
}

absl::StatusOr<WrittenCheckpoint> CheckpointWriter::Commit() {
  STRATA_RETURN_IF_ERROR(status_);
  absl::StatusOr<WrittenCheckpoint> written = CommitSteps();
  status_ = written.ok() ? absl::FailedPreconditionError(absl::StrCat(written->path, " was committed before"))
                         : written.status();
  return written;
}

absl::StatusOr<WrittenCheckpoint> CheckpointWriter::CommitSteps() {
  WrittenCheckpoint written;
  Manifest& manifest = written.manifest;
  manifest.job_uid = description_.job_uid;
  manifest.attempt = description_.attempt;
  manifest.step = description_.step;
  manifest.model_json = description_.model_json;
  manifest.state = description_.state;
  // Step 3.
  for (const StateClass state : classes()) {
    STRATA_ASSIGN_OR_RETURN(SafetensorsWriter::Finished finished,
                            files_[static_cast<size_t>(state)]->Finish());
    written.bytes += finished.bytes;
    const size_t file = manifest.files.size();
    manifest.files.push_back(
        {DataFileName(state), finished.bytes, finished.crc32c, std::move(finished.block_crc32c)});
    for (const CheckpointTensor& tensor : tensors_) {
      STRATA_ASSIGN_OR_RETURN(std::vector<int64_t> shape, StoredShape(state, tensor));
      STRATA_ASSIGN_OR_RETURN(const int64_t items, ShapeElements(shape), tensor.name);
      manifest.tensors.push_back(
          {state, tensor.name, ItemOf(state).type, std::move(shape), items, file, 0, items});
    }
  }
  // Step 4.
  STRATA_ASSIGN_OR_RETURN(const std::string bytes, SerializeManifest(manifest), "manifest of ", temporary_);
  STRATA_RETURN_IF_ERROR(WriteManifest(bytes));
  written.bytes += static_cast<int64_t>(bytes.size());
  written.digest = Sha256Hex(bytes);
  // Step 5.
  STRATA_RETURN_IF_ERROR(ops_.SyncDirectory(temporary_));
  // Steps 6 to 8.
  written.path = absl::StrCat(dir_, "/", CheckpointFolderName(description_.step));
  STRATA_RETURN_IF_ERROR(Publish(written.path));
  return written;
}

absl::Status CheckpointWriter::WriteManifest(const std::string& bytes) {
  const std::string path = absl::StrCat(temporary_, "/", kManifestName);
  STRATA_ASSIGN_OR_RETURN(Fd fd, ops_.CreateFile(path));
  STRATA_RETURN_IF_ERROR(ops_.Write(fd, bytes, path));
  STRATA_RETURN_IF_ERROR(ops_.Sync(fd, path));
  return ops_.Close(std::move(fd), path);
}

absl::Status CheckpointWriter::Publish(const std::string& target) {
  STRATA_ASSIGN_OR_RETURN(const bool exists, Exists(target));
  if (!exists) {
    STRATA_RETURN_IF_ERROR(ops_.Rename(temporary_, target));
    temporary_exists_ = false;
    return ops_.SyncDirectory(dir_);
  }
  STRATA_RETURN_IF_ERROR(CheckNotStale(target, description_.attempt));
  absl::Status exchanged = ops_.Exchange(temporary_, target);
  if (absl::IsUnimplemented(exchanged)) {
    // For file systems without exchange: a crash between the two renames leaves this step missing and the
    // checkpoints of earlier steps in place. The aside name is a temporary one, so it is swept.
    const std::string aside = absl::StrCat(temporary_, ".replaced");
    STRATA_RETURN_IF_ERROR(ops_.RemoveTree(aside));
    STRATA_RETURN_IF_ERROR(ops_.Rename(target, aside));
    const absl::Status renamed = ops_.Rename(temporary_, target);
    if (!renamed.ok()) {
      STRATA_RETURN_IF_ERROR(ops_.Rename(aside, target),
                             "putting back the old checkpoint after: ", renamed.message());
      return renamed;
    }
    temporary_exists_ = false;
    STRATA_RETURN_IF_ERROR(ops_.SyncDirectory(dir_));
    ops_.RemoveTree(aside).IgnoreError();
    return absl::OkStatus();
  }
  STRATA_RETURN_IF_ERROR(exchanged);
  // The temporary name now holds the old checkpoint. Until the exchange is durable it may become the valid
  // one again after a power loss, so it is only removed after the sync; the sweep takes it if that fails.
  temporary_exists_ = false;
  STRATA_RETURN_IF_ERROR(ops_.SyncDirectory(dir_));
  ops_.RemoveTree(temporary_).IgnoreError();
  return absl::OkStatus();
}

absl::Status SweepTemporary(FileOps& ops, const std::string& dir, int64_t attempt) {
  std::error_code error;
  std::filesystem::directory_iterator it(dir, error), end;
  if (error.value() == ENOENT) return absl::OkStatus();
  std::vector<std::string> doomed;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.rfind(kTemporaryPrefix, 0) != 0) continue;
    // tmp-<step>.<attempt>[.replaced]; any other tmp-* is nobody's.
    const std::vector<std::string> parts = absl::StrSplit(name, '.');
    int64_t owner = 0;
    if (parts.size() >= 2 && absl::SimpleAtoi(parts[1], &owner) && owner > attempt) continue;
    doomed.push_back(it->path().string());
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("listing ", dir));
  for (const std::string& path : doomed) STRATA_RETURN_IF_ERROR(ops.RemoveTree(path));
  return absl::OkStatus();
}

}  // namespace strata
