#include "proto/job_spec/validate.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/checked.h"
#include "google/protobuf/descriptor.h"
#include "offload/model/moments.h"
#include "proto/job_spec/text.h"

namespace strata {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kViolationsMax = 20;
constexpr int kMicroBatchAutoMax = 8;
constexpr int64_t kParametersMax = int64_t{1} << 40;
constexpr int64_t kTokensPerStepMax = int64_t{1} << 31;
constexpr int64_t kBudgetMax = int64_t{1} << 50;
constexpr int kIoDepthMax = 256;
constexpr int64_t kChunkMin = int64_t{64} << 10;
constexpr int64_t kChunkMax = int64_t{1} << 30;
// Fixed-shape reductions have leaves of 4096 fp32 elements; a chunk holds whole leaves.
constexpr int64_t kChunkUnit = int64_t{4096} * 4;
// Computed with as float: a smaller one would become zero there, and what it protects from dividing by zero
// would be divided by zero.
constexpr double kEpsMin = 1e-30;
// Below this a learning rate changes no weight in fp32, and products with it become zero.
constexpr double kLrMin = 1e-20;
constexpr double kLrScaleMin = 1e-6;
// A norm to clip to beyond these is a slip of the pen, and its square no float.
constexpr int kNameMax = 50;
constexpr size_t kStringMax = 4096;
constexpr int kPathsMax = 4096;
constexpr int kPatternsMax = 256;  // parameter groups; patterns of freeze
constexpr double kLossScaleMax = 0x1p40;

// Collects violations and offers the checks that many fields share. Every check returns whether it held, so
// that a rule over two fields is only judged when each alone is sane.
class Checker {
 public:
  bool Require(bool condition, std::string field, std::string description) {
    if (!condition && violations_.size() < kViolationsMax) {
      violations_.push_back({.field = std::move(field), .description = std::move(description)});
    }
    return condition;
  }

  bool Range(const std::string& field, int64_t value, int64_t low, int64_t high) {
    return Require(value >= low && value <= high, field,
                   absl::StrCat("is ", value, ": must be from ", low, " to ", high));
  }

  bool Bytes(const std::string& field, int64_t value, int64_t low, int64_t high) {
    return Require(value >= low && value <= high, field,
                   absl::StrCat("is ", value < 0 ? absl::StrCat(value) : FormatBytes(value),
                                ": must be from ", FormatBytes(low), " to ", FormatBytes(high)));
  }

  // Judges a double that Generic() found finite or not: a non-finite one is reported there, once.
  bool Real(const std::string& field, double value, bool holds, absl::string_view rule) {
    if (!std::isfinite(value)) return false;
    return Require(holds, field, absl::StrCat("is ", value, ": ", rule));
  }

  bool Name(const std::string& field, const std::string& value) {
    const auto word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    const bool good = !value.empty() && value.size() <= kNameMax && word(value.front()) &&
                      word(value.back()) &&
                      std::all_of(value.begin(), value.end(), [&](char c) { return word(c) || c == '-'; });
    return Require(
        good, field,
        absl::StrCat("'", PrintableExcerpt(value),
                     "' is not a name: use a-z, 0-9 and dashes inside, at most ", kNameMax, " characters"));
  }

  // What holds for every message whatever it means: known enum values, finite numbers, readable text, no
  // fields of a newer client that would be dropped in silence.
  void Generic(const Message& message, const std::string& prefix) {
    const Reflection& reflection = *message.GetReflection();
    Require(reflection.GetUnknownFields(message).empty(), prefix,
            "has fields this program does not know: the sender is newer; use the same version on both sides");
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      const std::string path = prefix.empty() ? field->name() : absl::StrCat(prefix, ".", field->name());
      const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
      for (int i = 0; i < count && violations_.size() < kViolationsMax; ++i) {
        GenericValue(message, *field, i, field->is_repeated() ? absl::StrCat(path, "[", i, "]") : path);
      }
    }
  }

  std::vector<FieldViolation> Take() && { return std::move(violations_); }

