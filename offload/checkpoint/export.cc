#include "offload/checkpoint/export.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/bfloat16.h"
#include "common/fd.h"
#include "common/float16.h"
#include "common/status.h"
#include "kernels/dtype.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/manifest.h"
#include "offload/checkpoint/strict_json.h"
#include "offload/model/model_layout.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr int64_t kConfigLimitBytes = 1 << 20;
constexpr int64_t kSizeLimit = std::numeric_limits<int32_t>::max();
constexpr int64_t kPieceElements = 256 << 10;  // Copied at a time: 1 MiB of fp32.

absl::string_view ArchitectureName(Architecture architecture) {
  return architecture == Architecture::kGpt2 ? "gpt2" : "llama";
}

absl::string_view ActivationName(Activation activation) {
  switch (activation) {
    case Activation::kGeluTanh:
      return "gelu-tanh";
    case Activation::kGeluErf:
      return "gelu-erf";
    case Activation::kSwiglu:
      return "swiglu";
  }
  return "";
}

// The keys of one Hugging Face config. The first problem is kept, so that reading is straight-line code; null
// counts as absent, as it does in the Python classes.
class ConfigKeys {
 public:
  explicit ConfigKeys(const json& root) : root_(root) {}

  const absl::Status& status() const { return status_; }

  int64_t Size(const char* key, std::optional<int64_t> fallback = std::nullopt) {
    const json* value = Get(key);
    if (value == nullptr) {
      if (!fallback.has_value()) Refuse(absl::StrCat("\"", key, "\" is missing"));
      return fallback.value_or(1);
    }
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 || value->get<uint64_t>() > kSizeLimit) {
      Refuse(absl::StrCat("\"", key, "\" is ", value->dump(), ", not a size from 1 to ", kSizeLimit));
      return 1;
    }
    return value->get<int64_t>();
  }

  double Positive(const char* key, double fallback) {
    const json* value = Get(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() > 0)) {
      Refuse(absl::StrCat("\"", key, "\" is ", value->dump(), ", not a positive number"));
      return fallback;
    }
    return value->get<double>();
  }

  double Probability(const char* key, double fallback) {
    const json* value = Get(key);
    if (value == nullptr) return fallback;
    if (!value->is_number() || !(value->get<double>() >= 0 && value->get<double>() < 1)) {
      Refuse(absl::StrCat("\"", key, "\" is ", value->dump(), ", not a probability from 0 to below 1"));
      return fallback;
    }
    return value->get<double>();
  }

  bool Flag(const char* key, bool fallback) {
    const json* value = Get(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) Refuse(absl::StrCat("\"", key, "\" is ", value->dump(), ", not true or false"));
    return value->is_boolean() ? value->get<bool>() : fallback;
  }

  std::string Text(const char* key, const std::string& fallback) {
    const json* value = Get(key);
    if (value == nullptr) return fallback;
    if (!value->is_string()) Refuse(absl::StrCat("\"", key, "\" is ", value->dump(), ", not a string"));
    return value->is_string() ? value->get<std::string>() : fallback;
  }

  // A flag that would change the numbers in a way that is not implemented.
  void RequireFlag(const char* key, bool required) {
    if (Flag(key, required) != required) {
      Refuse(absl::StrCat("\"", key, "\" is not supported other than ", required ? "true" : "false"));
    }
  }

  const json* Get(const char* key) const {
    const auto it = root_.find(key);
    return it == root_.end() || it->is_null() ? nullptr : &*it;
  }

  void Refuse(absl::string_view why) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(why);
  }

 private:
  const json& root_;
  absl::Status status_;
};

