#include "offload/checkpoint/export.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/fd.h"
#include "common/float16.h"
#include "common/random.h"
#include "offload/checkpoint/checkpoint_writer.h"
#include "offload/checkpoint/strict_json.h"

namespace strata {
namespace {

ModelConfig Llama() {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.layers = 2;
  config.hidden = 48;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn = 64;
  config.vocab = 256;
  config.max_seq = 128;
  config.activation = Activation::kSwiglu;
  config.norm_eps = 1e-6;
  config.rope_theta = 500000;
  return config;
}

ModelConfig Gpt2() {
  ModelConfig config;
  config.architecture = Architecture::kGpt2;
  config.layers = 2;
  config.hidden = 48;
  config.heads = config.kv_heads = 6;
  config.head_dim = 8;
  config.ffn = 192;
  config.vocab = 256;
  config.max_seq = 128;
  config.activation = Activation::kGeluErf;
  config.tied_head = true;
  return config;
}

std::vector<CheckpointTensor> Tensors(const ModelConfig& c) {
  std::vector<CheckpointTensor> tensors;
  if (c.architecture == Architecture::kLlama) {
    tensors.push_back({"model.embed_tokens.weight", {c.vocab, c.hidden}});
    for (int64_t i = 0; i < c.layers; ++i) {
      const std::string p = absl::StrCat("model.layers.", i, ".");
      tensors.push_back({p + "input_layernorm.weight", {c.hidden}});
      tensors.push_back({p + "self_attn.q_proj.weight", {c.heads * c.head_dim, c.hidden}});
      tensors.push_back({p + "self_attn.k_proj.weight", {c.kv_heads * c.head_dim, c.hidden}});
      tensors.push_back({p + "self_attn.v_proj.weight", {c.kv_heads * c.head_dim, c.hidden}});
      tensors.push_back({p + "self_attn.o_proj.weight", {c.hidden, c.heads * c.head_dim}});
      tensors.push_back({p + "post_attention_layernorm.weight", {c.hidden}});
      tensors.push_back({p + "mlp.gate_proj.weight", {c.ffn, c.hidden}});
      tensors.push_back({p + "mlp.up_proj.weight", {c.ffn, c.hidden}});
      tensors.push_back({p + "mlp.down_proj.weight", {c.hidden, c.ffn}});
    }
    tensors.push_back({"model.norm.weight", {c.hidden}});
    if (!c.tied_head) tensors.push_back({"lm_head.weight", {c.vocab, c.hidden}});
    return tensors;
  }
  tensors.push_back({"transformer.wte.weight", {c.vocab, c.hidden}});
  tensors.push_back({"transformer.wpe.weight", {c.max_seq, c.hidden}});
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string p = absl::StrCat("transformer.h.", i, ".");
    for (const char* norm : {"ln_1", "ln_2"}) {
      tensors.push_back({absl::StrCat(p, norm, ".weight"), {c.hidden}});
      tensors.push_back({absl::StrCat(p, norm, ".bias"), {c.hidden}});
    }
    const struct {
      const char* name;
      int64_t in, out;
    } matrices[] = {{"attn.c_attn", c.hidden, 3 * c.hidden},
                    {"attn.c_proj", c.hidden, c.hidden},
                    {"mlp.c_fc", c.hidden, c.ffn},
                    {"mlp.c_proj", c.ffn, c.hidden}};
    for (const auto& m : matrices) {
      tensors.push_back({absl::StrCat(p, m.name, ".weight"), {m.in, m.out}});
      tensors.push_back({absl::StrCat(p, m.name, ".bias"), {m.out}});
    }
  }
  tensors.push_back({"transformer.ln_f.weight", {c.hidden}});
  tensors.push_back({"transformer.ln_f.bias", {c.hidden}});
  return tensors;
}

std::vector<float> Weights(const CheckpointTensor& tensor, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(*ShapeElements(tensor.shape)));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(0.02 * CounterRandom(9, stream).Normal(i));
  return values;
}

class ExportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/export");
    ASSERT_TRUE(RemoveTree(folder_).ok() && MakeDirectories(folder_).ok());
  }

  std::string Checkpoint(const ModelConfig& config, const std::string& extra_json = "{}") {
    const std::vector<CheckpointTensor> tensors = Tensors(config);
    auto writer = CheckpointWriter::Create(FileOps::Real(), folder_ + "/checkpoints",
                                           {.job_uid = "job",
                                            .step = 7,
                                            .model_json = ModelConfigToJson(config),
                                            .state = {.extra_json = extra_json}},
                                           tensors);
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (const StateClass state : kStateClasses) {
        EXPECT_TRUE((*writer)->Append(state, i, 0, Weights(tensors[i], i)).ok());
      }
    }
    const auto written = (*writer)->Commit();
    EXPECT_TRUE(written.ok()) << written.status();
    return written->path;
  }

  void Put(const std::string& path, absl::string_view text) {
    const auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC);
    ASSERT_TRUE(fd.ok() && WriteAll(*fd, text, path).ok());
  }

  std::string folder_;
};

TEST(ModelConfigJson, SurvivesTheRoundTrip) {
  ModelConfig dropping = Gpt2();
  dropping.dropout = {.embedding = 0.1, .residual = 0.25};
  for (const ModelConfig& config : {Llama(), Gpt2(), dropping}) {
    const auto parsed = ModelConfigFromJson(ModelConfigToJson(config));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, config);
  }
  // A checkpoint of a version without dropout.
  auto older = nlohmann::json::parse(ModelConfigToJson(Gpt2()));
  for (const char* key : {"embedding_dropout", "residual_dropout", "attention_dropout"}) older.erase(key);
  const auto parsed = ModelConfigFromJson(older.dump());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, Gpt2());
  older["residual_dropout"] = "none";
  EXPECT_TRUE(absl::IsDataLoss(ModelConfigFromJson(older.dump()).status()));
  EXPECT_TRUE(absl::IsDataLoss(ModelConfigFromJson("{}").status()));
  EXPECT_TRUE(absl::IsDataLoss(ModelConfigFromJson("[]").status()));
}

TEST(HuggingFaceConfigTest, SurvivesTheRoundTrip) {
  ModelConfig tanh = Gpt2();
  tanh.activation = Activation::kGeluTanh;
  ModelConfig tied = Llama();
  tied.tied_head = true;
  ModelConfig dropping = Gpt2();
  dropping.dropout = {.embedding = 0.1, .residual = 0.25};
  for (const ModelConfig& config : {Llama(), Gpt2(), tanh, tied, dropping}) {
    const auto text = HuggingFaceConfig(config, StoredType::kBF16);
    ASSERT_TRUE(text.ok());
    auto parsed = ParseHuggingFaceConfig(*text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, config) << *text;
  }
  ModelConfig odd = Gpt2();
  odd.kv_heads = 2;
  EXPECT_TRUE(absl::IsInvalidArgument(HuggingFaceConfig(odd, StoredType::kBF16).status()));
}

TEST(HuggingFaceConfigTest, DefaultsAreThoseOfTransformers) {
  const auto llama = ParseHuggingFaceConfig(
      R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":8,"num_attention_heads":2,"vocab_size":5,)"
      R"("max_position_embeddings":16,"intermediate_size":12,"rope_scaling":null,)"
      R"("rope_parameters":{"rope_theta":7.0,"rope_type":"default"}})");
  ASSERT_TRUE(llama.ok()) << llama.status();
  EXPECT_EQ(llama->kv_heads, 2);
  EXPECT_EQ(llama->head_dim, 4);
  EXPECT_EQ(llama->norm_eps, 1e-6);
  EXPECT_EQ(llama->rope_theta, 7);
  EXPECT_FALSE(llama->tied_head);
  const auto gpt2 = ParseHuggingFaceConfig(
      R"({"model_type":"gpt2","n_layer":1,"n_embd":8,"n_head":2,"vocab_size":5,"n_positions":16,"n_inner":null})");
  ASSERT_TRUE(gpt2.ok()) << gpt2.status();
  EXPECT_EQ(gpt2->ffn, 32);
  EXPECT_TRUE(gpt2->tied_head);
  EXPECT_EQ(gpt2->activation, Activation::kGeluTanh);
  EXPECT_EQ(gpt2->dropout, (DropoutConfig{.embedding = 0.1, .residual = 0.1, .attention = 0.1}));
  EXPECT_EQ(llama->dropout, DropoutConfig{});
}

