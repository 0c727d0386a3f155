#include "offload/checkpoint/manifest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/check.h"
#include "common/checked.h"
#include "common/status.h"
#include "kernels/optimizer/code8.h"
#include "offload/checkpoint/strict_json.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr char kFormat[] = "strata-checkpoint";
constexpr int64_t kVersion = 1;
constexpr int64_t kMinBlockBytes = 4 << 10;
constexpr int64_t kMaxBlockBytes = 64 << 20;
constexpr size_t kNameLimit = 512;
constexpr int64_t kFileBytesLimit = int64_t{1} << 56;

bool IsPlainFileName(absl::string_view name) {
  if (name.empty() || name.size() > 255 || name[0] == '.') return false;
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' ||
           c == '_' || c == '-';
  });
}

absl::Status Bad(absl::string_view what) { return absl::DataLossError(what); }

absl::Status CheckFiles(const Manifest& manifest) {
  std::set<std::string> names;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    const std::string field = absl::StrCat("files[", i, "]");
    if (!IsPlainFileName(file.name) || file.name == kManifestName) {
      return Bad(absl::StrCat(field, ".name is not a plain file name"));
    }
    if (!names.insert(file.name).second)
      return Bad(absl::StrCat(field, ".name ", file.name, " is not unique"));
    if (file.bytes <= 0 || file.bytes > kFileBytesLimit)
      return Bad(absl::StrCat(field, ".bytes is ", file.bytes));
    const int64_t blocks = CeilDiv(file.bytes, manifest.block_bytes);
    if (static_cast<int64_t>(file.block_crc32c.size()) != blocks) {
      return Bad(absl::StrCat(field, " has ", file.block_crc32c.size(), " block checksums, its size needs ",
                              blocks));
    }
  }
  return absl::OkStatus();
}

// The fields of one range by themselves.
absl::Status CheckRange(const Manifest& manifest, const ManifestTensor& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kNameLimit || tensor.name == "__metadata__") {
    return Bad("name is empty, reserved or too long");
  }
  const absl::StatusOr<int64_t> elements = ShapeElements(tensor.shape);
  if (!elements.ok()) return Bad(elements.status().message());
  if (*elements != tensor.elements) return Bad("element count is not that of the shape");
  if (tensor.file >= manifest.files.size()) return Bad("file is not among files");
  if (tensor.begin < 0 || tensor.begin > tensor.end || tensor.end > tensor.elements ||
      (tensor.begin == tensor.end && tensor.elements != 0)) {
    return Bad(absl::StrCat("range [", tensor.begin, ", ", tensor.end, ") is not inside the ",
                            tensor.elements, " elements"));
  }
  const std::optional<int64_t> bytes = CheckedMul(tensor.end - tensor.begin, StoredTypeBytes(tensor.dtype));
  if (!bytes.has_value() || *bytes > manifest.files[tensor.file].bytes)
    return Bad("range is larger than its file");
  return absl::OkStatus();
}