 private:
  void GenericValue(const Message& message, const FieldDescriptor& field, int index,
                    const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    const bool repeated = field.is_repeated();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        Generic(repeated ? reflection.GetRepeatedMessage(message, &field, index)
                         : reflection.GetMessage(message, &field),
                path);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const double value = repeated ? reflection.GetRepeatedDouble(message, &field, index)
                                      : reflection.GetDouble(message, &field);
        Require(std::isfinite(value), path, "is not a finite number");
        break;
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int value = repeated ? reflection.GetRepeatedEnumValue(message, &field, index)
                                   : reflection.GetEnumValue(message, &field);
        Require(field.enum_type()->FindValueByNumber(value) != nullptr, path,
                absl::StrCat("has the unknown value ", value, ": one of ",
                             absl::StrJoin(EnumTexts(*field.enum_type()), ", ")));
        break;
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string value = repeated ? reflection.GetRepeatedString(message, &field, index)
                                           : reflection.GetString(message, &field);
        Require(value.size() <= kStringMax, path,
                absl::StrCat("has ", value.size(), " bytes: at most ", kStringMax));
        Require(!FindBadText(value).has_value(), path, "holds control characters or is not UTF-8");
        break;
      }
      default:
        break;
    }
  }

  std::vector<FieldViolation> violations_;
};

int64_t FfnDefault(const v1::ModelConfig& config) {
  const int64_t hidden = config.hidden();
  if (config.architecture() == v1::ARCHITECTURE_GPT2) return 4 * hidden;
  return RoundUp(8 * hidden / 3, int64_t{64});
}

void ApplyModelDefaults(v1::ModelConfig& config, const std::string& tokenizer) {
  const bool llama = config.architecture() == v1::ARCHITECTURE_LLAMA;
  const int64_t ffn = FfnDefault(config);
  if (config.kv_heads() == 0) config.set_kv_heads(config.heads());
  if (config.head_dim() == 0 && config.heads() > 0) config.set_head_dim(config.hidden() / config.heads());
  if (config.ffn() == 0 && config.hidden() > 0 && ffn <= INT32_MAX) config.set_ffn(static_cast<int32_t>(ffn));
  if (config.vocab() == 0 && tokenizer == "bytes") config.set_vocab(256);
  if (!llama && config.activation() == v1::ACTIVATION_UNSPECIFIED) {
    config.set_activation(v1::ACTIVATION_GELU_TANH);
  }
  if (config.norm_eps() == 0) config.set_norm_eps(1e-5);
  if (llama && config.rope_theta() == 0) config.set_rope_theta(10000);
  if (!config.has_tied_head()) config.set_tied_head(!llama);
}

void ApplyTrainingDefaults(v1::TrainingSpec& training) {
  if (training.micro_batch() == 0 && training.global_batch() > 0) {
    int32_t micro = std::min(kMicroBatchAutoMax, training.global_batch());
    while (training.global_batch() % micro != 0) --micro;
    training.set_micro_batch(micro);
  }
  v1::OptimizerSpec& optimizer = *training.mutable_optimizer();
  if (optimizer.name().empty()) optimizer.set_name("adamw");
  if (optimizer.betas().empty()) {
    optimizer.add_betas(0.9);
    optimizer.add_betas(0.95);
  }
  if (optimizer.eps() == 0) optimizer.set_eps(1e-8);
  if (!optimizer.has_weight_decay()) optimizer.set_weight_decay(0.1);
  if (training.schedule().name().empty()) training.mutable_schedule()->set_name("constant");
  if (training.precision() == v1::PRECISION_UNSPECIFIED) training.set_precision(v1::PRECISION_BF16);
  if (training.precision() == v1::PRECISION_FP16) {
    v1::LossScaleSpec& scale = *training.mutable_loss_scale();
    if (scale.initial() == 0) scale.set_initial(65536);
    if (scale.growth_interval() == 0) scale.set_growth_interval(2000);
    if (scale.min() == 0) scale.set_min(std::min(1.0, scale.initial()));
    if (scale.max() == 0) scale.set_max(std::max(0x1p24, scale.initial()));
  }
  if (training.max_skipped_steps() == 0) training.set_max_skipped_steps(20);
  if (training.compute_threads() == 0) training.set_compute_threads(kDefaultComputeThreads);
}