ModelConfig ParseGpt2(ConfigKeys& keys) {
  ModelConfig config;
  config.architecture = Architecture::kGpt2;
  config.layers = keys.Size("n_layer");
  config.hidden = keys.Size("n_embd");
  config.heads = keys.Size("n_head");
  config.vocab = keys.Size("vocab_size");
  config.max_seq = keys.Size("n_positions");
  config.ffn = keys.Size("n_inner", 4 * config.hidden);
  config.kv_heads = config.heads;
  if (config.hidden % config.heads != 0) keys.Refuse("\"n_head\" does not divide \"n_embd\"");
  config.head_dim = config.hidden / config.heads;
  const std::string activation = keys.Text("activation_function", "gelu_new");
  if (activation == "gelu_new" || activation == "gelu_pytorch_tanh") {
    config.activation = Activation::kGeluTanh;
  } else if (activation == "gelu") {
    config.activation = Activation::kGeluErf;
  } else {
    keys.Refuse(absl::StrCat("\"activation_function\" is \"", activation,
                             "\"; gelu_new, gelu_pytorch_tanh and gelu are supported"));
  }
  config.norm_eps = keys.Positive("layer_norm_epsilon", 1e-5);
  config.tied_head = keys.Flag("tie_word_embeddings", true);
  config.dropout = {.embedding = keys.Probability("embd_pdrop", 0.1),
                    .residual = keys.Probability("resid_pdrop", 0.1),
                    .attention = keys.Probability("attn_pdrop", 0.1)};
  keys.RequireFlag("scale_attn_weights", true);
  keys.RequireFlag("scale_attn_by_inverse_layer_idx", false);
  keys.RequireFlag("add_cross_attention", false);
  return config;
}

// rope_theta stands at the top level or, in files of transformers 5, in rope_parameters.
double ParseRope(ConfigKeys& keys) {
  double theta = keys.Positive("rope_theta", 10000);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const json* rope = keys.Get(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      keys.Refuse(absl::StrCat("\"", key, "\" is not an object"));
      continue;
    }
    ConfigKeys inner(*rope);
    const std::string type = inner.Text("rope_type", inner.Text("type", "default"));
    if (type != "default")
      inner.Refuse(absl::StrCat("rope_type \"", type, "\" is not supported, only \"default\""));
    theta = inner.Positive("rope_theta", theta);
    if (!inner.status().ok()) keys.Refuse(absl::StrCat("\"", key, "\": ", inner.status().message()));
  }
  return theta;
}

ModelConfig ParseLlama(ConfigKeys& keys) {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.layers = keys.Size("num_hidden_layers");
  config.hidden = keys.Size("hidden_size");
  config.heads = keys.Size("num_attention_heads");
  config.kv_heads = keys.Size("num_key_value_heads", config.heads);
  config.vocab = keys.Size("vocab_size");
  config.max_seq = keys.Size("max_position_embeddings");
  config.ffn = keys.Size("intermediate_size");
  if (keys.Get("head_dim") == nullptr && config.hidden % config.heads != 0) {
    keys.Refuse("\"num_attention_heads\" does not divide \"hidden_size\"");
  }
  config.head_dim = keys.Size("head_dim", std::max<int64_t>(1, config.hidden / config.heads));
  if (config.heads % config.kv_heads != 0)
    keys.Refuse("\"num_key_value_heads\" does not divide \"num_attention_heads\"");
  config.activation = Activation::kSwiglu;
  const std::string activation = keys.Text("hidden_act", "silu");
  if (activation != "silu")
    keys.Refuse(absl::StrCat("\"hidden_act\" is \"", activation, "\"; silu is supported"));
  config.norm_eps = keys.Positive("rms_norm_eps", 1e-6);
  config.rope_theta = ParseRope(keys);
  config.tied_head = keys.Flag("tie_word_embeddings", false);
  config.dropout.attention = keys.Probability("attention_dropout", 0);
  keys.RequireFlag("attention_bias", false);
  keys.RequireFlag("mlp_bias", false);
  return config;
}

// GPT-2's byte-level alphabet: printable Latin-1 bytes are themselves, the others are U+0100 and up in byte
// order. So 256 one-character tokens, which the ByteLevel pre-tokenizer and decoder of the tokenizers library
// map to bytes.
std::string ByteSymbol(int byte, int* next) {
  const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
  const int code = printable ? byte : (*next)++;
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
}

std::string BytesTokenizerJson() {
  json vocab = json::object();
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) vocab[ByteSymbol(byte, &next)] = byte;
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return json{{"version", "1.0"},
              {"truncation", nullptr},
              {"padding", nullptr},
              {"added_tokens", json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", byte_level},
              {"post_processor", nullptr},
              {"decoder", byte_level},
              {"model",
               {{"type", "BPE"},
                {"dropout", nullptr},
                {"unk_token", nullptr},
                {"continuing_subword_prefix", nullptr},
                {"end_of_word_suffix", nullptr},
                {"fuse_unk", false},
                {"byte_fallback", false},
                {"vocab", vocab},
                {"merges", json::array()}}}}
             .dump(1) +
         "\n";
}

