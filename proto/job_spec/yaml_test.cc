#include "proto/job_spec/yaml.h"

#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/job_spec/validate.h"

namespace strata {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kGood[] = R"(name: austen
model:
  config: {architecture: llama, layers: 6, hidden: 384, heads: 6, kv_heads: 2, ffn: 1024, vocab: 2048, max_seq: 256}
data:
  train: [data/pride.txt]
  eval:  data/emma.txt
  tokenizer: bytes
  seq_len: 256
training:
  steps: 300
  global_batch: 32
  micro_batch: auto
  optimizer: {name: adamw, lr: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0}
  schedule: {name: cosine, warmup_steps: 20, min_lr: 1e-4}
  grad_clip: 1
  precision: bf16
  seed: 18446744073709551615
memory:
  device: 48MiB
  host: "256 MiB"
  nvme: 2GiB
  placement: {params: nvme, optimizer: nvme, gradients: auto}
  recompute: auto
  mode: forward-overlap
  chunk: auto
checkpoint: {every_steps: 1e2, keep_last: 3, on_stop: false}
)";

TEST(ParseJobFileTest, ReadsEveryRecomputePolicy) {
  for (const auto& [word, policy] :
       {std::pair("auto", v1::RECOMPUTE_UNSPECIFIED), std::pair("none", v1::RECOMPUTE_NONE),
        std::pair("full", v1::RECOMPUTE_FULL), std::pair("sqrt", v1::RECOMPUTE_SQRT),
        std::pair("selective", v1::RECOMPUTE_SELECTIVE), std::pair("optimal", v1::RECOMPUTE_OPTIMAL)}) {
    std::string text(kGood);
    const size_t at = text.find("recompute: auto");
    ASSERT_NE(at, std::string::npos);
    text.replace(at, sizeof("recompute: auto") - 1, std::string("recompute: ") + word);
    const JobFile file = ParseJobFile(text);
    EXPECT_TRUE(file.violations.empty()) << word << FormatViolations("job.yaml", file.violations);
    EXPECT_EQ(file.spec.memory().recompute(), policy) << word;
  }
}

TEST(ParseJobFileTest, ReadsTheDocumentedFile) {
  const JobFile file = ParseJobFile(kGood);
  ASSERT_TRUE(file.violations.empty()) << FormatViolations("job.yaml", file.violations);
  const v1::JobSpec& spec = file.spec;
  EXPECT_EQ(spec.name(), "austen");
  EXPECT_EQ(spec.model().config().architecture(), v1::ARCHITECTURE_LLAMA);
  EXPECT_EQ(spec.model().config().vocab(), 2048);
  EXPECT_FALSE(spec.model().config().has_tied_head());
  EXPECT_THAT(spec.data().train(), ElementsAre("data/pride.txt"));
  EXPECT_THAT(spec.data().eval(), ElementsAre("data/emma.txt"));
  EXPECT_EQ(spec.training().micro_batch(), 0);
  EXPECT_EQ(spec.training().seed(), UINT64_MAX);
  EXPECT_EQ(spec.training().optimizer().lr(), 1e-3);
  EXPECT_TRUE(spec.training().optimizer().has_weight_decay());
  EXPECT_EQ(spec.training().optimizer().weight_decay(), 0);
  EXPECT_EQ(spec.memory().device(), 48 << 20);
  EXPECT_EQ(spec.memory().host(), 256 << 20);
  EXPECT_EQ(spec.memory().placement().params(), v1::TIER_NVME);
  EXPECT_EQ(spec.memory().placement().gradients(), v1::TIER_UNSPECIFIED);
  EXPECT_EQ(spec.memory().mode(), v1::MODE_FORWARD_OVERLAP);
  EXPECT_EQ(spec.memory().chunk(), 0);
  EXPECT_EQ(spec.checkpoint().every_steps(), 100);
  EXPECT_TRUE(spec.checkpoint().has_on_stop());
  EXPECT_FALSE(spec.checkpoint().on_stop());
  EXPECT_TRUE(Validate(spec).empty()) << FormatViolations("", Validate(spec));
}

TEST(ParseJobFileTest, KnowsTheLineOfEveryField) {
  const JobFile file = ParseJobFile(kGood);
  EXPECT_EQ(file.source.Find("training.optimizer.lr").line, 13);
  EXPECT_EQ(file.source.Find("training.optimizer.lr").column, 32);
  EXPECT_EQ(file.source.Find("training.optimizer.betas[1]").line, 13);
  EXPECT_EQ(file.source.Find("training.compute_threads").line, 9) << "absent: its group";
  EXPECT_EQ(file.source.Find("model.config").line, 3);
  EXPECT_EQ(file.source.Find("scheduling.queue").line, 1) << "absent with its group: the file";
  std::vector<FieldViolation> violations = {{.field = "data.seq_len", .description = "x"}};
  file.source.Locate(violations);
  EXPECT_EQ(FormatViolations("job.yaml", violations), "job.yaml:8:12: data.seq_len: x\n");
}

