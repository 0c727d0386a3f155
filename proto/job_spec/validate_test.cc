#include "proto/job_spec/validate.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using testing::HasSubstr;

v1::JobSpec GoodSpec() {
  v1::JobSpec spec;
  spec.set_name("austen");
  v1::ModelConfig& config = *spec.mutable_model()->mutable_config();
  config.set_architecture(v1::ARCHITECTURE_LLAMA);
  config.set_layers(6);
  config.set_hidden(384);
  config.set_heads(6);
  config.set_kv_heads(2);
  config.set_max_seq(256);
  spec.mutable_data()->add_train("/data/pride.txt");
  spec.mutable_data()->set_seq_len(256);
  v1::TrainingSpec& training = *spec.mutable_training();
  training.set_steps(300);
  training.set_global_batch(32);
  training.mutable_optimizer()->set_lr(1e-3);
  return spec;
}

TEST(ApplyDefaultsTest, WritesTheDocumentedDefaults) {
  v1::JobSpec spec = GoodSpec();
  ApplyDefaults(spec);
  const v1::ModelConfig& config = spec.model().config();
  EXPECT_EQ(config.ffn(), 1024);
  EXPECT_EQ(config.head_dim(), 64);
  EXPECT_EQ(config.vocab(), 256);
  EXPECT_EQ(config.norm_eps(), 1e-5);
  EXPECT_EQ(config.rope_theta(), 10000);
  EXPECT_FALSE(config.tied_head());
  EXPECT_EQ(config.activation(), v1::ACTIVATION_UNSPECIFIED);
  EXPECT_EQ(spec.data().tokenizer(), "bytes");
  EXPECT_EQ(spec.training().micro_batch(), 8);
  EXPECT_EQ(spec.training().compute_threads(), 2);
  EXPECT_EQ(spec.training().precision(), v1::PRECISION_BF16);
  EXPECT_EQ(spec.training().optimizer().name(), "adamw");
  EXPECT_THAT(spec.training().optimizer().betas(), testing::ElementsAre(0.9, 0.95));
  EXPECT_EQ(spec.training().optimizer().weight_decay(), 0.1);
  EXPECT_EQ(spec.training().schedule().name(), "constant");
  EXPECT_EQ(spec.memory().io_threads(), 1);
  EXPECT_EQ(spec.memory().io().direct(), v1::DIRECT_IO_UNSPECIFIED);
  EXPECT_EQ(spec.memory().device(), 0);
  EXPECT_EQ(spec.memory().mode(), v1::MODE_UNSPECIFIED);
  EXPECT_EQ(spec.checkpoint().keep_last(), 3);
  EXPECT_TRUE(spec.checkpoint().on_stop());
  EXPECT_EQ(spec.scheduling().priority(), 50);
  EXPECT_EQ(spec.scheduling().max_failures(), 3);
  EXPECT_EQ(spec.training().max_skipped_steps(), 20);
  v1::JobSpec again = spec;
  ApplyDefaults(again);
  EXPECT_EQ(again.SerializeAsString(), spec.SerializeAsString());
}

TEST(ApplyDefaultsTest, OnlyFp16HasALossScale) {
  v1::JobSpec spec = GoodSpec();
  ApplyDefaults(spec);
  EXPECT_FALSE(spec.training().has_loss_scale());
  spec.mutable_training()->set_precision(v1::PRECISION_FP16);
  ApplyDefaults(spec);
  EXPECT_EQ(spec.training().loss_scale().initial(), 65536);
  EXPECT_EQ(spec.training().loss_scale().growth_interval(), 2000);
  EXPECT_EQ(spec.training().loss_scale().min(), 1);
  EXPECT_EQ(spec.training().loss_scale().max(), 16777216);
  EXPECT_TRUE(Validate(spec).empty()) << FormatViolations("", Validate(spec));
  spec.mutable_training()->mutable_loss_scale()->Clear();
  spec.mutable_training()->mutable_loss_scale()->set_initial(0.25);
  ApplyDefaults(spec);
  EXPECT_EQ(spec.training().loss_scale().min(), 0.25);
  EXPECT_TRUE(Validate(spec).empty()) << FormatViolations("", Validate(spec));
}