absl::Status CheckTensors(const Manifest& manifest) {
  if (manifest.tensors.empty()) return Bad("tensors is empty");
  std::set<std::pair<size_t, std::string>> places;
  std::map<std::string, std::array<std::vector<const ManifestTensor*>, kStateClassLimit>> by_name;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    STRATA_RETURN_IF_ERROR(CheckRange(manifest, tensor), "tensors[", i, "] (", tensor.name, ")");
    if (!places.insert({tensor.file, tensor.name}).second) {
      return Bad(absl::StrCat("tensors[", i, "] (", tensor.name, ") stands twice in one file"));
    }
    by_name[tensor.name][static_cast<size_t>(tensor.state)].push_back(&tensor);
  }
  const Moments moments = manifest.state.moments;
  const std::vector<StateClass> expected = StateClassesOf(manifest.state);
  for (auto& [name, classes] : by_name) {
    const std::vector<int64_t>* shape = nullptr;
    int64_t elements = 0;
    if (!manifest.state.pending_scale.has_value() &&
        !classes[static_cast<size_t>(StateClass::kPendingGradient)].empty())
      return Bad(absl::StrCat("tensor ", name, " has a pending gradient but the state no pending_scale"));
    for (const StateClass scale : {StateClass::kFirstMomentScale, StateClass::kSecondMomentScale}) {
      if (moments == Moments::kF32 && !classes[static_cast<size_t>(scale)].empty())
        return Bad(absl::StrCat("tensor ", name, " has ", StateClassName(scale), " but the optimizer is ",
                                OptimizerName(moments)));
    }
    for (const StateClass state : expected) {
      const StateItem item = StateItemOf(state, moments);
      auto& ranges = classes[static_cast<size_t>(state)];
      std::sort(ranges.begin(), ranges.end(),
                [](const auto* a, const auto* b) { return a->begin < b->begin; });
      if (ranges.empty()) return Bad(absl::StrCat("tensor ", name, " has no ", StateClassName(state)));
      int64_t end = 0;
      for (const ManifestTensor* range : ranges) {
        if (shape == nullptr) {
          shape = &range->shape;
          elements = range->elements;
        }
        if (item.elements == 1 ? range->shape != *shape
                               : range->shape != std::vector<int64_t>{item.Count(elements)})
          return Bad(absl::StrCat("tensor ", name, " has two shapes"));
        if (item.type == StoredType::kU8 && range->dtype != item.type)
          return Bad(absl::StrCat(StateClassName(state), " of tensor ", name, " is ",
                                  StoredTypeName(range->dtype), ", not the U8 of ", OptimizerName(moments)));
        if (range->dtype != ranges[0]->dtype)
          return Bad(absl::StrCat("tensor ", name, " has two types in one class"));
        if (range->begin != end) {
          return Bad(absl::StrCat(StateClassName(state), " of tensor ", name, " has a range that begins at ",
                                  range->begin, " where ", end, " comes next"));
        }
        end = range->end;
      }
      if (end != ranges[0]->elements) {
        return Bad(absl::StrCat(StateClassName(state), " of tensor ", name, " ends at element ", end, " of ",
                                ranges[0]->elements));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const Manifest& manifest) {
  if (manifest.job_uid.size() > kNameLimit) return Bad("job_uid is too long");
  if (manifest.attempt < 0 || manifest.step < 0) return Bad("attempt or step is negative");
  const TrainingState& state = manifest.state;
  if (state.optimizer_step < 0 || state.data_cursor < 0 || state.loss_scale_good_steps < 0 ||
      state.skipped_steps < 0 || state.tokens < 0) {
    return Bad("a counter of state is negative");
  }
  if (!std::isfinite(state.loss_scale) || state.loss_scale <= 0)
    return Bad("state.loss_scale is not positive and finite");
  if (state.pending_scale.has_value() && (!std::isfinite(*state.pending_scale) || *state.pending_scale <= 0))
    return Bad("state.pending_scale is not positive and finite");
  const int64_t block = manifest.block_bytes;
  if (block < kMinBlockBytes || block > kMaxBlockBytes || (block & (block - 1)) != 0) {
    return Bad(absl::StrCat("block_bytes is ", block, ", not a power of two from ", kMinBlockBytes, " to ",
                            kMaxBlockBytes));
  }
  STRATA_RETURN_IF_ERROR(CheckFiles(manifest));
  return CheckTensors(manifest);
}

std::string BlocksToHex(const std::vector<uint32_t>& blocks) {
  std::string hex;
  hex.reserve(8 * blocks.size());
  for (const uint32_t crc : blocks) absl::StrAppend(&hex, absl::Hex(crc, absl::kZeroPad8));
  return hex;
}

absl::StatusOr<uint32_t> ParseHex32(absl::string_view hex) {
  if (hex.size() != 8) return Bad("a checksum is not 8 hex digits");
  uint32_t value = 0;
  for (const char c : hex) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return Bad("a checksum is not lower-case hex");
    value = value << 4 | static_cast<uint32_t>(digit);
  }
  return value;
}

absl::StatusOr<json> ParseObject(const std::string& text) {
  STRATA_ASSIGN_OR_RETURN(json value, ParseStrictJson(text));
  if (!value.is_object()) return Bad("not a JSON object");
  return value;
}

// An object with exactly `count` members, so that a field of a later version is not silently dropped.
absl::Status CheckMembers(const json& value, size_t count) {
  if (!value.is_object()) return Bad("not an object");
  if (value.size() != count) return Bad(absl::StrCat("has ", value.size(), " members, expected ", count));
  return absl::OkStatus();
}

absl::StatusOr<const json*> Array(const json& object, const char* key) {
  STRATA_ASSIGN_OR_RETURN(const json* value, JsonMember(object, key));
  if (!value->is_array()) return Bad(absl::StrCat("\"", key, "\" is not an array"));
  return value;
}

absl::StatusOr<json> ObjectMember(const json& object, const char* key) {
  STRATA_ASSIGN_OR_RETURN(const json* value, JsonMember(object, key));
  if (!value->is_object()) return Bad(absl::StrCat("\"", key, "\" is not an object"));
  return *value;
}

absl::StatusOr<TrainingState> ParseState(const json& value) {
  TrainingState state;
  const bool pending = value.is_object() && value.contains("pending_scale");
  const bool optimizer = value.is_object() && value.contains("optimizer");
  STRATA_RETURN_IF_ERROR(CheckMembers(value, 8 + (pending ? 1 : 0) + (optimizer ? 1 : 0)));
  if (optimizer) {
    STRATA_ASSIGN_OR_RETURN(const std::string name, JsonString(value, "optimizer"));
    const std::optional<Moments> moments = MomentsOfOptimizer(name);
    // Of the one without a name there is one form of every checkpoint.
    if (!moments.has_value() || *moments == Moments::kF32)
      return Bad(absl::StrCat("\"optimizer\" is \"", name, "\", not ", OptimizerName(Moments::kCode8)));
    state.moments = *moments;
  }
  if (pending) {
    STRATA_ASSIGN_OR_RETURN(const double scale, JsonDouble(value, "pending_scale"));
    state.pending_scale = static_cast<float>(scale);
  }
  STRATA_ASSIGN_OR_RETURN(state.optimizer_step, JsonInt(value, "optimizer_step"));
  STRATA_ASSIGN_OR_RETURN(state.data_cursor, JsonInt(value, "data_cursor"));
  STRATA_ASSIGN_OR_RETURN(state.seed, JsonUint(value, "seed"));
  STRATA_ASSIGN_OR_RETURN(state.loss_scale, JsonDouble(value, "loss_scale"));
  STRATA_ASSIGN_OR_RETURN(state.loss_scale_good_steps, JsonInt(value, "loss_scale_good_steps"));
  STRATA_ASSIGN_OR_RETURN(state.skipped_steps, JsonInt(value, "skipped_steps"));
  STRATA_ASSIGN_OR_RETURN(state.tokens, JsonInt(value, "tokens"));
  STRATA_ASSIGN_OR_RETURN(const json extra, ObjectMember(value, "extra"));
  state.extra_json = extra.dump();
  return state;
}

absl::StatusOr<ManifestFile> ParseFile(const json& value) {
  STRATA_RETURN_IF_ERROR(CheckMembers(value, 4));
  ManifestFile file;
  STRATA_ASSIGN_OR_RETURN(file.name, JsonString(value, "name"));
  STRATA_ASSIGN_OR_RETURN(file.bytes, JsonInt(value, "bytes"));
  STRATA_ASSIGN_OR_RETURN(const std::string crc, JsonString(value, "crc32c"));
  STRATA_ASSIGN_OR_RETURN(file.crc32c, ParseHex32(crc), "\"crc32c\"");
  STRATA_ASSIGN_OR_RETURN(const std::string blocks, JsonString(value, "block_crc32c"));
  if (blocks.size() % 8 != 0) return Bad("\"block_crc32c\" is not 8 hex digits per block");
  file.block_crc32c.reserve(blocks.size() / 8);
  for (size_t i = 0; i < blocks.size(); i += 8) {
    STRATA_ASSIGN_OR_RETURN(const uint32_t block, ParseHex32(absl::string_view(blocks).substr(i, 8)),
                            "\"block_crc32c\"");
    file.block_crc32c.push_back(block);
  }
  return file;
}

absl::StatusOr<ManifestTensor> ParseTensor(const json& value, const std::map<std::string, size_t>& files) {
  STRATA_RETURN_IF_ERROR(CheckMembers(value, 6));
  ManifestTensor tensor;
  STRATA_ASSIGN_OR_RETURN(const std::string state, JsonString(value, "class"));
  size_t index = 0;
  while (index < kStateClassLimit && StateClassName(static_cast<StateClass>(index)) != state) ++index;
  if (index == kStateClassLimit)
    return Bad(absl::StrCat("\"class\" is \"", state, "\", not master, m, v, pending, m_scale or v_scale"));
  tensor.state = static_cast<StateClass>(index);
  STRATA_ASSIGN_OR_RETURN(tensor.name, JsonString(value, "name"));
  STRATA_ASSIGN_OR_RETURN(const std::string dtype, JsonString(value, "dtype"));
  STRATA_ASSIGN_OR_RETURN(tensor.dtype, ParseStoredType(dtype));
  STRATA_ASSIGN_OR_RETURN(const json* shape, Array(value, "shape"));
  if (shape->size() > 16) return Bad("\"shape\" has more than 16 dimensions");
  for (const json& dimension : *shape) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() >> 62 != 0)
      return Bad("\"shape\" is not a list of sizes");
    tensor.shape.push_back(dimension.get<int64_t>());
  }
  const absl::StatusOr<int64_t> elements = ShapeElements(tensor.shape);
  if (!elements.ok()) return Bad(elements.status().message());
  tensor.elements = *elements;
  STRATA_ASSIGN_OR_RETURN(const std::string file, JsonString(value, "file"));
  const auto it = files.find(file);
  if (it == files.end()) return Bad(absl::StrCat("\"file\" ", file, " is not among files"));
  tensor.file = it->second;
  STRATA_ASSIGN_OR_RETURN(const json* range, Array(value, "elements"));
  if (range->size() != 2 || !(*range)[0].is_number_unsigned() || !(*range)[1].is_number_unsigned() ||
      (*range)[0].get<uint64_t>() >> 62 != 0 || (*range)[1].get<uint64_t>() >> 62 != 0) {
    return Bad("\"elements\" is not a pair of sizes");
  }
  tensor.begin = (*range)[0].get<int64_t>();
  tensor.end = (*range)[1].get<int64_t>();
  return tensor;
}

}  // namespace