std::string TokenizerConfigJson(const ModelConfig& config) {
  return json{{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"model_max_length", config.max_seq},
              {"clean_up_tokenization_spaces", false}}
             .dump(1) +
         "\n";
}

absl::Status WriteTextFile(FileOps& ops, const std::string& path, absl::string_view text) {
  STRATA_ASSIGN_OR_RETURN(Fd fd, ops.CreateFile(path));
  STRATA_RETURN_IF_ERROR(ops.Write(fd, text, path));
  STRATA_RETURN_IF_ERROR(ops.Sync(fd, path));
  return ops.Close(std::move(fd), path);
}

template <typename Half>
absl::string_view Rounded(const std::vector<float>& values, Half (*round)(float), std::vector<Half>& out) {
  out.resize(values.size());
  std::transform(values.begin(), values.end(), out.begin(), round);
  return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(Half)};
}

StoredType TrainedIn(const Manifest& manifest) {
  const json extra = json::parse(manifest.state.extra_json, nullptr, false);
  const std::string precision =
      extra.is_object() && extra.contains("precision") && extra["precision"].is_string()
          ? extra["precision"].get<std::string>()
          : "";
  if (precision == Name(DType::kF32)) return StoredType::kF32;
  return precision == Name(DType::kF16) ? StoredType::kF16 : StoredType::kBF16;
}

const char* TorchName(StoredType type) {
  if (type == StoredType::kF32) return "float32";
  return type == StoredType::kF16 ? "float16" : "bfloat16";
}

absl::Status WriteWeights(FileOps& ops, CheckpointReader& reader, const std::string& path, StoredType type) {
  const std::vector<CheckpointReader::Tensor> tensors = reader.Tensors(StateClass::kMaster);
  std::vector<SafetensorsDeclaration> declarations;
  for (const auto& tensor : tensors) declarations.push_back({tensor.name, type, tensor.shape});
  STRATA_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(ops, path, declarations, {{"format", "pt"}}, kCheckpointBlockBytes));
  std::vector<float> values;
  std::vector<BFloat16> bfloats;
  std::vector<Float16> halves;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t at = 0; at < tensors[i].elements; at += kPieceElements) {
      values.resize(static_cast<size_t>(std::min(kPieceElements, tensors[i].elements - at)));
      STRATA_RETURN_IF_ERROR(reader.ReadRange(StateClass::kMaster, tensors[i].name, at, values));
      absl::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      if (type == StoredType::kBF16) {
        bytes = Rounded(values, ToBFloat16, bfloats);
      } else if (type == StoredType::kF16) {
        bytes = Rounded(values, ToFloat16, halves);
      }
      STRATA_RETURN_IF_ERROR(writer->Append(i, at, bytes));
    }
  }
  return writer->Finish().status();
}

absl::Status WriteFolder(FileOps& ops, CheckpointReader& reader, const ModelConfig& config,
                         const std::string& folder, const ExportOptions& options) {
  const StoredType weights = options.weights.value_or(TrainedIn(reader.manifest()));
  STRATA_RETURN_IF_ERROR(ops.MakeDirectory(folder));
  STRATA_ASSIGN_OR_RETURN(const std::string config_json, HuggingFaceConfig(config, weights));
  STRATA_RETURN_IF_ERROR(WriteTextFile(ops, folder + "/config.json", config_json));
  // Bytes have no begin or end token, so generation has no default to stop at.
  const json generation = {
      {"_from_model_config", true}, {"bos_token_id", nullptr}, {"eos_token_id", nullptr}};
  STRATA_RETURN_IF_ERROR(WriteTextFile(ops, folder + "/generation_config.json", generation.dump(1) + "\n"));
  if (options.bytes_tokenizer) {
    STRATA_RETURN_IF_ERROR(WriteTextFile(ops, folder + "/tokenizer.json", BytesTokenizerJson()));
    STRATA_RETURN_IF_ERROR(
        WriteTextFile(ops, folder + "/tokenizer_config.json", TokenizerConfigJson(config)));
  }
  STRATA_RETURN_IF_ERROR(WriteWeights(ops, reader, folder + "/model.safetensors", weights));
  return ops.SyncDirectory(folder);
}

// OK if `path` is absent or an empty folder.
absl::Status CheckFree(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return absl::OkStatus();
  if (error) return ErrnoStatus(error.value(), path);
  if (status.type() == std::filesystem::file_type::directory && std::filesystem::is_empty(path, error) &&
      !error) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat(path, " exists and is not an empty folder; remove it or choose another output folder"));
}