void CheckHeads(const v1::ModelConfig& config, Checker& check) {
  const std::string at = "model.config.";
  const bool llama = config.architecture() == v1::ARCHITECTURE_LLAMA;
  const bool divides = check.Require(
      config.hidden() % config.heads() == 0, at + "heads",
      absl::StrCat("is ", config.heads(), ", which does not divide hidden = ", config.hidden(),
                   ": choose a divisor such as ", NearestDivisor(config.hidden(), config.heads())));
  const bool dim_known = check.Range(at + "head_dim", config.head_dim(), 1, 1024);
  if (llama) {
    if (dim_known && divides) {
      check.Require(
          config.head_dim() % 2 == 0, at + "head_dim",
          absl::StrCat("is ", config.head_dim(),
                       ": rotary positions need an even number (hidden / heads); change hidden or heads"));
    }
    if (check.Range(at + "kv_heads", config.kv_heads(), 1, config.heads())) {
      check.Require(
          config.heads() % config.kv_heads() == 0, at + "kv_heads",
          absl::StrCat("is ", config.kv_heads(), ", which does not divide heads = ", config.heads(),
                       ": choose a divisor such as ", NearestDivisor(config.heads(), config.kv_heads())));
    }
    return;
  }
  check.Require(
      config.kv_heads() == config.heads(), at + "kv_heads",
      absl::StrCat("is ", config.kv_heads(), ": gpt2 has no grouped-query attention; leave it out"));
  if (divides && dim_known) {
    check.Require(config.head_dim() == config.hidden() / config.heads(), at + "head_dim",
                  absl::StrCat("is ", config.head_dim(), ": gpt2 has hidden / heads = ",
                               config.hidden() / config.heads(), "; leave it out"));
  }
}

void CheckModelConfig(const v1::ModelConfig& config, const v1::DataSpec& data, Checker& check) {
  const std::string at = "model.config.";
  const bool known = check.Require(
      config.architecture() != v1::ARCHITECTURE_UNSPECIFIED, at + "architecture",
      absl::StrCat("is missing: one of ", absl::StrJoin(EnumTexts(*v1::Architecture_descriptor()), ", ")));
  const bool layers = check.Range(at + "layers", config.layers(), 1, 4096);
  const bool hidden = check.Range(at + "hidden", config.hidden(), 1, 1 << 17);
  const bool heads = check.Range(at + "heads", config.heads(), 1, 4096);
  if (known && hidden && heads) CheckHeads(config, check);
  const bool ffn = !hidden || check.Range(at + "ffn", config.ffn(), 1, 1 << 20);
  const bool vocab = data.tokenizer() != "bytes" || check.Range(at + "vocab", config.vocab(), 256, 1 << 22);
  const bool max_seq = check.Range(at + "max_seq", config.max_seq(), 1, 1 << 22);
  check.Real(at + "norm_eps", config.norm_eps(), config.norm_eps() >= kEpsMin && config.norm_eps() <= 0.1,
             "must be from 1e-30 to 0.1, such as 1e-5");
  if (known && config.architecture() == v1::ARCHITECTURE_LLAMA) {
    check.Real(at + "rope_theta", config.rope_theta(),
               config.rope_theta() >= 1 && config.rope_theta() <= 1e10,
               "must be from 1 to 1e10, such as 10000");
    check.Require(config.activation() == v1::ACTIVATION_UNSPECIFIED, at + "activation",
                  "is for gpt2 only: llama has SwiGLU; leave it out");
  } else if (known) {
    check.Require(config.rope_theta() == 0, at + "rope_theta", "is for llama only: leave it out");
  }
  if (!(known && layers && hidden && heads && ffn && vocab && max_seq)) return;
  const std::optional<int64_t> parameters = CountParameters(config);
  check.Require(parameters.has_value() && *parameters <= kParametersMax, "model.config",
                absl::StrCat("describes a model of ",
                             parameters ? absl::StrFormat("%.3g", double(*parameters)) : "more than 9e18",
                             " parameters: at most ", absl::StrFormat("%.3g", double(kParametersMax)),
                             "; lower layers, hidden, ffn or vocab"));
}

// Whether a folder's model may have dropout is decided where its config.json is known (BuildModelLayout).
void CheckDropout(const v1::ModelSpec& model, Checker& check) {
  const v1::DropoutSpec& dropout = model.dropout();
  const bool llama = model.has_config() && model.config().architecture() == v1::ARCHITECTURE_LLAMA;
  for (const auto& [field, value] : {std::pair("model.dropout.embedding", dropout.embedding()),
                                     std::pair("model.dropout.residual", dropout.residual()),
                                     std::pair("model.dropout.attention", dropout.attention())}) {
    if (!check.Real(field, value, value >= 0 && value < 1, "must be at least 0 and below 1, such as 0.1"))
      continue;
    check.Require(!llama || value == 0, field,
                  absl::StrCat("is ", value, ": a llama has no dropout; leave it out"));
  }
  check.Real("model.dropout.attention", dropout.attention(),
             llama || !(dropout.attention() > 0 && dropout.attention() < 1),
             "attention's probabilities are never in memory, so none are dropped; write 0 or leave it out");
}