absl::string_view StateClassName(StateClass state) {
  switch (state) {
    case StateClass::kMaster:
      return "master";
    case StateClass::kFirstMoment:
      return "m";
    case StateClass::kSecondMoment:
      return "v";
    case StateClass::kPendingGradient:
      return "pending";
    case StateClass::kFirstMomentScale:
      return "m_scale";
    case StateClass::kSecondMomentScale:
      return "v_scale";
  }
  STRATA_CHECK(false);
}

std::span<const StateClass> RecordClasses(Moments moments) {
  static constexpr StateClass kCode8[] = {StateClass::kMaster, StateClass::kFirstMoment,
                                          StateClass::kSecondMoment, StateClass::kFirstMomentScale,
                                          StateClass::kSecondMomentScale};
  if (moments == Moments::kF32) return kStateClasses;
  return kCode8;
}

StateItem StateItemOf(StateClass state, Moments moments) {
  switch (state) {
    case StateClass::kFirstMoment:
    case StateClass::kSecondMoment:
      return {.type = moments == Moments::kF32 ? StoredType::kF32 : StoredType::kU8};
    case StateClass::kFirstMomentScale:
    case StateClass::kSecondMomentScale:
      return {.elements = kCode8Block};
    default:
      return {};
  }
}

std::vector<StateClass> StateClassesOf(const TrainingState& state) {
  const std::span<const StateClass> record = RecordClasses(state.moments);
  std::vector<StateClass> classes(record.begin(), record.end());
  if (state.pending_scale.has_value()) classes.push_back(StateClass::kPendingGradient);
  return classes;
}