// Buffers that older transformers saved with the weights and that carry nothing learned.
bool IsBuffer(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq");
}

}  // namespace

std::string ModelConfigToJson(const ModelConfig& config) {
  return json{{"architecture", std::string(ArchitectureName(config.architecture))},
              {"layers", config.layers},
              {"hidden", config.hidden},
              {"heads", config.heads},
              {"kv_heads", config.kv_heads},
              {"head_dim", config.head_dim},
              {"ffn", config.ffn},
              {"vocab", config.vocab},
              {"max_seq", config.max_seq},
              {"activation", std::string(ActivationName(config.activation))},
              {"norm_eps", config.norm_eps},
              {"rope_theta", config.rope_theta},
              {"tied_head", config.tied_head},
              {"embedding_dropout", config.dropout.embedding},
              {"residual_dropout", config.dropout.residual},
              {"attention_dropout", config.dropout.attention}}
      .dump();
}

absl::StatusOr<ModelConfig> ModelConfigFromJson(absl::string_view text) {
  STRATA_ASSIGN_OR_RETURN(const json root, ParseStrictJson(text));
  ModelConfig config;
  STRATA_ASSIGN_OR_RETURN(const std::string architecture, JsonString(root, "architecture"));
  if (architecture != "gpt2" && architecture != "llama") {
    return absl::DataLossError(absl::StrCat("\"architecture\" is \"", architecture, "\", not gpt2 or llama"));
  }
  config.architecture = architecture == "gpt2" ? Architecture::kGpt2 : Architecture::kLlama;
  const struct {
    const char* key;
    int64_t* value;
  } sizes[] = {{"layers", &config.layers},     {"hidden", &config.hidden},     {"heads", &config.heads},
               {"kv_heads", &config.kv_heads}, {"head_dim", &config.head_dim}, {"ffn", &config.ffn},
               {"vocab", &config.vocab},       {"max_seq", &config.max_seq}};
  for (const auto& size : sizes) {
    STRATA_ASSIGN_OR_RETURN(*size.value, JsonInt(root, size.key, 1, kSizeLimit));
  }
  STRATA_ASSIGN_OR_RETURN(const std::string activation, JsonString(root, "activation"));
  bool known = false;
  for (const Activation candidate : {Activation::kGeluTanh, Activation::kGeluErf, Activation::kSwiglu}) {
    if (ActivationName(candidate) != activation) continue;
    config.activation = candidate;
    known = true;
  }
  if (!known)
    return absl::DataLossError(absl::StrCat("\"activation\" is \"", activation, "\", which is none of ours"));
  STRATA_ASSIGN_OR_RETURN(config.norm_eps, JsonDouble(root, "norm_eps"));
  STRATA_ASSIGN_OR_RETURN(config.rope_theta, JsonDouble(root, "rope_theta"));
  STRATA_ASSIGN_OR_RETURN(const json* tied, JsonMember(root, "tied_head"));
  if (!tied->is_boolean()) return absl::DataLossError("\"tied_head\" is not true or false");
  config.tied_head = tied->get<bool>();
  const struct {
    const char* key;
    double* value;
  } dropouts[] = {{"embedding_dropout", &config.dropout.embedding},
                  {"residual_dropout", &config.dropout.residual},
                  {"attention_dropout", &config.dropout.attention}};
  for (const auto& dropout : dropouts) {
    // Checkpoints of versions without dropout do not say.
    if (root.contains(dropout.key)) {
      STRATA_ASSIGN_OR_RETURN(*dropout.value, JsonDouble(root, dropout.key));
    }
  }
  return config;
}

absl::StatusOr<ModelConfig> ModelOf(const CheckpointReader& reader) {
  const std::string place = absl::StrCat(reader.path(), "/", kManifestName, ": \"model\"");
  STRATA_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfigFromJson(reader.manifest().model_json), place);
  const absl::StatusOr<ModelLayout> layout = BuildModelLayout(config, DType::kF32, 1, config.max_seq);
  if (!layout.ok()) return absl::DataLossError(absl::StrCat(place, ": ", layout.status().message()));
  std::map<std::string, std::vector<int64_t>> stored;
  for (CheckpointReader::Tensor& tensor : reader.Tensors(StateClass::kMaster))
    stored[tensor.name] = std::move(tensor.shape);
  for (const ParamUnit& unit : layout->units) {
    for (const TensorInfo& tensor : unit.tensors) {
      const auto found = stored.find(tensor.name);
      if (found == stored.end() || found->second != tensor.shape) {
        return absl::DataLossError(absl::StrCat(
            place, " asks for tensor ", tensor.name, " of shape ", FormatShape(tensor.shape),
            ", \"tensors\" has ", found == stored.end() ? "none of that name" : FormatShape(found->second)));
      }
      stored.erase(found);
    }
  }
  if (!stored.empty()) {
    return absl::DataLossError(
        absl::StrCat(place, " has no tensor ", stored.begin()->first, ", which \"tensors\" has"));
  }
  return config;
}