void CheckData(const v1::JobSpec& spec, Checker& check) {
  const v1::DataSpec& data = spec.data();
  check.Require(data.train_size() > 0, "data.train", "is missing: give at least one text file");
  check.Require(data.train_size() <= kPathsMax, "data.train",
                absl::StrCat("has too many files: at most ", kPathsMax));
  check.Require(data.eval_size() <= kPathsMax, "data.eval",
                absl::StrCat("has too many files: at most ", kPathsMax));
  for (int i = 0; i < data.train_size() && i < kPathsMax; ++i) {
    check.Require(!data.train(i).empty(), absl::StrCat("data.train[", i, "]"),
                  "is empty: give the path of a text file");
  }
  for (int i = 0; i < data.eval_size() && i < kPathsMax; ++i) {
    check.Require(!data.eval(i).empty(), absl::StrCat("data.eval[", i, "]"),
                  "is empty: give the path of a text file");
  }
  check.Real("data.eval_fraction", data.eval_fraction(),
             data.eval_fraction() >= 0 && data.eval_fraction() < 1,
             "must be at least 0 and below 1, such as 0.05");
  check.Require(data.eval_size() == 0 || data.eval_fraction() == 0, "data.eval_fraction",
                "and data.eval exclude each other: keep one of them");
  check.Require(
      data.tokenizer() == "bytes", "data.tokenizer",
      absl::StrCat("'", PrintableExcerpt(data.tokenizer()), "' is not known: this version has only bytes"));
  const bool seq = check.Range("data.seq_len", data.seq_len(), 1, 1 << 22);
  if (seq && spec.model().has_config() && spec.model().config().max_seq() > 0) {
    check.Require(data.seq_len() <= spec.model().config().max_seq(), "data.seq_len",
                  absl::StrCat("is ", data.seq_len(), ", above model.config.max_seq = ",
                               spec.model().config().max_seq(), ": lower it or raise max_seq"));
  }
}

void CheckBetas(const std::string& field, const google::protobuf::RepeatedField<double>& betas,
                Checker& check) {
  if (!check.Require(betas.size() == 2, field,
                     absl::StrCat("has ", betas.size(), " numbers: give two, such as [0.9, 0.95]"))) {
    return;
  }
  for (int i = 0; i < 2; ++i) {
    check.Real(absl::StrCat(field, "[", i, "]"), betas[i], betas[i] >= 0 && betas[i] < 1,
               "must be at least 0 and below 1");
  }
}

void CheckWeightDecay(const std::string& field, double value, Checker& check) {
  check.Real(field, value, value >= 0 && value <= 10, "must be from 0 to 10, such as 0.1");
}

// Whether patterns match anything is decided where the model's tensors are known (AssignGroups).
void CheckGroups(const v1::OptimizerSpec& optimizer, Checker& check) {
  const std::string all = "training.optimizer.groups";
  if (!check.Require(optimizer.groups_size() <= kPatternsMax, all,
                     absl::StrCat("has ", optimizer.groups_size(), " groups: at most ", kPatternsMax))) {
    return;
  }
  for (int i = 0; i < optimizer.groups_size(); ++i) {
    const v1::ParameterGroup& group = optimizer.groups(i);
    const std::string at = absl::StrCat(all, "[", i, "].");
    check.Require(!group.match().empty(), at + "match",
                  "is empty: give a pattern for tensor names, such as \"*.mlp.*\"");
    if (group.has_lr_scale()) {
      check.Real(at + "lr_scale", group.lr_scale(),
                 group.lr_scale() >= kLrScaleMin && group.lr_scale() <= 1000,
                 "must be from 1e-6 to 1000; training.freeze keeps tensors as they are");
    }
    if (group.betas_size() > 0) CheckBetas(at + "betas", group.betas(), check);
    if (group.has_weight_decay()) CheckWeightDecay(at + "weight_decay", group.weight_decay(), check);
  }
}

