// The manifest of a checkpoint: what the checkpoint is, which files it has and which elements lie where.
// Byte format: FORMAT.md. All that the coordinator needs to know of a checkpoint is in here.
#ifndef OFFLOAD_CHECKPOINT_MANIFEST_H_
#define OFFLOAD_CHECKPOINT_MANIFEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checked.h"
#include "offload/checkpoint/safetensors.h"
#include "offload/model/moments.h"

namespace strata {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr int64_t kManifestLimitBytes = 64 << 20;
inline constexpr int64_t kCheckpointBlockBytes = 4 << 20;

// What is stored per parameter: fp32 master weight and AdamW's moments; where those are in eight bits also
// their scales; in mode delayed also the gradient that the next step will apply
// (TrainingState::pending_scale).
enum class StateClass {
  kMaster = 0,
  kFirstMoment = 1,
  kSecondMoment = 2,
  kPendingGradient = 3,
  kFirstMomentScale = 4,
  kSecondMomentScale = 5,
};
// Those of every checkpoint.
inline constexpr std::array kStateClasses = {StateClass::kMaster, StateClass::kFirstMoment,
                                             StateClass::kSecondMoment};
inline constexpr size_t kStateClassLimit = 6;

// "master", "m", "v", "pending", "m_scale", "v_scale".
absl::string_view StateClassName(StateClass state);

// The classes of an optimizer record, in the order in which they lie there (offload/model/moments.h).
std::span<const StateClass> RecordClasses(Moments moments);

// What a class is made of: items of one type, each of which stands for so many neighbouring elements of a
// tensor (the last for fewer, where they do not divide it).
struct StateItem {
  StoredType type = StoredType::kF32;
  int64_t elements = 1;

  int64_t bytes() const { return StoredTypeBytes(type); }
  // Of a tensor of so many elements.
  int64_t Count(int64_t tensor_elements) const { return CeilDiv(tensor_elements, elements); }
};
StateItem StateItemOf(StateClass state, Moments moments);

// The small state that, with the tensors, makes a resumed run continue with the same bits.
struct TrainingState {
  int64_t optimizer_step = 0;  // Updates applied; differs from the step where steps were skipped.
  int64_t data_cursor = 0;     // Sequences consumed since the start: the next sample's index.
  uint64_t seed = 0;           // Random numbers are counter-based, so the seed is their whole state.
  double loss_scale = 1.0;
  int64_t loss_scale_good_steps = 0;  // Steps since the scale last changed.
  int64_t skipped_steps = 0;
  // There is a pending gradient, of every tensor, and this is the factor it is to be multiplied by
  // (clipping).
  std::optional<float> pending_scale;
  Moments moments = Moments::kF32;
  int64_t tokens = 0;
  // A JSON object that the trainer owns: schedule, data fingerprint, precision, last losses, ...
  std::string extra_json = "{}";
};

// The classes of a checkpoint with this state, in the order of its files.
std::vector<StateClass> StateClassesOf(const TrainingState& state);

struct ManifestFile {
  std::string name;  // In the checkpoint's folder; [A-Za-z0-9._-]+, no leading dot.
  int64_t bytes = 0;
  uint32_t crc32c = 0;
  std::vector<uint32_t> block_crc32c;  // One per block_bytes, the last block may be short.
};

// Elements [begin, end) of a tensor lie, under its name, in `file`: as a tensor of `shape` if that is all of
// it, else as a vector. Of scales (StateItem::elements > 1) shape and elements are those of the scales.
struct ManifestTensor {
  StateClass state = StateClass::kMaster;
  std::string name;
  StoredType dtype = StoredType::kF32;
  std::vector<int64_t> shape;  // Of the whole tensor.
  int64_t elements = 0;        // Product of `shape`.
  size_t file = 0;             // Index into `files`.
  int64_t begin = 0;
  int64_t end = 0;
};

struct Manifest {
  std::string job_uid;
  int64_t attempt = 0;
  int64_t step = 0;        // Optimizer steps completed.
  std::string model_json;  // A JSON object: the model's config (see export.h).
  TrainingState state;
  int64_t block_bytes = kCheckpointBlockBytes;
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;  // In the order of the parameters, class by class.
};

// Deterministic: equal manifests give equal bytes. kInvalidArgument if `manifest` is one that ParseManifest
// would refuse.
absl::StatusOr<std::string> SerializeManifest(const Manifest& manifest);

// kDataLoss, naming the field, unless the manifest is complete and consistent: known version, plain file
// names, as many block checksums as the size needs, unique names, and for every class and tensor ranges that
// cover it exactly once with one type and shape. Model_json and extra_json come back as compact JSON.
absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes);

// SHA-256 in lower-case hex. A checkpoint's digest is that of its manifest's bytes.
std::string Sha256Hex(absl::string_view bytes);

}  // namespace strata

#endif  // OFFLOAD_CHECKPOINT_MANIFEST_H_