TEST(HuggingFaceConfigTest, RefusesWhatWouldChangeTheNumbers) {
  const auto llama = nlohmann::json::parse(*HuggingFaceConfig(Llama(), StoredType::kF32));
  const auto gpt2 = nlohmann::json::parse(*HuggingFaceConfig(Gpt2(), StoredType::kF32));
  const struct {
    const nlohmann::json& base;
    const char* key;
    nlohmann::json value;
  } cases[] = {
      {llama, "model_type", "bert"},
      {llama, "model_type", nullptr},
      {llama, "hidden_act", "gelu"},
      {llama, "attention_bias", true},
      {llama, "mlp_bias", true},
      {llama, "rope_scaling", {{"rope_type", "llama3"}}},
      {llama, "rope_scaling", 4},
      {llama, "num_key_value_heads", 4},
      {llama, "hidden_size", -1},
      {llama, "hidden_size", 1e30},
      {llama, "hidden_size", nullptr},
      {llama, "rms_norm_eps", 0},
      {llama, "tie_word_embeddings", "yes"},
      {gpt2, "activation_function", "relu"},
      {gpt2, "n_head", 7},
      {gpt2, "n_layer", int64_t{1} << 40},
      {gpt2, "scale_attn_by_inverse_layer_idx", true},
      {gpt2, "scale_attn_weights", false},
      {gpt2, "resid_pdrop", 1.0},
      {gpt2, "embd_pdrop", -0.1},
      {gpt2, "attn_pdrop", "none"},
      {llama, "attention_dropout", true},
  };
  for (const auto& c : cases) {
    nlohmann::json changed = c.base;
    changed[c.key] = c.value;
    const auto status = ParseHuggingFaceConfig(changed.dump()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.key << ": " << status;
    EXPECT_NE(status.message().find(c.key), absl::string_view::npos) << status;
  }
}

TEST_F(ExportTest, TheFolderHoldsTheWeightsAndReadsBack) {
  for (const ModelConfig& config : {Llama(), Gpt2()}) {
    for (const StoredType type : {StoredType::kF32, StoredType::kBF16, StoredType::kF16}) {
      SetUp();
      const std::string out = folder_ + "/deeper/out/";
      const absl::Status status =
          ExportHuggingFace(FileOps::Real(), Checkpoint(config), out, {.weights = type});
      ASSERT_TRUE(status.ok()) << status;
      const auto model = HuggingFaceModel::Open(out);
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ(model->config(), config);
      std::vector<std::string> names;
      const std::vector<CheckpointTensor> tensors = Tensors(config);
      for (size_t i = 0; i < tensors.size(); ++i) {
        names.push_back(tensors[i].name);
        ASSERT_TRUE(model->Check(tensors[i].name, tensors[i].shape).ok());
        std::vector<float> expected = Weights(tensors[i], i), values(expected.size());
        ASSERT_TRUE(model->Read(tensors[i].name, tensors[i].shape, 0, values).ok());
        if (type == StoredType::kBF16) {
          for (float& value : expected) value = ToFloat(ToBFloat16(value));
        }
        if (type == StoredType::kF16) {
          for (float& value : expected) value = ToFloat(ToFloat16(value));
        }
        EXPECT_EQ(std::memcmp(values.data(), expected.data(), 4 * values.size()), 0) << tensors[i].name;
      }
      EXPECT_TRUE(model->Unused(names).empty());
      names.pop_back();
      EXPECT_EQ(model->Unused(names), (std::vector<std::string>{tensors.back().name}));
      for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
        EXPECT_TRUE(ParseStrictJson(*ReadFile(out + file, 1 << 20)).ok());
      }
      EXPECT_FALSE(std::filesystem::exists(folder_ + "/deeper/out.strata-export-tmp"));
    }
  }
}

TEST_F(ExportTest, WeightsHaveTheTypeOfTheTraining) {
  for (const auto& [extra, torch] : {std::pair{R"({"precision":"f16"})", "float16"},
                                     {R"({"precision":"f32"})", "float32"},
                                     {R"({"precision":"bf16"})", "bfloat16"},
                                     {"{}", "bfloat16"}}) {
    SetUp();
    ASSERT_TRUE(ExportHuggingFace(FileOps::Real(), Checkpoint(Llama(), extra), folder_ + "/out").ok());
    const auto config = ParseStrictJson(*ReadFile(folder_ + "/out/config.json", 1 << 20));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ((*config)["torch_dtype"], torch) << extra;
  }
}