absl::StatusOr<std::string> SerializeManifest(const Manifest& manifest) {
  const absl::Status valid = CheckManifest(manifest);
  if (!valid.ok()) return absl::InvalidArgumentError(valid.message());
  const absl::StatusOr<json> model = ParseObject(manifest.model_json);
  if (!model.ok()) return absl::InvalidArgumentError(absl::StrCat("model_json: ", model.status().message()));
  const absl::StatusOr<json> extra = ParseObject(manifest.state.extra_json);
  if (!extra.ok())
    return absl::InvalidArgumentError(absl::StrCat("state.extra_json: ", extra.status().message()));
  json files = json::array();
  for (const ManifestFile& file : manifest.files) {
    files.push_back({{"name", file.name},
                     {"bytes", file.bytes},
                     {"crc32c", BlocksToHex({file.crc32c})},
                     {"block_crc32c", BlocksToHex(file.block_crc32c)}});
  }
  json tensors = json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    tensors.push_back({{"class", std::string(StateClassName(tensor.state))},
                       {"name", tensor.name},
                       {"dtype", std::string(StoredTypeName(tensor.dtype))},
                       {"shape", tensor.shape},
                       {"file", manifest.files[tensor.file].name},
                       {"elements", {tensor.begin, tensor.end}}});
  }
  const TrainingState& state = manifest.state;
  json root = {{"format", kFormat},
               {"version", kVersion},
               {"job_uid", manifest.job_uid},
               {"attempt", manifest.attempt},
               {"step", manifest.step},
               {"model", *model},
               {"state",
                {{"optimizer_step", state.optimizer_step},
                 {"data_cursor", state.data_cursor},
                 {"seed", state.seed},
                 {"loss_scale", state.loss_scale},
                 {"loss_scale_good_steps", state.loss_scale_good_steps},
                 {"skipped_steps", state.skipped_steps},
                 {"tokens", state.tokens},
                 {"extra", *extra}}},
               {"block_bytes", manifest.block_bytes},
               {"files", std::move(files)},
               {"tensors", std::move(tensors)}};
  if (state.moments != Moments::kF32) root["state"]["optimizer"] = OptimizerName(state.moments);
  if (state.pending_scale.has_value()) root["state"]["pending_scale"] = *state.pending_scale;
  std::string text;
  try {
    text = root.dump();
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("a name in the manifest is not UTF-8: ", e.what()));
  }
  text += '\n';
  if (static_cast<int64_t>(text.size()) > kManifestLimitBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the manifest has ", text.size(), " bytes, the limit is ", kManifestLimitBytes));
  }
  return text;
}