absl::StatusOr<ModelConfig> ParseHuggingFaceConfig(absl::string_view text) {
  STRATA_ASSIGN_OR_RETURN(const json root, ParseStrictJson(text));
  if (!root.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  ConfigKeys keys(root);
  const std::string type = keys.Text("model_type", "");
  ModelConfig config;
  if (type == "gpt2") {
    config = ParseGpt2(keys);
  } else if (type == "llama") {
    config = ParseLlama(keys);
  } else {
    keys.Refuse(absl::StrCat("\"model_type\" is \"", type, "\"; gpt2 and llama are supported"));
  }
  STRATA_RETURN_IF_ERROR(keys.status());
  return config;
}

absl::StatusOr<std::string> HuggingFaceConfig(const ModelConfig& config, StoredType weights) {
  json root = {{"vocab_size", config.vocab},        {"tie_word_embeddings", config.tied_head},
               {"bos_token_id", nullptr},           {"eos_token_id", nullptr},
               {"torch_dtype", TorchName(weights)}, {"use_cache", true}};
  if (config.architecture == Architecture::kGpt2) {
    if (config.kv_heads != config.heads || config.head_dim * config.heads != config.hidden ||
        config.activation == Activation::kSwiglu) {
      return absl::InvalidArgumentError(
          "a GPT2LMHeadModel has kv_heads = heads, head_dim = hidden / heads and a GELU; this model cannot "
          "be exported");
    }
    root.update({{"model_type", "gpt2"},
                 {"architectures", {"GPT2LMHeadModel"}},
                 {"n_layer", config.layers},
                 {"n_embd", config.hidden},
                 {"n_head", config.heads},
                 {"n_inner", config.ffn},
                 {"n_positions", config.max_seq},
                 {"n_ctx", config.max_seq},
                 {"activation_function", config.activation == Activation::kGeluTanh ? "gelu_new" : "gelu"},
                 {"layer_norm_epsilon", config.norm_eps},
                 {"attn_pdrop", config.dropout.attention},
                 {"embd_pdrop", config.dropout.embedding},
                 {"resid_pdrop", config.dropout.residual}});
  } else {
    root.update({{"model_type", "llama"},
                 {"architectures", {"LlamaForCausalLM"}},
                 {"num_hidden_layers", config.layers},
                 {"hidden_size", config.hidden},
                 {"num_attention_heads", config.heads},
                 {"num_key_value_heads", config.kv_heads},
                 {"head_dim", config.head_dim},
                 {"intermediate_size", config.ffn},
                 {"max_position_embeddings", config.max_seq},
                 {"hidden_act", "silu"},
                 {"rms_norm_eps", config.norm_eps},
                 {"rope_theta", config.rope_theta},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"attention_dropout", config.dropout.attention}});
  }
  return root.dump(1) + "\n";
}

absl::Status ExportHuggingFace(FileOps& ops, const std::string& checkpoint_dir, const std::string& out_dir,
                               const ExportOptions& options) {
  if (options.weights && options.weights != StoredType::kBF16 && options.weights != StoredType::kF16 &&
      options.weights != StoredType::kF32) {
    return absl::InvalidArgumentError("weights are exported as BF16, F16 or F32");
  }
  std::string out = std::filesystem::path(out_dir).lexically_normal().string();
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  if (out.empty()) return absl::InvalidArgumentError("the output folder has no name");
  STRATA_RETURN_IF_ERROR(CheckFree(out));
  STRATA_ASSIGN_OR_RETURN(const auto reader, CheckpointReader::Open(checkpoint_dir, options.digest));
  STRATA_ASSIGN_OR_RETURN(const ModelConfig config, ModelOf(*reader));
  if (options.bytes_tokenizer && config.vocab < 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model's vocab is ", config.vocab, ": too small for the tokenizer \"bytes\""));
  }
  const std::string temporary = absl::StrCat(out, ".strata-export-tmp");
  STRATA_RETURN_IF_ERROR(ops.RemoveTree(temporary));
  absl::Status status = WriteFolder(ops, *reader, config, temporary, options);
  if (status.ok()) status = ops.Rename(temporary, out);
  if (!status.ok()) {
    ops.RemoveTree(temporary).IgnoreError();  // The error that matters is the first one.
    return status;
  }
  const std::string parent = std::filesystem::path(out).parent_path().string();
  return ops.SyncDirectory(parent.empty() ? "." : parent);
}