TEST_F(ExportTest, TheTokenizerMapsEachByteToItself) {
  ASSERT_TRUE(ExportHuggingFace(FileOps::Real(), Checkpoint(Llama()), folder_ + "/out").ok());
  const auto root = ParseStrictJson(*ReadFile(folder_ + "/out/tokenizer.json", 1 << 20));
  ASSERT_TRUE(root.ok());
  const nlohmann::json& vocab = (*root)["model"]["vocab"];
  ASSERT_EQ(vocab.size(), 256);
  // Known values of GPT-2's alphabet: space is U+0120, newline U+010A, 0xAD U+0143.
  EXPECT_EQ(vocab["A"], 'A');
  EXPECT_EQ(vocab["\u0120"], ' ');
  EXPECT_EQ(vocab["\u010A"], '\n');
  EXPECT_EQ(vocab["\u0100"], 0);
  EXPECT_EQ(vocab["\u0143"], 0xAD);
  EXPECT_EQ(vocab["\u00FF"], 0xFF);
}

TEST_F(ExportTest, AnExistingFolderIsNotTouched) {
  const std::string checkpoint = Checkpoint(Llama());
  const std::string out = folder_ + "/out";
  ASSERT_TRUE(MakeDirectories(out).ok());
  Put(out + "/precious", "x");
  const absl::Status status = ExportHuggingFace(FileOps::Real(), checkpoint, out);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_NE(status.message().find("choose another"), absl::string_view::npos) << status;
  EXPECT_EQ(*ReadFile(out + "/precious", 10), "x");
  EXPECT_TRUE(absl::IsAlreadyExists(ExportHuggingFace(FileOps::Real(), checkpoint, out + "/precious")));
  EXPECT_TRUE(absl::IsAlreadyExists(ExportHuggingFace(FileOps::Real(), checkpoint, checkpoint)));
  ASSERT_TRUE(RemoveTree(out + "/precious").ok());
  EXPECT_TRUE(ExportHuggingFace(FileOps::Real(), checkpoint, out).ok()) << "an empty folder is fine";
}

TEST_F(ExportTest, DamageEndsInNoFolder) {
  const std::string checkpoint = Checkpoint(Llama());
  const std::string path = checkpoint + "/master.safetensors";
  std::string bytes = *ReadFile(path, 1 << 24);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  Put(path, bytes);
  EXPECT_TRUE(absl::IsDataLoss(ExportHuggingFace(FileOps::Real(), checkpoint, folder_ + "/out")));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/out"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/out.strata-export-tmp"));
}

TEST_F(ExportTest, AnEditedManifestIsDamage) {
  const std::string checkpoint = Checkpoint(Llama());
  const std::string path = checkpoint + "/" + kManifestName;
  const std::string bytes = *ReadFile(path, kManifestLimitBytes);
  const auto edit = [&](const std::string& from, const std::string& to) {
    const size_t at = bytes.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    Put(path, std::string(bytes).replace(at, from.size(), to));
  };
  const auto refused = [&](const ExportOptions& options = {}) {
    const absl::Status status = ExportHuggingFace(FileOps::Real(), checkpoint, folder_ + "/out", options);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_FALSE(std::filesystem::exists(folder_ + "/out"));
    return std::string(status.message());
  };
  for (const auto& [from, to, told] : {
           std::tuple("\"layers\":2", "\"layers\":3", "tensor model.layers.2."),
           std::tuple("\"layers\":2", "\"layers\":1", "has no tensor model.layers.1."),
           std::tuple("\"vocab\":256", "\"vocab\":512", "model.embed_tokens.weight of shape [512, 48]"),
           std::tuple("\"kv_heads\":2", "\"kv_heads\":3", "self_attn.k_proj.weight"),
           std::tuple("\"ffn\":64", "\"ffn\":32", "\"tensors\" has [64, 48]"),
           std::tuple("\"tied_head\":false", "\"tied_head\":true", "has no tensor lm_head.weight"),
           std::tuple("\"llama\"", "\"gpt2\"", "\"model\""),
       }) {
    edit(from, to);
    const std::string message = refused();
    EXPECT_NE(message.find(told), std::string::npos) << message;
    EXPECT_NE(message.find("manifest.json: \"model\""), std::string::npos) << message;
  }
  // What no shape tells, the digest does.
  edit("\"norm_eps\":1e-06", "\"norm_eps\":1e-05");
  EXPECT_NE(refused({.digest = Sha256Hex(bytes)}).find("digest"), std::string::npos);
  Put(path, bytes);
  EXPECT_TRUE(
      ExportHuggingFace(FileOps::Real(), checkpoint, folder_ + "/out", {.digest = Sha256Hex(bytes)}).ok());
}