TEST(ApplyDefaultsTest, Gpt2HasItsOwnDefaults) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_model()->mutable_config()->set_architecture(v1::ARCHITECTURE_GPT2);
  spec.mutable_model()->mutable_config()->clear_kv_heads();
  ApplyDefaults(spec);
  EXPECT_EQ(spec.model().config().ffn(), 1536);
  EXPECT_EQ(spec.model().config().kv_heads(), 6);
  EXPECT_EQ(spec.model().config().activation(), v1::ACTIVATION_GELU_TANH);
  EXPECT_TRUE(spec.model().config().tied_head());
  EXPECT_EQ(spec.model().config().rope_theta(), 0);
  EXPECT_TRUE(Validate(spec).empty()) << FormatViolations("", Validate(spec));
}

TEST(ApplyDefaultsTest, KeepsExplicitZerosOfOptionalFields) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_training()->mutable_optimizer()->set_weight_decay(0);
  spec.mutable_scheduling()->set_max_failures(0);
  spec.mutable_checkpoint()->set_on_stop(false);
  ApplyDefaults(spec);
  EXPECT_EQ(spec.training().optimizer().weight_decay(), 0);
  EXPECT_EQ(spec.scheduling().max_failures(), 0);
  EXPECT_FALSE(spec.checkpoint().on_stop());
}

TEST(ApplyDefaultsTest, MicroBatchIsTheLargestDivisorUpToEight) {
  for (const auto& [global, micro] : {std::pair{32, 8}, {12, 6}, {7, 7}, {13, 1}, {1, 1}, {100, 5}, {9, 3}}) {
    v1::JobSpec spec = GoodSpec();
    spec.mutable_training()->set_global_batch(global);
    ApplyDefaults(spec);
    EXPECT_EQ(spec.training().micro_batch(), micro) << global;
  }
}

TEST(ApplyDefaultsTest, IsSafeOnAnEmptyAndOnAnAbsurdSpec) {
  v1::JobSpec empty;
  ApplyDefaults(empty);
  EXPECT_FALSE(Validate(empty).empty());
  v1::JobSpec absurd = GoodSpec();
  v1::ModelConfig& config = *absurd.mutable_model()->mutable_config();
  config.set_hidden(INT32_MAX);
  config.set_heads(INT32_MIN);
  config.set_layers(-1);
  absurd.mutable_training()->set_global_batch(INT32_MIN);
  ApplyDefaults(absurd);
  EXPECT_FALSE(Validate(absurd).empty());
}

TEST(ValidateTest, AcceptsAGoodSpecBeforeAndAfterDefaults) {
  v1::JobSpec spec = GoodSpec();
  EXPECT_TRUE(Validate(spec).empty()) << FormatViolations("", Validate(spec));
  ApplyDefaults(spec);
  EXPECT_TRUE(Validate(spec).empty()) << FormatViolations("", Validate(spec));
}

TEST(ValidateTest, Gpt2MayHaveDropout) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_model()->mutable_config()->set_architecture(v1::ARCHITECTURE_GPT2);
  spec.mutable_model()->mutable_config()->clear_kv_heads();
  spec.mutable_model()->mutable_dropout()->set_embedding(0.1);
  spec.mutable_model()->mutable_dropout()->set_residual(0.9);
  spec.mutable_model()->mutable_dropout()->set_attention(0);
  EXPECT_TRUE(Validate(spec).empty()) << FormatViolations("", Validate(spec));
}

TEST(ValidateTest, AModelMayComeFromAFolder) {
  v1::JobSpec spec = GoodSpec();
  spec.mutable_model()->set_from("/models/gpt2");
  EXPECT_TRUE(Validate(spec).empty());
  spec.mutable_model()->set_from("");
  ASSERT_FALSE(Validate(spec).empty());
  EXPECT_EQ(Validate(spec)[0].field, "model");
}

