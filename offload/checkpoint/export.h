// To and from Hugging Face folders: config.json, model.safetensors (or shards), tokenizer files.
// Our tensor names and layouts are Hugging Face's (GPT-2: Conv1D [in, out] under "transformer."; Llama:
// Linear [out, in] under "model."), so weights are copied, never transposed.
#ifndef OFFLOAD_CHECKPOINT_EXPORT_H_
#define OFFLOAD_CHECKPOINT_EXPORT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "offload/checkpoint/file_ops.h"
#include "offload/checkpoint/safetensors.h"
#include "offload/model/model_config.h"

namespace strata {

class CheckpointReader;

// Manifest::model_json: the fields of ModelConfig under their own names ("architecture": "gpt2", ...).
std::string ModelConfigToJson(const ModelConfig& config);
// kDataLoss, naming the field, for anything that ModelConfigToJson does not write.
absl::StatusOr<ModelConfig> ModelConfigFromJson(absl::string_view json);

// A Hugging Face config.json (GPT2LMHeadModel or LlamaForCausalLM) as a complete ModelConfig, and back.
// kInvalidArgument, naming the key and what is supported, for another model_type or activation, rope_scaling,
// attention biases, scale_attn_by_inverse_layer_idx and whatever else would change the numbers.
absl::StatusOr<ModelConfig> ParseHuggingFaceConfig(absl::string_view json);
absl::StatusOr<std::string> HuggingFaceConfig(const ModelConfig& config, StoredType weights);

// The model that the checkpoint's weights are of. kDataLoss, naming the field and the tensor, unless these
// are that model's tensors by name and shape: nothing but its digest tells that a manifest was edited by
// hand, and for a folder that a person names it is not known.
absl::StatusOr<ModelConfig> ModelOf(const CheckpointReader& reader);

struct ExportOptions {
  // kBF16, kF16 or kF32. Absent: what the training computed in ("precision" of TrainingState::extra_json), or
  // kBF16.
  std::optional<StoredType> weights;
  bool bytes_tokenizer = true;  // Write tokenizer.json for the tokenizer "bytes" (vocab >= 256).
  std::string digest;           // Of the checkpoint's manifest, if not empty; else kDataLoss.
};

// Writes the master weights of the checkpoint at `checkpoint_dir` (its model_json must be
// ModelConfigToJson's of their model: ModelOf) as the folder `out_dir`: config.json, generation_config.json,
// model.safetensors and for the bytes tokenizer tokenizer.json and tokenizer_config.json. Written beside it
// as <out_dir>.strata-export-tmp and renamed, so out_dir is there in full or not at all. kAlreadyExists for
// an out_dir that is not empty.
absl::Status ExportHuggingFace(FileOps& ops, const std::string& checkpoint_dir, const std::string& out_dir,
                               const ExportOptions& options = {});

// An opened folder to start a training from.
class HuggingFaceModel {
 public:
  // Reads config.json and the headers of the weights. `folder` errors name the file.
  static absl::StatusOr<HuggingFaceModel> Open(const std::string& folder);

  const ModelConfig& config() const { return config_; }

  // All elements of the tensor that we call `name` ("transformer.h.0.ln_1.weight"), found under that name, or
  // without its "transformer." or "model." prefix, or with it added; a tied head and its embedding under
  // either name. kNotFound, or kInvalidArgument with both shapes if the file's is not `shape`.
  absl::Status Check(absl::string_view name, std::span<const int64_t> shape) const;
  // Elements [element, element + out.size()) of it, as float. Thread-safe.
  absl::Status Read(absl::string_view name, std::span<const int64_t> shape, int64_t element,
                    std::span<float> out) const;

  // Tensors of the files that no name of `expected` finds, buffers that carry no weights (attn.bias,
  // attn.masked_bias, rotary_emb.inv_freq) left out. Not empty means that the model is not what config.json
  // says.
  std::vector<std::string> Unused(const std::vector<std::string>& expected) const;

 private:
  absl::StatusOr<SafetensorsModel::Location> Locate(absl::string_view name,
                                                    std::span<const int64_t> shape) const;
  // The names under which a file may hold the tensor `name`, in the order in which they are tried.
  std::vector<std::string> Aliases(absl::string_view name) const;

  std::string folder_;
  ModelConfig config_;
  SafetensorsModel weights_;
};

}  // namespace strata

#endif  // OFFLOAD_CHECKPOINT_EXPORT_H_