TEST_F(ExportTest, NamesMayDifferAndShapesMayNot) {
  // As GPT2Model (not GPT2LMHeadModel) saves: no prefix, buffers among the weights, the head beside the
  // embedding.
  ModelConfig config = Gpt2();
  Put(folder_ + "/config.json", *HuggingFaceConfig(config, StoredType::kF32));
  const auto writer = SafetensorsWriter::Create(FileOps::Real(), folder_ + "/model.safetensors",
                                                {{"lm_head.weight", StoredType::kF32, {2, 2}},
                                                 {"h.0.attn.bias", StoredType::kF32, {1}},
                                                 {"h.0.ln_1.bias", StoredType::kF32, {1}},
                                                 {"h.0.attn.masked_bias", StoredType::kF32, {}},
                                                 {"ids", StoredType::kI64, {1}}},
                                                {}, 4096);
  ASSERT_TRUE(writer.ok());
  const std::vector<float> head = {1, 2, 3, 4};
  ASSERT_TRUE((*writer)->Append(0, 0, {reinterpret_cast<const char*>(head.data()), 16}).ok());
  for (size_t i = 1; i < 4; ++i) ASSERT_TRUE((*writer)->Append(i, 0, "abcd").ok());
  ASSERT_TRUE((*writer)->Append(4, 0, "abcdefgh").ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto model = HuggingFaceModel::Open(folder_);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<int64_t> two = {2, 2}, one = {1};
  std::vector<float> values(3);
  ASSERT_TRUE(model->Read("transformer.wte.weight", two, 1, values).ok());
  EXPECT_EQ(values, (std::vector<float>{2, 3, 4}));
  EXPECT_TRUE(model->Check("lm_head.weight", two).ok());
  EXPECT_TRUE(model->Check("transformer.h.0.ln_1.bias", one).ok());
  EXPECT_TRUE(absl::IsNotFound(model->Check("transformer.h.1.ln_1.bias", one)));
  EXPECT_TRUE(absl::IsInvalidArgument(model->Check("ids", one)));
  const absl::Status wrong = model->Check("transformer.h.0.ln_1.bias", two);
  EXPECT_TRUE(absl::IsInvalidArgument(wrong));
  for (const char* word : {"h.0.ln_1.bias", "[1]", "[2, 2]"}) {
    EXPECT_NE(wrong.message().find(word), absl::string_view::npos) << wrong;
  }
  EXPECT_EQ(model->Unused({"transformer.wte.weight", "transformer.h.0.ln_1.bias"}),
            (std::vector<std::string>{"ids"}));
}

TEST_F(ExportTest, ReadsTheReferencePack) {
  const char* shared = std::getenv("STRATA_SHARED");
  const std::string pack = absl::StrCat(shared == nullptr ? "" : shared, "/golden/gpt2_char");
  if (shared == nullptr || !std::filesystem::exists(pack)) {
    GTEST_SKIP() << "STRATA_SHARED names no folder with golden/gpt2_char";
  }
  const auto model = HuggingFaceModel::Open(pack);
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelConfig& config = model->config();
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.hidden, 128);
  EXPECT_EQ(config.ffn, 512);
  EXPECT_EQ(config.vocab, 65);
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : Tensors(config)) {
    EXPECT_TRUE(model->Check(tensor.name, tensor.shape).ok()) << model->Check(tensor.name, tensor.shape);
    names.push_back(tensor.name);
  }
  EXPECT_TRUE(model->Unused(names).empty());
  // A trained LayerNorm gain stays near one.
  std::vector<float> gain(128);
  const std::vector<int64_t> shape = {128};
  ASSERT_TRUE(model->Read("transformer.ln_f.weight", shape, 0, gain).ok());
  for (const float value : gain) EXPECT_NEAR(value, 1, 0.7);
}

}  // namespace
}  // namespace strata