void CheckOptimizer(const v1::OptimizerSpec& optimizer, Checker& check) {
  const std::string at = "training.optimizer.";
  check.Require(MomentsOfOptimizer(optimizer.name()).has_value(), at + "name",
                absl::StrCat("'", PrintableExcerpt(optimizer.name()), "' is not known: choose one of ",
                             kOptimizerNames));
  check.Real(at + "lr", optimizer.lr(), optimizer.lr() >= kLrMin && optimizer.lr() <= 10,
             "must be from 1e-20 to 10, such as 1e-3");
  CheckBetas(at + "betas", optimizer.betas(), check);
  check.Real(at + "eps", optimizer.eps(), optimizer.eps() >= kEpsMin && optimizer.eps() <= 1,
             "must be from 1e-30 to 1, such as 1e-8");
  CheckWeightDecay(at + "weight_decay", optimizer.weight_decay(), check);
  CheckGroups(optimizer, check);
}

void CheckLossScale(const v1::TrainingSpec& training, Checker& check) {
  const std::string at = "training.loss_scale";
  if (training.precision() != v1::PRECISION_FP16) {
    check.Require(
        !training.has_loss_scale(), at,
        "is for training.precision: fp16 only: fp32 and bf16 have the range of float; leave it out");
    return;
  }
  const v1::LossScaleSpec& scale = training.loss_scale();
  const auto power = [&](const char* name, double value) {
    int exponent = 0;
    return check.Real(
        absl::StrCat(at, ".", name), value,
        value >= 1 / kLossScaleMax && value <= kLossScaleMax && std::frexp(value, &exponent) == 0.5,
        "must be a power of two from 2^-40 to 2^40, such as 65536, so that scaling is exact");
  };
  const bool initial = power("initial", scale.initial());
  if (power("min", scale.min()) && initial) {
    check.Require(scale.min() <= scale.initial(), at + ".min",
                  absl::StrCat("is ", scale.min(), ", above loss_scale.initial = ", scale.initial()));
  }
  if (power("max", scale.max()) && initial) {
    check.Require(scale.max() >= scale.initial(), at + ".max",
                  absl::StrCat("is ", scale.max(), ", below loss_scale.initial = ", scale.initial()));
  }
  check.Range(at + ".growth_interval", scale.growth_interval(), 1, 1'000'000'000);
}

void CheckFreeze(const v1::TrainingSpec& training, Checker& check) {
  const std::string at = "training.freeze";
  check.Require(training.freeze_size() <= kPatternsMax, at,
                absl::StrCat("has ", training.freeze_size(), " patterns: at most ", kPatternsMax));
  for (int i = 0; i < training.freeze_size() && i < kPatternsMax; ++i) {
    check.Require(!training.freeze(i).empty(), absl::StrCat(at, "[", i, "]"),
                  "is empty: give a pattern for tensor names, such as \"*embed*\"");
  }
}

void CheckSchedule(const v1::TrainingSpec& training, Checker& check) {
  const v1::ScheduleSpec& schedule = training.schedule();
  const std::string at = "training.schedule.";
  check.Require(schedule.name() == "constant" || schedule.name() == "cosine" || schedule.name() == "linear",
                at + "name",
                absl::StrCat("'", PrintableExcerpt(schedule.name()),
                             "' is not known: one of constant, cosine, linear"));
  check.Require(
      schedule.warmup_steps() >= 0 && schedule.warmup_steps() <= std::max<int64_t>(training.steps(), 0),
      at + "warmup_steps",
      absl::StrCat("is ", schedule.warmup_steps(),
                   ": must be from 0 to training.steps = ", training.steps()));
  if (!check.Real(at + "min_lr", schedule.min_lr(), schedule.min_lr() >= 0, "must be at least 0")) return;
  check.Require(
      schedule.name() != "constant" || schedule.min_lr() == 0, at + "min_lr",
      "has no meaning for the constant schedule: leave it out, or set schedule.name to cosine or linear");
  check.Real(at + "min_lr", schedule.min_lr(),
             !(training.optimizer().lr() > 0) || schedule.min_lr() <= training.optimizer().lr(),
             absl::StrCat("must not be above training.optimizer.lr = ", training.optimizer().lr()));
}

void CheckTraining(const v1::JobSpec& spec, Checker& check) {
  const v1::TrainingSpec& training = spec.training();
  check.Range("training.steps", training.steps(), 1, 1'000'000'000);
  const bool global = check.Range("training.global_batch", training.global_batch(), 1, 1 << 20);
  if (global && check.Range("training.micro_batch", training.micro_batch(), 1, training.global_batch())) {
    check.Require(training.global_batch() % training.micro_batch() == 0, "training.micro_batch",
                  absl::StrCat("is ", training.micro_batch(), ", which does not divide global_batch = ",
                               training.global_batch(), ": choose a divisor such as ",
                               NearestDivisor(training.global_batch(), training.micro_batch()), ", or auto"));
  }
  if (global && spec.data().seq_len() > 0) {
    const int64_t tokens = int64_t{training.global_batch()} * spec.data().seq_len();
    check.Require(
        tokens <= kTokensPerStepMax, "training.global_batch",
        absl::StrCat("times data.seq_len is ", tokens, " tokens a step: at most ", kTokensPerStepMax));
  }
  CheckOptimizer(training.optimizer(), check);
  CheckSchedule(training, check);
  check.Real("training.grad_clip", training.grad_clip(),
             training.grad_clip() == 0 ||
                 (training.grad_clip() >= kGradClipMin && training.grad_clip() <= kGradClipMax),
             "must be 0, which means no clipping, or from 1e-12 to 1e12, such as 1");
  check.Require(
      training.eval_every_steps() >= 0, "training.eval_every_steps",
      absl::StrCat("is ", training.eval_every_steps(), ": must be at least 0; 0 means only at the end"));
  check.Range("training.compute_threads", training.compute_threads(), 1, 256);
  check.Range("training.max_skipped_steps", training.max_skipped_steps(), 1, 1'000'000);
  CheckLossScale(training, check);
  CheckFreeze(training, check);
}

void CheckMemory(const v1::JobSpec& spec, Checker& check) {
  const v1::MemorySpec& memory = spec.memory();
  check.Bytes("memory.device", memory.device(), 0, kBudgetMax);
  check.Bytes("memory.host", memory.host(), 0, kBudgetMax);
  check.Bytes("memory.nvme", memory.nvme(), 0, kBudgetMax);
  check.Require(
      memory.mode() != v1::MODE_OVERLAP || !(spec.training().grad_clip() > 0), "memory.mode",
      absl::StrCat("overlap updates a block before the global norm is known, so it cannot clip: write "
                   "forward-overlap or speculative, or set training.grad_clip to 0 (it is ",
                   spec.training().grad_clip(), ")"));
  if (memory.prefetch_depth() != 0) check.Range("memory.prefetch_depth", memory.prefetch_depth(), 1, 16);
  if (memory.io_threads() != 0) check.Range("memory.io_threads", memory.io_threads(), 1, 8);
  for (const auto& [field, depth] : {std::pair("memory.io.read_depth", memory.io().read_depth()),
                                     std::pair("memory.io.write_depth", memory.io().write_depth())}) {
    if (depth != 0) check.Range(field, depth, 1, kIoDepthMax);
  }
  const auto required = [&](v1::Feature feature) {
    return std::count(memory.require().begin(), memory.require().end(), feature) > 0;
  };
  check.Require(!required(v1::FEATURE_O_DIRECT) || memory.io().direct() != v1::DIRECT_IO_OFF,
                "memory.require", "has o_direct, but memory.io.direct is off: remove one of them");
  check.Require(!required(v1::FEATURE_GPUDIRECT) || memory.io().direct() != v1::DIRECT_IO_OFF,
                "memory.require", "has gpudirect, but memory.io.direct is off: remove one of them");
  for (const v1::Feature feature : {v1::FEATURE_IO_URING, v1::FEATURE_REGISTERED_BUFFERS}) {
    check.Require(!required(feature) || memory.io().backend() != v1::IO_BACKEND_THREADS, "memory.require",
                  absl::StrCat("has ", EnumText(*v1::Feature_descriptor()->FindValueByNumber(feature)),
                               ", but memory.io.backend is threads: remove one of them"));
  }
  if (memory.chunk() != 0 && check.Bytes("memory.chunk", memory.chunk(), kChunkMin, kChunkMax)) {
    check.Require(memory.chunk() % kChunkUnit == 0, "memory.chunk",
                  absl::StrCat("is ", memory.chunk(), " bytes: must be a multiple of 16 KiB, such as ",
                               FormatBytes(std::min(RoundUp(memory.chunk(), kChunkUnit), kChunkMax))));
  }
}

void CheckRest(const v1::JobSpec& spec, Checker& check) {
  check.Require(
      spec.checkpoint().every_steps() >= 0, "checkpoint.every_steps",
      absl::StrCat("is ", spec.checkpoint().every_steps(), ": must be at least 0; 0 means only at the end"));
  check.Range("checkpoint.keep_last", spec.checkpoint().keep_last(), 1, 1000);
  check.Name("scheduling.queue", spec.scheduling().queue());
  check.Range("scheduling.priority", spec.scheduling().priority(), 0, 100);
  check.Range("scheduling.max_failures", spec.scheduling().max_failures(), 0, 1000);
}

}  // namespace

void ApplyDefaults(v1::JobSpec& spec) {
  if (spec.name().empty()) spec.set_name("job");
  if (spec.data().tokenizer().empty()) spec.mutable_data()->set_tokenizer("bytes");
  if (spec.model().has_config()) {
    ApplyModelDefaults(*spec.mutable_model()->mutable_config(), spec.data().tokenizer());
  }
  ApplyTrainingDefaults(*spec.mutable_training());
  v1::MemorySpec& memory = *spec.mutable_memory();
  if (memory.io_threads() == 0) memory.set_io_threads(1);
  v1::CheckpointSpec& checkpoint = *spec.mutable_checkpoint();
  if (checkpoint.keep_last() == 0) checkpoint.set_keep_last(3);
  if (!checkpoint.has_on_stop()) checkpoint.set_on_stop(true);
  v1::SchedulingSpec& scheduling = *spec.mutable_scheduling();
  if (scheduling.queue().empty()) scheduling.set_queue("default");
  if (scheduling.priority() == 0) scheduling.set_priority(50);
  if (!scheduling.has_max_failures()) scheduling.set_max_failures(3);
}

std::vector<FieldViolation> Validate(const v1::JobSpec& given) {
  v1::JobSpec spec = given;
  ApplyDefaults(spec);
  Checker check;
  check.Generic(given, "");
  check.Name("name", spec.name());
  if (spec.model().has_config()) {
    CheckModelConfig(spec.model().config(), spec.data(), check);
  } else {
    check.Require(!spec.model().from().empty(), "model",
                  "is missing: give model.config, or model.from with a Hugging Face folder");
  }
  CheckDropout(spec.model(), check);
  CheckData(spec, check);
  CheckTraining(spec, check);
  CheckMemory(spec, check);
  CheckRest(spec, check);
  return std::move(check).Take();
}

std::optional<int64_t> CountParameters(const v1::ModelConfig& config) {
  bool fits = true;
  const auto size = [&](std::initializer_list<int64_t> factors) {
    int64_t product = 1;
    for (const int64_t factor : factors) {
      const std::optional<int64_t> next = CheckedMul(product, factor);
      fits = fits && factor >= 0 && next.has_value();
      product = next.value_or(0);
    }
    return product;
  };
  const auto sum = [&](std::initializer_list<int64_t> terms) {
    int64_t total = 0;
    for (const int64_t term : terms) {
      const std::optional<int64_t> next = CheckedAdd(total, term);
      fits = fits && next.has_value();
      total = next.value_or(0);
    }
    return total;
  };
  const int64_t h = config.hidden(), f = config.ffn(), v = config.vocab();
  const int64_t head = config.tied_head() ? 0 : size({v, h});
  int64_t total = 0;
  if (config.architecture() == v1::ARCHITECTURE_LLAMA) {
    const int64_t q = size({config.heads(), config.head_dim()});
    const int64_t kv = size({config.kv_heads(), config.head_dim()});
    // Two RMSNorm gains; query and output; key and value; gate, up and down.
    const int64_t block = sum({size({2, h}), size({2, h, q}), size({2, h, kv}), size({3, h, f})});
    total = sum({size({v, h}), size({config.layers(), block}), h, head});
  } else {
    // Two LayerNorms; query, key, value and output with biases; up and down with biases.
    const int64_t block = sum({size({4, h}), size({4, h, h}), size({4, h}), size({2, h, f}), f, h});
    total =
        sum({size({v, h}), size({config.max_seq(), h}), size({config.layers(), block}), size({2, h}), head});
  }
  if (!fits) return std::nullopt;
  return total;
}

}  // namespace strata