struct BadCase {
  const char* name;
  std::function<void(v1::JobSpec&)> change;
  const char* field;
  const char* says;
};

v1::ModelConfig& Config(v1::JobSpec& spec) { return *spec.mutable_model()->mutable_config(); }
v1::DropoutSpec& Dropout(v1::JobSpec& spec, v1::Architecture architecture) {
  Config(spec).set_architecture(architecture);
  if (architecture == v1::ARCHITECTURE_GPT2) Config(spec).clear_kv_heads();
  return *spec.mutable_model()->mutable_dropout();
}
v1::TrainingSpec& Training(v1::JobSpec& spec) { return *spec.mutable_training(); }
v1::MemorySpec& Memory(v1::JobSpec& spec) { return *spec.mutable_memory(); }
v1::LossScaleSpec& LossScale(v1::JobSpec& spec) {
  Training(spec).set_precision(v1::PRECISION_FP16);
  return *Training(spec).mutable_loss_scale();
}
v1::ParameterGroup* AddGroup(v1::JobSpec& spec) {
  v1::ParameterGroup* group = Training(spec).mutable_optimizer()->add_groups();
  group->set_match("*");
  return group;
}

class ValidateBadTest : public testing::TestWithParam<BadCase> {};

TEST_P(ValidateBadTest, IsRefusedOnceWithItsFieldAndTheRemedy) {
  v1::JobSpec spec = GoodSpec();
  GetParam().change(spec);
  const std::vector<FieldViolation> violations = Validate(spec);
  ASSERT_EQ(violations.size(), 1u) << FormatViolations("", violations);
  EXPECT_EQ(violations[0].field, GetParam().field);
  EXPECT_THAT(violations[0].description, HasSubstr(GetParam().says));
  ApplyDefaults(spec);
  EXPECT_EQ(Validate(spec).size(), 1u) << "differs after ApplyDefaults";
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
using Spec = v1::JobSpec;

INSTANTIATE_TEST_SUITE_P(
    All, ValidateBadTest,
    testing::Values(
        BadCase{"NameCase", [](Spec& s) { s.set_name("Austen"); }, "name", "use a-z"},
        BadCase{"NameDash", [](Spec& s) { s.set_name("-a"); }, "name", "use a-z"},
        BadCase{"NameLong", [](Spec& s) { s.set_name(std::string(51, 'a')); }, "name", "at most 50"},
        BadCase{"NameSlash", [](Spec& s) { s.set_name("../etc"); }, "name", "not a name"},
        BadCase{"Architecture", [](Spec& s) { Config(s).clear_architecture(); Config(s).clear_kv_heads(); },
                "model.config.architecture", "gpt2, llama"},
        BadCase{"Layers", [](Spec& s) { Config(s).set_layers(0); }, "model.config.layers", "from 1 to"},
        BadCase{"LayersHuge", [](Spec& s) { Config(s).set_layers(2000000000); }, "model.config.layers", "4096"},
        BadCase{"Hidden", [](Spec& s) { Config(s).set_hidden(-384); }, "model.config.hidden", "from 1 to"},
        BadCase{"Heads", [](Spec& s) { Config(s).set_heads(7); Config(s).set_kv_heads(7); }, "model.config.heads",
                "such as 6"},
        BadCase{"KvHeads", [](Spec& s) { Config(s).set_kv_heads(4); }, "model.config.kv_heads", "such as 3"},
        BadCase{"KvHeadsMany", [](Spec& s) { Config(s).set_kv_heads(12); }, "model.config.kv_heads", "from 1 to 6"},
        BadCase{"HeadDim", [](Spec& s) { Config(s).set_heads(128); Config(s).set_kv_heads(128); },
                "model.config.head_dim", "even"},
        BadCase{"Gpt2Grouped", [](Spec& s) { Config(s).set_architecture(v1::ARCHITECTURE_GPT2); },
                "model.config.kv_heads", "leave it out"},
        BadCase{"LlamaActivation", [](Spec& s) { Config(s).set_activation(v1::ACTIVATION_GELU_ERF); },
                "model.config.activation", "gpt2 only"},
        BadCase{"LlamaDropout", [](Spec& s) { Dropout(s, v1::ARCHITECTURE_LLAMA).set_residual(0.1); },
                "model.dropout.residual", "a llama has no dropout"},
        BadCase{"LlamaAttentionDropout", [](Spec& s) { Dropout(s, v1::ARCHITECTURE_LLAMA).set_attention(0.1); },
                "model.dropout.attention", "a llama has no dropout"},
        BadCase{"DropoutOne", [](Spec& s) { Dropout(s, v1::ARCHITECTURE_GPT2).set_embedding(1); },
                "model.dropout.embedding", "below 1"},
        BadCase{"DropoutNegative", [](Spec& s) { Dropout(s, v1::ARCHITECTURE_GPT2).set_residual(-0.1); },
                "model.dropout.residual", "at least 0"},
        BadCase{"DropoutNan", [](Spec& s) { Dropout(s, v1::ARCHITECTURE_GPT2).set_residual(kNan); },
                "model.dropout.residual", "finite"},
        BadCase{"AttentionDropout", [](Spec& s) { Dropout(s, v1::ARCHITECTURE_GPT2).set_attention(0.1); },
                "model.dropout.attention", "write 0"},
        BadCase{"Ffn", [](Spec& s) { Config(s).set_ffn(-1); }, "model.config.ffn", "from 1"},
        BadCase{"Vocab", [](Spec& s) { Config(s).set_vocab(255); }, "model.config.vocab", "from 256"},
        BadCase{"MaxSeq", [](Spec& s) { Config(s).set_max_seq(0); }, "model.config.max_seq", "from 1"},
        BadCase{"NormEpsTiny", [](Spec& s) { Config(s).set_norm_eps(1e-300); }, "model.config.norm_eps", "1e-30"},
        BadCase{"EpsTiny", [](Spec& s) { Training(s).mutable_optimizer()->set_eps(1e-300); },
                "training.optimizer.eps", "1e-30"},
        BadCase{"NormEps", [](Spec& s) { Config(s).set_norm_eps(-1e-5); }, "model.config.norm_eps", "1e-5"},
        BadCase{"RopeTheta", [](Spec& s) { Config(s).set_rope_theta(0.5); }, "model.config.rope_theta", "10000"},
        BadCase{"TooManyParameters",
                [](Spec& s) {
                  Config(s).set_hidden(131072);
                  Config(s).set_heads(2048);
                  Config(s).set_layers(4096);
                },
                "model.config", "parameters: at most"},
        BadCase{"NoTrain", [](Spec& s) { s.mutable_data()->clear_train(); }, "data.train", "at least one"},
        BadCase{"EmptyTrain", [](Spec& s) { s.mutable_data()->add_train(""); }, "data.train[1]", "give the path"},
        BadCase{"EmptyEval", [](Spec& s) { s.mutable_data()->add_eval(""); }, "data.eval[0]", "give the path"},
        BadCase{"EvalFraction", [](Spec& s) { s.mutable_data()->set_eval_fraction(1); }, "data.eval_fraction",
                "below 1"},
        BadCase{"EvalTwice",
                [](Spec& s) {
                  s.mutable_data()->set_eval_fraction(0.1);
                  s.mutable_data()->add_eval("/e.txt");
                },
                "data.eval_fraction", "exclude each other"},
        BadCase{"Tokenizer", [](Spec& s) { s.mutable_data()->set_tokenizer("bpe"); }, "data.tokenizer", "only bytes"},
        BadCase{"SeqLen", [](Spec& s) { s.mutable_data()->set_seq_len(257); }, "data.seq_len", "max_seq = 256"},
        BadCase{"SeqLenZero", [](Spec& s) { s.mutable_data()->set_seq_len(0); }, "data.seq_len", "from 1"},
        BadCase{"ControlInPath", [](Spec& s) { s.mutable_data()->add_train("/a\nb\x02"); }, "data.train[1]",
                "control"},
        BadCase{"LongPath", [](Spec& s) { s.mutable_data()->add_train("/" + std::string(5000, 'a')); },
                "data.train[1]", "at most 4096"},
        BadCase{"Steps", [](Spec& s) { Training(s).set_steps(-1); }, "training.steps", "from 1"},
        BadCase{"StepsHuge", [](Spec& s) { Training(s).set_steps(INT64_MAX); }, "training.steps", "1000000000"},
        BadCase{"GlobalBatch", [](Spec& s) { Training(s).set_global_batch(0); }, "training.global_batch", "from 1"},
        BadCase{"MicroBatch", [](Spec& s) { Training(s).set_micro_batch(5); }, "training.micro_batch", "such as 4"},
        BadCase{"MicroBatchLarge", [](Spec& s) { Training(s).set_micro_batch(64); }, "training.micro_batch", "to 32"},
        BadCase{"TokensPerStep",
                [](Spec& s) {
                  Config(s).set_max_seq(1 << 22);
                  s.mutable_data()->set_seq_len(1 << 22);
                  Training(s).set_global_batch(1 << 20);
                },
                "training.global_batch", "tokens a step"},
        BadCase{"Optimizer", [](Spec& s) { Training(s).mutable_optimizer()->set_name("sgd"); },
                "training.optimizer.name", "choose one of adamw, adamw8bit"},
        BadCase{"LrZero", [](Spec& s) { Training(s).mutable_optimizer()->set_lr(0); }, "training.optimizer.lr",
                "from 1e-20"},
        BadCase{"LrTiny", [](Spec& s) { Training(s).mutable_optimizer()->set_lr(1e-300); }, "training.optimizer.lr",
                "from 1e-20"},
        BadCase{"LrNan", [](Spec& s) { Training(s).mutable_optimizer()->set_lr(kNan); }, "training.optimizer.lr",
                "finite"},
        BadCase{"ClipInf", [](Spec& s) { Training(s).set_grad_clip(kInf); }, "training.grad_clip", "finite"},
        BadCase{"ClipTiny", [](Spec& s) { Training(s).set_grad_clip(1e-300); }, "training.grad_clip", "1e-12"},
        BadCase{"ClipHuge", [](Spec& s) { Training(s).set_grad_clip(1e300); }, "training.grad_clip", "1e12"},
        BadCase{"ClipNegative", [](Spec& s) { Training(s).set_grad_clip(-1); }, "training.grad_clip", "means no clipping"},
        BadCase{"OneBeta", [](Spec& s) { Training(s).mutable_optimizer()->add_betas(0.9); },
                "training.optimizer.betas", "give two"},
        BadCase{"BetaOne",
                [](Spec& s) {
                  Training(s).mutable_optimizer()->add_betas(0.9);
                  Training(s).mutable_optimizer()->add_betas(1);
                },
                "training.optimizer.betas[1]", "below 1"},
        BadCase{"Eps", [](Spec& s) { Training(s).mutable_optimizer()->set_eps(-1); }, "training.optimizer.eps",
                "1e-8"},
        BadCase{"WeightDecay", [](Spec& s) { Training(s).mutable_optimizer()->set_weight_decay(-0.1); },
                "training.optimizer.weight_decay", "from 0"},
        BadCase{"GroupMatch", [](Spec& s) { Training(s).mutable_optimizer()->add_groups(); },
                "training.optimizer.groups[0].match", "pattern"},
        BadCase{"GroupLrTiny", [](Spec& s) { AddGroup(s)->set_lr_scale(1e-300); },
                "training.optimizer.groups[0].lr_scale", "1e-6 to 1000"},
        BadCase{"GroupLr", [](Spec& s) { AddGroup(s)->set_lr_scale(0); }, "training.optimizer.groups[0].lr_scale",
                "training.freeze"},
        BadCase{"GroupBetas", [](Spec& s) { AddGroup(s)->add_betas(0.5); }, "training.optimizer.groups[0].betas",
                "give two"},
        BadCase{"GroupDecay", [](Spec& s) { AddGroup(s)->set_weight_decay(11); },
                "training.optimizer.groups[0].weight_decay", "from 0"},
        BadCase{"GroupNan", [](Spec& s) { AddGroup(s)->set_weight_decay(kNan); },
                "training.optimizer.groups[0].weight_decay", "finite"},
        BadCase{"Freeze", [](Spec& s) { Training(s).add_freeze(""); }, "training.freeze[0]", "pattern"},
        BadCase{"LossScaleBf16", [](Spec& s) { Training(s).mutable_loss_scale()->set_initial(2); },
                "training.loss_scale", "fp16 only"},
        BadCase{"LossScalePower", [](Spec& s) { LossScale(s).set_initial(1000); }, "training.loss_scale.initial",
                "power of two"},
        BadCase{"LossScaleMin", [](Spec& s) { LossScale(s).set_min(131072); }, "training.loss_scale.min", "above"},
        BadCase{"LossScaleMax", [](Spec& s) { LossScale(s).set_max(1024); }, "training.loss_scale.max", "below"},
        BadCase{"LossScaleHuge", [](Spec& s) { LossScale(s).set_max(0x1p50); }, "training.loss_scale.max",
                "power of two"},
        BadCase{"LossScaleGrowth", [](Spec& s) { LossScale(s).set_growth_interval(-1); },
                "training.loss_scale.growth_interval", "from 1"},
        BadCase{"MaxSkipped", [](Spec& s) { Training(s).set_max_skipped_steps(-1); }, "training.max_skipped_steps",
                "from 1"},
        BadCase{"Schedule", [](Spec& s) { Training(s).mutable_schedule()->set_name("step"); },
                "training.schedule.name", "constant, cosine, linear"},
        BadCase{"Warmup", [](Spec& s) { Training(s).mutable_schedule()->set_warmup_steps(301); },
                "training.schedule.warmup_steps", "300"},
        BadCase{"MinLr",
                [](Spec& s) {
                  Training(s).mutable_schedule()->set_name("cosine");
                  Training(s).mutable_schedule()->set_min_lr(1e-2);
                },
                "training.schedule.min_lr", "0.001"},
        BadCase{"MinLrConstant", [](Spec& s) { Training(s).mutable_schedule()->set_min_lr(1e-4); },
                "training.schedule.min_lr", "cosine or linear"},
        BadCase{"EvalEvery", [](Spec& s) { Training(s).set_eval_every_steps(-1); }, "training.eval_every_steps",
                "at least 0"},
        BadCase{"Threads", [](Spec& s) { Training(s).set_compute_threads(257); }, "training.compute_threads", "256"},
        BadCase{"Precision", [](Spec& s) { Training(s).set_precision(static_cast<v1::Precision>(9)); },
                "training.precision", "fp32, bf16"},
        BadCase{"Device", [](Spec& s) { Memory(s).set_device(-1); }, "memory.device", "from 0 B"},
        BadCase{"Nvme", [](Spec& s) { Memory(s).set_nvme(INT64_MAX); }, "memory.nvme", "1024 TiB"},
        BadCase{"OverlapClip",
                [](Spec& s) {
                  Memory(s).set_mode(v1::MODE_OVERLAP);
                  Training(s).set_grad_clip(1);
                },
                "memory.mode", "forward-overlap"},
        BadCase{"Prefetch", [](Spec& s) { Memory(s).set_prefetch_depth(17); }, "memory.prefetch_depth", "1 to 16"},
        BadCase{"ReadDepth", [](Spec& s) { Memory(s).mutable_io()->set_read_depth(257); }, "memory.io.read_depth",
                "1 to 256"},
        BadCase{"WriteDepth", [](Spec& s) { Memory(s).mutable_io()->set_write_depth(-1); }, "memory.io.write_depth",
                "1 to 256"},
        BadCase{"RequireDirect",
                [](Spec& s) {
                  Memory(s).add_require(v1::FEATURE_O_DIRECT);
                  Memory(s).mutable_io()->set_direct(v1::DIRECT_IO_OFF);
                },
                "memory.require", "memory.io.direct is off"},
        BadCase{"RequireGpuDirect",
                [](Spec& s) {
                  Memory(s).add_require(v1::FEATURE_GPUDIRECT);
                  Memory(s).mutable_io()->set_direct(v1::DIRECT_IO_OFF);
                },
                "memory.require", "has gpudirect, but memory.io.direct is off"},
        BadCase{"RequireIoUring",
                [](Spec& s) {
                  Memory(s).add_require(v1::FEATURE_IO_URING);
                  Memory(s).mutable_io()->set_backend(v1::IO_BACKEND_THREADS);
                },
                "memory.require", "has io_uring"},
        BadCase{"IoThreads", [](Spec& s) { Memory(s).set_io_threads(9); }, "memory.io_threads", "1 to 8"},
        BadCase{"ChunkSmall", [](Spec& s) { Memory(s).set_chunk(4096); }, "memory.chunk", "64 KiB"},
        BadCase{"ChunkOdd", [](Spec& s) { Memory(s).set_chunk(65537); }, "memory.chunk", "80 KiB"},
        BadCase{"Every", [](Spec& s) { s.mutable_checkpoint()->set_every_steps(-5); }, "checkpoint.every_steps",
                "at least 0"},
        BadCase{"Keep", [](Spec& s) { s.mutable_checkpoint()->set_keep_last(-1); }, "checkpoint.keep_last", "from 1"},
        BadCase{"Queue", [](Spec& s) { s.mutable_scheduling()->set_queue("A B"); }, "scheduling.queue", "use a-z"},
        BadCase{"Priority", [](Spec& s) { s.mutable_scheduling()->set_priority(101); }, "scheduling.priority",
                "0 to 100"},
        BadCase{"MaxFailures", [](Spec& s) { s.mutable_scheduling()->set_max_failures(-1); },
                "scheduling.max_failures", "from 0"}),
    [](const testing::TestParamInfo<BadCase>& info) { return info.param.name; });

TEST(ValidateTest, StopsAtTwentyViolations) {
  v1::JobSpec spec = GoodSpec();
  for (int i = 0; i < 100; ++i) spec.mutable_data()->add_train("");
  EXPECT_EQ(Validate(spec).size(), 20u);
}

TEST(ValidateTest, RefusesFieldsOfANewerClient) {
  v1::JobSpec spec = GoodSpec();
  std::string bytes = spec.SerializeAsString();
  bytes += std::string("\xC2\x3E\x01x", 4);  // field 1000, length-delimited
  ASSERT_TRUE(spec.ParseFromString(bytes));
  ASSERT_EQ(Validate(spec).size(), 1u);
  EXPECT_THAT(Validate(spec)[0].description, HasSubstr("newer"));
}

TEST(CountParametersTest, CountsTheMainJob) {
  v1::JobSpec spec = GoodSpec();
  ApplyDefaults(spec);
  // 2 * 256 * 384 + 6 * (2 * 384 + 2 * 384 * 384 + 2 * 384 * 128 + 3 * 384 * 1024) + 384
  EXPECT_EQ(CountParameters(spec.model().config()), 9'638'784);
}

TEST(CountParametersTest, CountsGpt2Small) {
  v1::ModelConfig config;
  config.set_architecture(v1::ARCHITECTURE_GPT2);
  config.set_layers(12);
  config.set_hidden(768);
  config.set_heads(12);
  config.set_ffn(3072);
  config.set_vocab(50257);
  config.set_max_seq(1024);
  config.set_tied_head(true);
  EXPECT_EQ(CountParameters(config), 124'439'808);
}

TEST(CountParametersTest, OverflowIsNotANumber) {
  v1::ModelConfig config;
  config.set_architecture(v1::ARCHITECTURE_GPT2);
  config.set_layers(INT32_MAX);
  config.set_hidden(INT32_MAX);
  config.set_vocab(INT32_MAX);
  config.set_max_seq(1);
  EXPECT_EQ(CountParameters(config), std::nullopt);
  config.set_layers(-1);
  config.set_hidden(2);
  EXPECT_EQ(CountParameters(config), std::nullopt);
}

}  // namespace
}  // namespace strata