TEST(ParseJobFileTest, WritesAFileThatReadsBackEqual) {
  JobFile file = ParseJobFile(kGood);
  file.spec.mutable_data()->add_train("a \"b\"\n\xC3\xA9.txt");
  file.spec.mutable_data()->add_train("true");
  file.spec.mutable_memory()->set_nvme(12345);
  const std::string yaml = JobSpecToYaml(file.spec);
  const JobFile again = ParseJobFile(yaml);
  ASSERT_TRUE(again.violations.empty()) << yaml << FormatViolations("", again.violations);
  EXPECT_EQ(again.spec.SerializeAsString(), file.spec.SerializeAsString()) << yaml;
  EXPECT_THAT(yaml, HasSubstr("device: 48MiB"));
  EXPECT_THAT(yaml, HasSubstr("mode: forward-overlap"));
}

TEST(ParseJobFileTest, ReadsSpecsWithDefaultsBack) {
  v1::JobSpec spec = ParseJobFile(kGood).spec;
  ApplyDefaults(spec);
  const JobFile again = ParseJobFile(JobSpecToYaml(spec));
  ASSERT_TRUE(again.violations.empty()) << FormatViolations("", again.violations);
  EXPECT_EQ(again.spec.SerializeAsString(), spec.SerializeAsString());
}

// Each replaces one line of kGood and names the violation it must lead to.
struct BadCase {
  const char* name;
  const char* from;
  const char* to;
  int line;
  const char* field;
  const char* says;
};

class ParseBadTest : public testing::TestWithParam<BadCase> {};

