#include "proto/job_spec/parameter_groups.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using testing::HasSubstr;

TEST(MatchesPatternTest, StarIsAnyTextAndQuestionMarkOneCharacter) {
  for (const auto& [pattern, name] : {std::pair{"", ""},
                                      {"*", ""},
                                      {"*", "a.b"},
                                      {"a", "a"},
                                      {"a*", "a"},
                                      {"*a", "ba"},
                                      {"*ab*ab", "abab"},
                                      {"*ab", "aab"},
                                      {"a?c*", "abc"},
                                      {"*.mlp.*.weight", "model.layers.11.mlp.up_proj.weight"},
                                      {"**x**", "x"}}) {
    EXPECT_TRUE(MatchesPattern(pattern, name)) << pattern << " " << name;
  }
  for (const auto& [pattern, name] : {std::pair{"", "a"},
                                      {"a", ""},
                                      {"?", ""},
                                      {"a", "A"},
                                      {"a", "ab"},
                                      {"a", "ba"},
                                      {"*ab*ab", "ab"},
                                      {"a.c", "abc"},
                                      {"layers.1.*", "layers.11.x"}}) {
    EXPECT_FALSE(MatchesPattern(pattern, name)) << pattern << " " << name;
  }
  // No pattern is slow.
  EXPECT_FALSE(MatchesPattern(std::string(2000, '*') + "b", std::string(100'000, 'a')));
  std::string stars;
  for (int i = 0; i < 1000; ++i) stars += "a*";
  EXPECT_FALSE(MatchesPattern(stars + "b", std::string(100'000, 'a')));
}

ModelLayout Layout() {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.activation = Activation::kSwiglu;
  config.layers = 2;
  config.hidden = 8;
  config.heads = config.kv_heads = 2;
  config.head_dim = 4;
  config.ffn = 16;
  config.vocab = 32;
  config.max_seq = 8;
  config.norm_eps = 1e-5;
  config.rope_theta = 10000;
  const auto layout = BuildModelLayout(config, DType::kF32, 1, 8);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *layout;
}

v1::TrainingSpec Training() {
  v1::TrainingSpec training;
  v1::OptimizerSpec& optimizer = *training.mutable_optimizer();
  optimizer.set_lr(1e-3);
  optimizer.add_betas(0.9);
  optimizer.add_betas(0.95);
  optimizer.set_eps(1e-8);
  optimizer.set_weight_decay(0.1);
  return training;
}

TEST(AssignGroupsTest, TheFirstMatchWinsAndSettingsThatAGroupLacksAreTheDefaults) {
  v1::TrainingSpec training = Training();
  v1::ParameterGroup* group = training.mutable_optimizer()->add_groups();
  group->set_match("*.0.mlp.*");
  group->set_lr_scale(0.5);
  group = training.mutable_optimizer()->add_groups();
  group->set_match("*.layers.0.*");
  group->set_weight_decay(0.2);
  group->add_betas(0.5);
  group->add_betas(0.6);
  training.add_freeze("lm_head.weight");
  training.add_freeze("*.1.*norm*");
  ModelLayout layout = Layout();
  ASSERT_TRUE(AssignGroups(training, layout).ok());
  const std::vector<GroupSettings> settings = GroupSettingsOf(training);
  ASSERT_EQ(settings.size(), 6u);
  std::map<std::string, const TensorInfo*> tensors;
  for (const ParamUnit& unit : layout.units) {
    for (const TensorInfo& tensor : unit.tensors) tensors[tensor.name] = &tensor;
  }
  const auto of = [&](const char* name) { return settings[tensors.at(name)->group]; };
  EXPECT_EQ(of("model.embed_tokens.weight").lr_scale, 1);
  EXPECT_EQ(of("model.embed_tokens.weight").hyper.weight_decay, 0.1);
  EXPECT_EQ(of("model.norm.weight").hyper.weight_decay, 0);
  EXPECT_EQ(of("model.layers.0.mlp.up_proj.weight").lr_scale, 0.5);
  EXPECT_EQ(of("model.layers.0.mlp.up_proj.weight").hyper.weight_decay, 0.1);
  EXPECT_EQ(of("model.layers.0.mlp.up_proj.weight").hyper.beta1, 0.9);
  EXPECT_EQ(of("model.layers.1.mlp.up_proj.weight").lr_scale, 1);
  EXPECT_EQ(of("model.layers.0.self_attn.q_proj.weight").hyper.weight_decay, 0.2);
  EXPECT_EQ(of("model.layers.0.self_attn.q_proj.weight").hyper.beta2, 0.6);
  EXPECT_EQ(of("model.layers.0.input_layernorm.weight").hyper.weight_decay, 0.2)
      << "said for the whole group";
  for (const auto& [name, tensor] : tensors) {
    const bool frozen = name == "lm_head.weight" || name == "model.layers.1.input_layernorm.weight" ||
                        name == "model.layers.1.post_attention_layernorm.weight";
    EXPECT_EQ(tensor->frozen, frozen) << name;
  }
}

TEST(AssignGroupsTest, PatternsWithoutTensorsAreRefusedByTheirField) {
  const auto refused = [](const v1::TrainingSpec& training, const char* field, const char* says) {
    ModelLayout layout = Layout();
    const absl::Status status = AssignGroups(training, layout);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
  };
  v1::TrainingSpec training = Training();
  training.mutable_optimizer()->add_groups()->set_match("*.layers.0.*");
  training.mutable_optimizer()->add_groups()->set_match("*.0.mlp.*");
  refused(training, "training.optimizer.groups[1].match", "earlier group");
  training.mutable_optimizer()->mutable_groups(1)->set_match("transformer.h.*");
  refused(training, "training.optimizer.groups[1].match", "model.layers.");
  training = Training();
  training.add_freeze("*embed*");
  training.add_freeze("wte");
  refused(training, "training.freeze[1]", "matches no tensor");
  training.set_freeze(1, "*");
  refused(training, "training.freeze", "every tensor");
}

}  // namespace
}  // namespace strata
