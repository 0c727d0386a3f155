// The CPU kernels in fp32, bf16 and fp16 against float64, a whole step of each kind of model: a gradient may
// be at most twice as far from the truth as that of a plain evaluation in the same types.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "common/random.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/reference/reference_ops.h"
#include "worker/model/test_step.h"

namespace strata {
namespace {

constexpr uint64_t kSeed = 17;

struct Batch {
  std::vector<int32_t> tokens, targets;
};

// Per tensor: |a - truth| / |truth| in the Euclidean norm.
std::vector<double> Errors(const TestStep& step, const TestStep& truth) {
  std::vector<double> errors;
  for (size_t unit = 0; unit < truth.layout().units.size(); ++unit) {
    for (const TensorInfo& tensor : truth.layout().units[unit].tensors) {
      double difference = 0, norm = 0;
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
        const double expected = truth.Grad(static_cast<int>(unit), i);
        const double d = step.Grad(static_cast<int>(unit), i) - expected;
        difference += d * d;
        norm += expected * expected;
      }
      errors.push_back(std::sqrt(difference / norm));
    }
  }
  return errors;
}

double RunStep(TestStep& step, const Batch& batch) {
  double loss[2];
  // As with a loss scale: in fp16 the gradient of a mean loss would be denormal numbers.
  const double scale = 1024.0 / static_cast<double>(batch.tokens.size());
  const absl::Status status = step.Run(batch.tokens, batch.targets, scale, true, loss);
  EXPECT_TRUE(status.ok()) << status;
  return loss[0] / loss[1];
}

// The last: whether linear layers are in fp8.
class Precision : public testing::TestWithParam<std::tuple<DType, Architecture, bool>> {
 protected:
  static ModelConfig Config(Architecture architecture, bool ragged) {
    ModelConfig c;
    c.architecture = architecture;
    c.layers = 2;
    c.heads = 4;
    c.kv_heads = architecture == Architecture::kLlama ? 2 : 4;
    c.head_dim = ragged ? 10 : 16;
    c.hidden = c.heads * c.head_dim;
    c.ffn = ragged ? 77 : 160;
    c.vocab = ragged ? 101 : 256;
    c.max_seq = 50;
    c.activation = architecture == Architecture::kLlama ? Activation::kSwiglu : Activation::kGeluTanh;
    c.tied_head = ragged;
    return c;
  }
};

TEST_P(Precision, GradientsAreAsCloseToTheTruthAsThePlainEvaluation) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const auto [dtype, architecture, fp8] = GetParam();
  for (const bool ragged : {false, true}) {
    if (ragged && fp8) continue;  // its sizes are multiples of 16
    const ModelConfig config = Config(architecture, ragged);
    const int64_t batch_size = 3, seq = ragged ? 37 : 48;
    const auto layout = BuildModelLayout(config, dtype, batch_size, seq, GemmLibrary::kCpu, fp8);
    const auto exact_layout = BuildModelLayout(config, DType::kF64, batch_size, seq);
    ASSERT_TRUE(layout.ok() && exact_layout.ok());
    const CounterRandom random(kSeed, 99);
    Batch batch;
    for (int64_t i = 0; i < batch_size * seq; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(random.Below(2 * i, config.vocab)));
      batch.targets.push_back(static_cast<int32_t>(random.Below(2 * i + 1, config.vocab)));
    }
    const auto exact_ops = MakeReferenceOps(DType::kF64), plain_ops = MakeReferenceOps(dtype);
    const auto cpu_ops = MakeCpuOps(dtype, 1);
    TestStep exact(*exact_layout, *exact_ops), plain(*layout, *plain_ops), cpu(*layout, *cpu_ops);
    plain.RandomParams(kSeed, 0.1);
    cpu.RandomParams(kSeed, 0.1);
    for (size_t unit = 0; unit < layout->units.size(); ++unit) {
      for (int64_t i = 0; i < layout->units[unit].elements; ++i) {
        exact.SetParam(static_cast<int>(unit), i, plain.GetParam(static_cast<int>(unit), i));
      }
    }
    const double truth = RunStep(exact, batch);
    const double plain_loss = RunStep(plain, batch);
    const double cpu_loss = RunStep(cpu, batch);
    // About one rounding of the type.
    const double floor = dtype == DType::kBF16 ? 4e-3 : dtype == DType::kF16 ? 5e-4 : 1e-6;
    EXPECT_NEAR(cpu_loss, truth, 2 * std::fabs(plain_loss - truth) + floor * truth);

    const std::vector<double> plain_errors = Errors(plain, exact), cpu_errors = Errors(cpu, exact);
    for (size_t i = 0; i < cpu_errors.size(); ++i) {
      EXPECT_LE(cpu_errors[i], 2 * plain_errors[i] + floor) << "tensor " << i << (ragged ? ", ragged" : "");
    }
    std::printf("%s: largest relative gradient error %.3g, plain evaluation %.3g\n", Name(dtype),
                *std::max_element(cpu_errors.begin(), cpu_errors.end()),
                *std::max_element(plain_errors.begin(), plain_errors.end()));
    EXPECT_LT(*std::max_element(cpu_errors.begin(), cpu_errors.end()), fp8                     ? 0.3
                                                                       : dtype == DType::kBF16 ? 0.05
                                                                       : dtype == DType::kF16  ? 0.01
                                                                                               : 1e-4);
  }
}

std::string CaseName(const testing::TestParamInfo<Precision::ParamType>& info) {
  return std::string(std::get<2>(info.param) ? "fp8" : Name(std::get<0>(info.param))) +
         (std::get<1>(info.param) == Architecture::kGpt2 ? "_gpt2" : "_llama");
}

INSTANTIATE_TEST_SUITE_P(Types, Precision,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                          testing::Values(Architecture::kGpt2, Architecture::kLlama),
                                          testing::Values(false)),
                         &CaseName);

INSTANTIATE_TEST_SUITE_P(Fp8, Precision,
                         testing::Combine(testing::Values(DType::kBF16),
                                          testing::Values(Architecture::kGpt2, Architecture::kLlama),
                                          testing::Values(true)),
                         &CaseName);

}  // namespace
}  // namespace strata