absl::StatusOr<Manifest> ParseManifest(absl::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > kManifestLimitBytes) {
    return Bad(absl::StrCat("has ", bytes.size(), " bytes, the limit is ", kManifestLimitBytes));
  }
  STRATA_ASSIGN_OR_RETURN(const json root, ParseStrictJson(bytes));
  STRATA_ASSIGN_OR_RETURN(const std::string format, JsonString(root, "format"));
  if (format != kFormat) return Bad(absl::StrCat("\"format\" is \"", format, "\", not \"", kFormat, "\""));
  STRATA_ASSIGN_OR_RETURN(const int64_t version, JsonInt(root, "version"));
  if (version != kVersion) {
    return Bad(absl::StrCat("\"version\" is ", version, ", this program reads ", kVersion,
                            "; use the program that wrote the checkpoint, or a newer one"));
  }
  STRATA_RETURN_IF_ERROR(CheckMembers(root, 10));
  Manifest manifest;
  STRATA_ASSIGN_OR_RETURN(manifest.job_uid, JsonString(root, "job_uid"));
  STRATA_ASSIGN_OR_RETURN(manifest.attempt, JsonInt(root, "attempt"));
  STRATA_ASSIGN_OR_RETURN(manifest.step, JsonInt(root, "step"));
  STRATA_ASSIGN_OR_RETURN(const json model, ObjectMember(root, "model"));
  manifest.model_json = model.dump();
  STRATA_ASSIGN_OR_RETURN(const json state, ObjectMember(root, "state"));
  STRATA_ASSIGN_OR_RETURN(manifest.state, ParseState(state), "state");
  STRATA_ASSIGN_OR_RETURN(manifest.block_bytes, JsonInt(root, "block_bytes", kMinBlockBytes, kMaxBlockBytes));
  STRATA_ASSIGN_OR_RETURN(const json* files, Array(root, "files"));
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < files->size(); ++i) {
    STRATA_ASSIGN_OR_RETURN(ManifestFile file, ParseFile((*files)[i]), "files[", i, "]");
    by_name[file.name] = i;
    manifest.files.push_back(std::move(file));
  }
  STRATA_ASSIGN_OR_RETURN(const json* tensors, Array(root, "tensors"));
  for (size_t i = 0; i < tensors->size(); ++i) {
    STRATA_ASSIGN_OR_RETURN(ManifestTensor tensor, ParseTensor((*tensors)[i], by_name), "tensors[", i, "]");
    manifest.tensors.push_back(std::move(tensor));
  }
  STRATA_RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

std::string Sha256Hex(absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  STRATA_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) absl::StrAppend(&hex, absl::Hex(digest[i], absl::kZeroPad2));
  return hex;
}

}  // namespace strata
