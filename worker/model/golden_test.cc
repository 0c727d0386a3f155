// GPT-2 against a pack of numbers that two other frameworks agree on: $STRATA_SHARED/golden/gpt2_char (its
// README says what is in it). Skipped, with the reason, where the pack is not at hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/adamw.h"
#include "offload/checkpoint/safetensors.h"
#include "worker/model/logits.h"
#include "worker/model/test_step.h"

namespace strata {
namespace {

class Golden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("STRATA_SHARED");
    if (shared == nullptr) GTEST_SKIP() << "STRATA_SHARED is not set: no golden pack";
    const std::string folder = std::string(shared) + "/golden/gpt2_char";
    std::ifstream file(folder + "/oracle.json");
    if (!file) GTEST_SKIP() << folder << "/oracle.json is not there";
    const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(json.is_discarded());
    oracle_ = json[GetParam()];
    adamw_ = json["adamw"];
    for (const auto& row : json["x"]) {
      for (const int token : row) tokens_.push_back(token);
    }
    for (const auto& row : json["y"]) {
      for (const int token : row) targets_.push_back(token);
    }

    ModelConfig config;
    config.architecture = Architecture::kGpt2;
    config.layers = 4;
    config.hidden = 128;
    config.heads = config.kv_heads = 4;
    config.head_dim = 32;
    config.ffn = 512;
    config.vocab = 65;
    config.max_seq = 64;
    config.activation = std::string(GetParam()) == "none" ? Activation::kGeluErf : Activation::kGeluTanh;
    config.tied_head = true;
    const auto layout = BuildModelLayout(config, DType::kF32, 4, 64);
    ASSERT_TRUE(layout.ok()) << layout.status();
    layout_ = *layout;

    const auto reader = SafetensorsReader::Open(folder + "/model.safetensors");
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const ParamUnit& unit : layout_.units) {
      std::vector<float> values(unit.elements);
      for (const TensorInfo& tensor : unit.tensors) {
        const SafetensorsTensor* stored = reader->Find(tensor.name);
        ASSERT_NE(stored, nullptr) << tensor.name;
        ASSERT_EQ(stored->shape, tensor.shape) << tensor.name;
        const absl::Status status =
            reader->ReadFloats(*stored, 0, std::span(values).subspan(tensor.offset, tensor.elements));
        ASSERT_TRUE(status.ok()) << status;
      }
      master_.push_back(std::move(values));
    }
    step_ = std::make_unique<TestStep>(layout_, *ops_);
  }

  void CopyMasterToParams() {
    for (size_t unit = 0; unit < master_.size(); ++unit) {
      for (size_t i = 0; i < master_[unit].size(); ++i)
        step_->SetParam(static_cast<int>(unit), i, master_[unit][i]);
    }
  }

  double RunStep() {
    CopyMasterToParams();
    double loss[2];
    const absl::Status status = step_->Run(tokens_, targets_, 1.0 / 256, /*recompute=*/false, loss);
    EXPECT_TRUE(status.ok()) << status;
    return loss[0] / loss[1];
  }

  const std::unique_ptr<Ops> ops_ = MakeCpuOps(DType::kF32, 1);
  nlohmann::json oracle_, adamw_;
  std::vector<int32_t> tokens_, targets_;
  ModelLayout layout_;
  std::vector<std::vector<float>> master_;
  std::unique_ptr<TestStep> step_;
};

TEST_P(Golden, LossAndEveryGradientNormAgree) {
  EXPECT_NEAR(RunStep(), oracle_["loss"].get<double>(), 1e-4);
  double all = 0;
  size_t compared = 0;
  for (size_t unit = 0; unit < layout_.units.size(); ++unit) {
    for (const TensorInfo& tensor : layout_.units[unit].tensors) {
      double sum = 0;
      for (int64_t i = 0; i < tensor.elements; ++i) {
        const double g = step_->Grad(static_cast<int>(unit), tensor.offset + i);
        sum += g * g;
      }
      const double expected = oracle_["grad_norms"][tensor.name].get<double>();
      EXPECT_NEAR(std::sqrt(sum), expected, 1e-4 * expected) << tensor.name;
      all += sum;
      ++compared;
    }
  }
  EXPECT_EQ(compared, oracle_["grad_norms"].size());
  const double global = oracle_["grad_norm_global"].get<double>();
  EXPECT_NEAR(std::sqrt(all), global, 1e-4 * global);
}

TEST_P(Golden, LogitsAgree) {
  CopyMasterToParams();
  for (const auto& [row, key] :
       {std::pair<int64_t, const char*>{0, "logits_b0_t0_first8"}, {3 * 64 + 63, "logits_b3_t63_first8"}}) {
    const auto logits = ForwardLogits(layout_, *ops_, step_->params(), tokens_, row, 1);
    ASSERT_TRUE(logits.ok()) << logits.status();
    ASSERT_EQ(logits->size(), 65u);
    for (int i = 0; i < 8; ++i)
      EXPECT_NEAR((*logits)[i], oracle_[key][i].get<double>(), 2e-4) << key << " " << i;
  }
}

TEST_P(Golden, TenStepsOfAdamWAgree) {
  const AdamWParameters parameters{.lr = adamw_["lr"].get<double>(),
                                   .beta1 = adamw_["betas"][0].get<double>(),
                                   .beta2 = adamw_["betas"][1].get<double>(),
                                   .eps = adamw_["eps"].get<double>(),
                                   .weight_decay = adamw_["weight_decay"].get<double>()};
  ASSERT_EQ(adamw_["decay_on"].get<std::string>(), "all params");
  std::vector<std::vector<float>> m, v;
  for (const auto& unit : master_) {
    m.emplace_back(unit.size());
    v.emplace_back(unit.size());
  }
  const auto& losses = oracle_["adamw10_losses"];
  ASSERT_EQ(losses.size(), 10u);
  for (int64_t step = 1; step <= 10; ++step) {
    EXPECT_NEAR(RunStep(), losses[step - 1].get<double>(), 1e-4) << "step " << step;
    for (size_t unit = 0; unit < master_.size(); ++unit) {
      const std::vector<float> grad(step_->grads()[unit].begin(), step_->grads()[unit].end());
      AdamW(MakeAdamWScalars(parameters, step), {.n = static_cast<int64_t>(grad.size()),
                                                 .grad = grad.data(),
                                                 .master = master_[unit].data(),
                                                 .m = m[unit].data(),
                                                 .v = v[unit].data()});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, Golden, testing::Values("none", "tanh"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace strata