TEST_P(ParseBadTest, IsRefusedWithPathLineAndRemedy) {
  std::string text = kGood;
  const size_t at = text.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, std::string(GetParam().from).size(), GetParam().to);
  const JobFile file = ParseJobFile(text);
  ASSERT_EQ(file.violations.size(), 1u) << FormatViolations("job.yaml", file.violations);
  EXPECT_EQ(file.violations[0].field, GetParam().field);
  EXPECT_EQ(file.violations[0].line, GetParam().line);
  EXPECT_GT(file.violations[0].column, 0);
  EXPECT_THAT(file.violations[0].description, HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, ParseBadTest,
    testing::Values(
        BadCase{"Unknown", "steps: 300", "steps: 300\n  stepz: 3", 11, "training.stepz",
                "did you mean steps?"},
        BadCase{"UnknownGroup", "memory:", "memori:", 18, "memori", "did you mean memory?"},
        BadCase{"Misplaced", "seed:", "lr: 1e-3\n  seed:", 17, "training.lr",
                "belongs to training.optimizer.lr"},
        BadCase{"UnknownFar", "seed:", "zzzzzz: 1\n  seed:", 17, "training.zzzzzz",
                "known here: steps, global_batch"},
        BadCase{"MergeKey", "seed:", "<<: 1\n  seed:", 17, "training.<<", "unknown field"},
        BadCase{"Twice", "steps: 300", "steps: 300\n  steps: 301", 11, "training.steps", "first on line 10"},
        BadCase{"Missing", "  steps: 300\n", "", 9, "training.steps", "is missing"},
        BadCase{"MissingEnum", "architecture: llama, ", "", 3, "model.config.architecture",
                "one of gpt2, llama"},
        BadCase{"MissingGroup",
                "  optimizer: {name: adamw, lr: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0}\n", "",
                9, "training.optimizer", "with name, lr"},
        BadCase{"TextForInt", "steps: 300", "steps: many", 10, "training.steps", "a whole number"},
        BadCase{"QuotedForInt", "steps: 300", "steps: \"300\"", 10, "training.steps", "without quotes"},
        BadCase{"FractionForInt", "steps: 300", "steps: 300.5", 10, "training.steps", "not a whole number"},
        BadCase{"HexForInt", "steps: 300", "steps: 0x12c", 10, "training.steps", "a whole number"},
        BadCase{"IntTooBig", "global_batch: 32", "global_batch: 2147483648", 11, "training.global_batch",
                "out of range"},
        BadCase{"IntMuchTooBig", "steps: 300", "steps: 1e300", 10, "training.steps", "out of range"},
        BadCase{"NegativeSeed", "seed: 18446744073709551615", "seed: -1", 17, "training.seed",
                "out of range"},
        BadCase{"ListForInt", "steps: 300", "steps: [300]", 10, "training.steps",
                "is a list: must be a whole number"},
        BadCase{"GroupForInt", "steps: 300", "steps: {a: 1}", 10, "training.steps", "is a group of fields"},
        BadCase{"TextForDouble", "lr: 1e-3", "lr: fast", 13, "training.optimizer.lr", "1e-3"},
        BadCase{"NanForDouble", "lr: 1e-3", "lr: .nan", 13, "training.optimizer.lr", "a number"},
        BadCase{"InfForDouble", "lr: 1e-3", "lr: inf", 13, "training.optimizer.lr", "a number"},
        BadCase{"HugeDouble", "lr: 1e-3", "lr: 1e999", 13, "training.optimizer.lr", "out of range"},
        BadCase{"BadListItem", "[0.9, 0.95]", "[0.9, x]", 13, "training.optimizer.betas[1]", "a number"},
        BadCase{"NestedList", "[0.9, 0.95]", "[[0.9, 0.95]]", 13, "training.optimizer.betas[0]",
                "inside a list"},
        BadCase{"EmptyItem", "[data/pride.txt]", "[data/pride.txt, ~]", 5, "data.train[1]", "no value"},
        BadCase{"NoValue", "grad_clip: 1", "grad_clip:", 15, "training.grad_clip", "remove the line"},
        BadCase{"EnumTypo", "precision: bf16", "precision: bf61", 16, "training.precision",
                "did you mean bf16?"},
        BadCase{"EnumUnknown", "precision: bf16", "precision: int4", 16, "training.precision",
                "one of fp32, bf16"},
        BadCase{"EnumNoAuto", "precision: bf16", "precision: auto", 16, "training.precision",
                "one of fp32, bf16"},
        BadCase{"EnumFullName", "mode: forward-overlap", "mode: MODE_SYNC", 24, "memory.mode",
                "one of sync, overlap, forward-overlap, speculative, delayed, or auto"},
        BadCase{"Size", "device: 48MiB", "device: 48MB", 19, "memory.device", "48MiB"},
        BadCase{"SizeZero", "device: 48MiB", "device: 0", 19, "memory.device", "write auto"},
        BadCase{"SizeNegative", "device: 48MiB", "device: -1", 19, "memory.device", "KiB"},
        BadCase{"SizeHuge", "device: 48MiB", "device: 99999999TiB", 19, "memory.device", "4194304 TiB"},
        BadCase{"ScalarForGroup", "placement: {params: nvme, optimizer: nvme, gradients: auto}",
                "placement: nvme", 22, "memory.placement", "or auto"},
        BadCase{"BoolWord", "on_stop: false", "on_stop: yes", 26, "checkpoint.on_stop", "true or false"},
        BadCase{"BothSources", "  config:", "  from: x\n  config:", 4, "model.config",
                "model.from exclude each other"},
        BadCase{"EscapedControl", "name: austen", "name: \"a\\0\"", 1, "name", "control character"},
        BadCase{"Alias", "steps: 300", "steps: *x", 10, "", ""},
        BadCase{"Anchor", "steps: 300", "steps: &x 300", 10, "", "anchors"},
        BadCase{"Tag", "steps: 300", "steps: !!int 300", 10, "", "tag"},
        BadCase{"SecondDocument", "memory:", "---\nmemory:", 18, "", "second document"},
        BadCase{"Tab", "  steps: 300", "\tsteps: 300", 10, "", "not valid YAML"},
        BadCase{"OpenBrace", "max_seq: 256}", "max_seq: 256", 4, "", "not valid YAML"},
        BadCase{"KeyList", "steps: 300", "[a]: 300\n  steps: 300", 10, "training", "not a name"}),
    [](const testing::TestParamInfo<BadCase>& info) { return info.param.name; });

TEST(ParseJobFileTest, CollectsAllViolationsInOrder) {
  const JobFile file = ParseJobFile("model: {config: {layerz: 6}}\ntraining: {steps: x}\nname: [a]\n");
  std::vector<std::string> fields;
  for (const FieldViolation& violation : file.violations) fields.push_back(violation.field);
  EXPECT_THAT(fields,
              ElementsAre("model.config.layerz", "model.config.architecture", "model.config.layers",
                          "model.config.hidden", "model.config.heads", "model.config.max_seq",
                          "training.steps", "training.global_batch", "training.optimizer", "name", "data"));
}

TEST(ParseJobFileTest, StopsAtTwentyViolations) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "x" + std::to_string(i) + ": 1\n";
  EXPECT_EQ(ParseJobFile(text).violations.size(), 20u);
}