absl::StatusOr<HuggingFaceModel> HuggingFaceModel::Open(const std::string& folder) {
  HuggingFaceModel model;
  model.folder_ = folder;
  const std::string config_path = absl::StrCat(folder, "/config.json");
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadFile(config_path, kConfigLimitBytes));
  STRATA_ASSIGN_OR_RETURN(model.config_, ParseHuggingFaceConfig(text), config_path);
  STRATA_ASSIGN_OR_RETURN(model.weights_, SafetensorsModel::Open(folder));
  return model;
}

std::vector<std::string> HuggingFaceModel::Aliases(absl::string_view name) const {
  const bool gpt2 = config_.architecture == Architecture::kGpt2;
  const absl::string_view prefix = gpt2 ? "transformer." : "model.";
  const std::string head = "lm_head.weight";
  const std::string embedding = absl::StrCat(prefix, gpt2 ? "wte.weight" : "embed_tokens.weight");
  std::vector<std::string> names = {std::string(name)};
  const auto add = [&](absl::string_view other) {
    if (absl::StartsWith(other, prefix)) {
      names.emplace_back(absl::StripPrefix(other, prefix));
    } else if (other != head) {
      names.push_back(absl::StrCat(prefix, other));
    }
  };
  add(name);
  if (config_.tied_head && std::find(names.begin(), names.end(), embedding) != names.end()) {
    names.push_back(head);
  } else if (config_.tied_head && name == head) {
    names.push_back(embedding);
    add(embedding);
  }
  return names;
}

absl::StatusOr<SafetensorsModel::Location> HuggingFaceModel::Locate(absl::string_view name,
                                                                    std::span<const int64_t> shape) const {
  for (const std::string& alias : Aliases(name)) {
    const SafetensorsModel::Location found = weights_.Find(alias);
    if (found.tensor == nullptr) continue;
    if (!std::equal(shape.begin(), shape.end(), found.tensor->shape.begin(), found.tensor->shape.end())) {
      return absl::InvalidArgumentError(absl::StrCat(found.reader->path(), ": tensor ", alias, " has shape ",
                                                     FormatShape(found.tensor->shape),
                                                     ", config.json asks for ", FormatShape(shape)));
    }
    return found;
  }
  return absl::NotFoundError(absl::StrCat(folder_, " has no tensor ", name, ", which config.json asks for"));
}

absl::Status HuggingFaceModel::Check(absl::string_view name, std::span<const int64_t> shape) const {
  STRATA_ASSIGN_OR_RETURN(const SafetensorsModel::Location found, Locate(name, shape));
  const StoredType type = found.tensor->dtype;
  if (type != StoredType::kF64 && type != StoredType::kF32 && type != StoredType::kF16 &&
      type != StoredType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat(found.reader->path(), ": tensor ", name,
                                                   " has elements of type ", StoredTypeName(type),
                                                   ", which are no weights"));
  }
  return absl::OkStatus();
}

absl::Status HuggingFaceModel::Read(absl::string_view name, std::span<const int64_t> shape, int64_t element,
                                    std::span<float> out) const {
  STRATA_ASSIGN_OR_RETURN(const SafetensorsModel::Location found, Locate(name, shape));
  return found.reader->ReadFloats(*found.tensor, element, out);
}

std::vector<std::string> HuggingFaceModel::Unused(const std::vector<std::string>& expected) const {
  std::set<std::string> used;
  for (const std::string& name : expected) {
    for (std::string& alias : Aliases(name)) used.insert(std::move(alias));
  }
  std::vector<std::string> unused;
  for (std::string& name : weights_.Names()) {
    if (!used.contains(name) && !IsBuffer(name)) unused.push_back(std::move(name));
  }
  return unused;
}

}  // namespace strata
