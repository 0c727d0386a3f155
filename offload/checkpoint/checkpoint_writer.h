// Writes one checkpoint: streaming, in bounded memory, atomic and durable. The sequence of file operations is
// numbered at the top of checkpoint_writer.cc.
#ifndef OFFLOAD_CHECKPOINT_CHECKPOINT_WRITER_H_
#define OFFLOAD_CHECKPOINT_CHECKPOINT_WRITER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "offload/checkpoint/file_ops.h"
#include "offload/checkpoint/manifest.h"
#include "offload/checkpoint/safetensors.h"

namespace strata {

struct CheckpointTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// What the caller knows before it streams.
struct CheckpointDescription {
  std::string job_uid;
  int64_t attempt = 0;  // Fencing token of the assignment, >= 0.
  int64_t step = 0;     // Optimizer steps completed, 0 .. 10^12 - 1.
  std::string model_json = "{}";
  TrainingState state;
};

struct WrittenCheckpoint {
  std::string path;    // <dir>/step-<step>
  std::string digest;  // What the coordinator commits.
  int64_t bytes = 0;   // Data files and manifest.
  Manifest manifest;
};

// "step-000000000100".
std::string CheckpointFolderName(int64_t step);

// One thread at a time. Peak memory: one 1 MiB buffer per class plus the manifest. After an error every call
// returns that error; the temporary folder is then removed by the destructor (and, if even that fails or the
// process dies, by SweepTemporary at the next start). No earlier checkpoint is touched before the final
// rename.
class CheckpointWriter {
 public:
  // `dir` is the job's checkpoint folder, made if missing. All classes of the state hold every tensor in the
  // given order, as StateItemOf says. kInvalidArgument for bad names or shapes; kFailedPrecondition if
  // <dir>/step-<step> was written by a later attempt. `ops` must outlive the writer.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Create(FileOps& ops, const std::string& dir,
                                                                  CheckpointDescription description,
                                                                  std::vector<CheckpointTensor> tensors);
  ~CheckpointWriter();

  // Whole items of a tensor of one class, from number `item` on. Within a class they come in declared order
  // without gaps, in pieces of any size; the classes advance independently, in any interleaving.
  absl::Status Append(StateClass state, size_t tensor, int64_t item, std::span<const std::byte> items);
  absl::Status Append(StateClass state, size_t tensor, int64_t element, std::span<const float> values) {
    return Append(state, tensor, element, std::as_bytes(values));
  }

  Moments moments() const { return description_.state.moments; }
  // The classes that are to be appended.
  std::vector<StateClass> classes() const { return StateClassesOf(description_.state); }

  // Makes the checkpoint durable and visible as <dir>/step-<step>, replacing one of an earlier attempt. OK
  // means that it survives power loss. On an error it may or may not be visible, but never in part.
  absl::StatusOr<WrittenCheckpoint> Commit();

 private:
  CheckpointWriter(FileOps& ops, std::string dir, CheckpointDescription description,
                   std::vector<CheckpointTensor> tensors);

  StateItem ItemOf(StateClass state) const { return StateItemOf(state, description_.state.moments); }
  absl::StatusOr<std::vector<int64_t>> StoredShape(StateClass state, const CheckpointTensor& tensor) const;
  absl::StatusOr<WrittenCheckpoint> CommitSteps();
  absl::Status WriteManifest(const std::string& bytes);
  absl::Status Publish(const std::string& target);

  FileOps& ops_;
  std::string dir_;
  std::string temporary_;
  CheckpointDescription description_;
  std::vector<CheckpointTensor> tensors_;
  std::array<std::unique_ptr<SafetensorsWriter>, kStateClassLimit> files_;  // null: no such class
  absl::Status status_;
  bool temporary_exists_ = false;
};

// Removes what interrupted writers of attempts <= `attempt` left in `dir` (tmp-*). A missing folder is fine.
// Called by the only writer of `dir`, before its first checkpoint.
absl::Status SweepTemporary(FileOps& ops, const std::string& dir,
                            int64_t attempt = std::numeric_limits<int64_t>::max());

}  // namespace strata

#endif  // OFFLOAD_CHECKPOINT_CHECKPOINT_WRITER_H_