TEST(ParseJobFileTest, RefusesWhatIsNoJobFile) {
  for (const auto& [text, says] : {std::pair<std::string, const char*>{"", "empty"},
                                   {"# only a comment\n", "empty"},
                                   {"just text", "a group with name, model, data"},
                                   {"- 1\n- 2\n", "holds a list"},
                                   {"---\n", "holds nothing"},
                                   {std::string("name: a\0b", 9), "control character"},
                                   {"name: \xFF", "UTF-8"},
                                   {std::string(2 << 20, ' '), "1 MiB"},
                                   {std::string(100, '[') + std::string(100, ']'), "deeper than 32"},
                                   {std::string(5000, '['), ""},
                                   {std::string(5000, '{'), ""}}) {
    const JobFile file = ParseJobFile(text);
    ASSERT_EQ(file.violations.size(), 1u) << text.substr(0, 20);
    EXPECT_THAT(file.violations[0].description, HasSubstr(says));
    EXPECT_GT(file.violations[0].line, 0) << text.substr(0, 20);
  }
}

TEST(ParseJobFileTest, BadBytesHaveTheirPlace) {
  const JobFile file = ParseJobFile("name: a\nmodel: \xFF\n");
  EXPECT_EQ(file.violations[0].line, 2);
  EXPECT_EQ(file.violations[0].column, 8);
}

TEST(ParseJobFileTest, ReadsListsOfGroupsAndWritesThemBack) {
  std::string text = kGood;
  const std::string place = "  schedule:";
  text.insert(text.find(place), "  freeze: \"*embed*\"\n");
  const std::string closing = "weight_decay: 0}";
  text.replace(text.find(closing), closing.size(),
               "weight_decay: 0, groups: [{match: \"*.mlp.*\", lr_scale: 0.5}, {match: lm_head.weight}]}");
  const JobFile file = ParseJobFile(text);
  ASSERT_TRUE(file.violations.empty()) << FormatViolations("job.yaml", file.violations);
  const v1::OptimizerSpec& optimizer = file.spec.training().optimizer();
  ASSERT_EQ(optimizer.groups_size(), 2);
  EXPECT_EQ(optimizer.groups(0).match(), "*.mlp.*");
  EXPECT_EQ(optimizer.groups(0).lr_scale(), 0.5);
  EXPECT_FALSE(optimizer.groups(0).has_weight_decay());
  EXPECT_EQ(optimizer.groups(1).match(), "lm_head.weight");
  EXPECT_THAT(file.spec.training().freeze(), ElementsAre("*embed*"));
  const std::string written = JobSpecToYaml(file.spec);
  const JobFile again = ParseJobFile(written);
  ASSERT_TRUE(again.violations.empty()) << written << FormatViolations("job.yaml", again.violations);
  EXPECT_EQ(again.spec.SerializeAsString(), file.spec.SerializeAsString()) << written;

  const std::string match = "match: lm_head.weight";
  text.replace(text.find(match), match.size(), "lr_scale: 2");
  const JobFile missing = ParseJobFile(text);
  ASSERT_EQ(missing.violations.size(), 1u);
  EXPECT_EQ(missing.violations[0].field, "training.optimizer.groups[1].match");
  EXPECT_EQ(missing.violations[0].line, 13);
}

TEST(LoadJobFileTest, SaysWhatCannotBeRead) {
  const std::string missing = testing::TempDir() + "/missing.yaml";
  const absl::StatusOr<JobFile> none = LoadJobFile(missing);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr(missing));
  EXPECT_FALSE(LoadJobFile(testing::TempDir()).ok()) << "a folder";
  const std::string large = testing::TempDir() + "/large.yaml";
  std::ofstream(large) << std::string(kJobFileMaxBytes + 1, ' ');
  EXPECT_FALSE(LoadJobFile(large).ok());
  std::ofstream(testing::TempDir() + "/good.yaml") << kGood;
  const absl::StatusOr<JobFile> good = LoadJobFile(testing::TempDir() + "/good.yaml");
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_TRUE(good->violations.empty());
}

TEST(ResolvePathsTest, MakesRelativePathsAbsoluteAndLeavesTheRest) {
  v1::JobSpec spec = ParseJobFile(kGood).spec;
  spec.mutable_data()->add_train("/abs/x.txt");
  ResolvePaths("/jobs", spec);
  EXPECT_THAT(spec.data().train(), ElementsAre("/jobs/data/pride.txt", "/abs/x.txt"));
  EXPECT_THAT(spec.data().eval(), ElementsAre("/jobs/data/emma.txt"));
  EXPECT_EQ(spec.name(), "austen");
  for (const auto& [folder, path, absolute] : {std::tuple{"/jobs", "hf", "/jobs/hf"},
                                               {"/", "hf", "/hf"},
                                               {"/a/b", "../hf", "/a/hf"},
                                               {"/a", "./../../hf", "/hf"},
                                               {"/a/b", "x/../hf", "/a/b/x/../hf"},
                                               {"/a", "..hf", "/a/..hf"},
                                               {"/a", "", ""}}) {
    spec.mutable_model()->set_from(path);
    ResolvePaths(folder, spec);
    EXPECT_EQ(spec.model().from(), absolute);
  }
}

}  // namespace
}  // namespace strata
