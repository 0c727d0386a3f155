// Gradients against central finite differences in float64, and the contract with the engine: exact buffer
// sizes, read-only inputs, zero padding, repeatable bits. TestStep checks the latter in every run.
#include "worker/model/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/random.h"
#include "kernels/reference/reference_ops.h"
#include "offload/model/saved_layout.h"
#include "worker/model/test_step.h"

namespace strata {
namespace {

constexpr uint64_t kSeed = 41;

struct Variant {
  std::string name;
  ModelConfig config;
  int64_t micro_batch = 2;
  int64_t seq = 5;
  std::optional<DrawKey> draw;  // training: what is dropped
};

ModelConfig Gpt2(Activation activation, bool tied) {
  ModelConfig c;
  c.architecture = Architecture::kGpt2;
  c.layers = 2;
  c.hidden = 8;
  c.heads = c.kv_heads = 2;
  c.head_dim = 4;
  c.ffn = 12;
  c.vocab = 11;
  c.max_seq = 7;
  c.activation = activation;
  c.tied_head = tied;
  return c;
}

ModelConfig Llama(int64_t kv_heads, bool tied) {
  ModelConfig c;
  c.architecture = Architecture::kLlama;
  c.layers = 2;
  c.hidden = 8;
  c.heads = 4;
  c.kv_heads = kv_heads;
  c.head_dim = 4;  // heads * head_dim is not hidden
  c.ffn = 16;
  c.vocab = 11;
  c.max_seq = 7;
  c.rope_theta = 100;
  c.tied_head = tied;
  return c;
}

std::vector<Variant> Variants() {
  std::vector<Variant> all = {
      {"gpt2_tanh_tied", Gpt2(Activation::kGeluTanh, true)},
      {"gpt2_erf_tied", Gpt2(Activation::kGeluErf, true)},
      {"gpt2_tanh_untied", Gpt2(Activation::kGeluTanh, false)},
      {"llama_kv4", Llama(4, false)},
      {"llama_kv2_tied", Llama(2, true)},
      {"llama_kv1", Llama(1, false)},
  };
  // Sizes with padding between q, k, v and between gate and up: separate GEMMs.
  ModelConfig ragged = Llama(1, true);
  ragged.hidden = 6;
  ragged.heads = 3;
  ragged.head_dim = 2;
  ragged.ffn = 7;
  all.push_back({"llama_ragged", ragged});
  ModelConfig ragged_gpt2 = Gpt2(Activation::kGeluTanh, true);
  ragged_gpt2.hidden = 6;
  ragged_gpt2.head_dim = 3;
  ragged_gpt2.ffn = 5;
  all.push_back({"gpt2_ragged", ragged_gpt2});
  all.push_back({"llama_one_token", Llama(2, false), 1, 1});
  // Masks are fixed by the key, so the loss is a smooth function of the parameters.
  ModelConfig dropping = Gpt2(Activation::kGeluTanh, true);
  dropping.dropout = {.embedding = 0.2, .residual = 0.3};
  all.push_back({"gpt2_dropout", dropping, 2, 5, DrawKey{.step = 3, .first_row = 20}});
  dropping = ragged_gpt2;
  dropping.dropout = {.residual = 0.5};
  all.push_back({"gpt2_residual_dropout_ragged", dropping, 2, 5, DrawKey{}});
  return all;
}

struct Batch {
  std::vector<int32_t> tokens, targets;
  double unmasked = 0;
};

Batch MakeBatch(const ModelLayout& layout, bool mask) {
  const CounterRandom random(kSeed, 1000);
  Batch batch;
  const int64_t rows = layout.micro_batch * layout.seq;
  for (int64_t i = 0; i < rows; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random.Below(2 * i, layout.config.vocab)));
    batch.targets.push_back(static_cast<int32_t>(random.Below(2 * i + 1, layout.config.vocab)));
    if (mask && i % 4 == 2) batch.targets.back() = -1;
    if (batch.targets.back() >= 0) ++batch.unmasked;
  }
  return batch;
}

double MeanLoss(TestStep& step, const Batch& batch) {
  double loss[2];
  const absl::Status status = step.LossOnly(batch.tokens, batch.targets, loss);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(loss[1], batch.unmasked);
  return loss[0] / batch.unmasked;
}

// (f(x + h) - f(x - h)) / 2h, improved by Richardson's extrapolation: the error is O(h^4).
double NumericGradient(TestStep& step, const Batch& batch, int unit, int64_t element) {
  const double value = step.GetParam(unit, element);
  const auto difference = [&](double h) {
    step.SetParam(unit, element, value + h);
    const double above = MeanLoss(step, batch);
    step.SetParam(unit, element, value - h);
    const double below = MeanLoss(step, batch);
    return (above - below) / (2 * h);
  };
  constexpr double kH = 1e-3;
  const double gradient = (4 * difference(kH / 2) - difference(kH)) / 3;
  step.SetParam(unit, element, value);
  return gradient;
}

void ExpectGradientsMatch(TestStep& step, const Batch& batch) {
  step.SetChecks(false);
  for (size_t unit = 0; unit < step.layout().units.size(); ++unit) {
    for (const TensorInfo& tensor : step.layout().units[unit].tensors) {
      double largest = 0;
      for (int64_t i = 0; i < tensor.elements; ++i) {
        largest = std::max(largest, std::fabs(step.Grad(static_cast<int>(unit), tensor.offset + i)));
      }
      for (int64_t i = 0; i < tensor.elements; ++i) {
        const double analytic = step.Grad(static_cast<int>(unit), tensor.offset + i);
        const double numeric = NumericGradient(step, batch, static_cast<int>(unit), tensor.offset + i);
        ASSERT_NEAR(analytic, numeric, 1e-6 * std::max(std::fabs(analytic), 1e-2 * largest) + 1e-11)
            << tensor.name << "[" << i << "], largest " << largest;
      }
    }
  }
}

TEST(Model, EveryGradientOfEveryVariantMatchesFiniteDifferences) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const auto ops = MakeReferenceOps(DType::kF64);
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    const auto layout = BuildModelLayout(variant.config, DType::kF64, variant.micro_batch, variant.seq);
    ASSERT_TRUE(layout.ok()) << layout.status();
    TestStep step(*layout, *ops);
    step.RandomParams(kSeed, 0.3);
    step.SetDraw(variant.draw);
    const Batch batch = MakeBatch(*layout, /*mask=*/variant.seq > 1);
    double loss[2];
    const absl::Status status =
        step.Run(batch.tokens, batch.targets, 1 / batch.unmasked, /*recompute=*/true, loss);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(loss[0] / loss[1], MeanLoss(step, batch));  // with and without gradients
    ExpectGradientsMatch(step, batch);
    if (HasFatalFailure()) return;
  }
}

TEST(Model, LogitsInChunksGiveTheGradientsOfTheWhole) {
  ModelConfig config = Llama(2, true);
  config.layers = 1;
  config.vocab = 5000;
  config.max_seq = 80;
  const auto layout = BuildModelLayout(config, DType::kF64, 2, 75);
  ASSERT_TRUE(layout.ok()) << layout.status();
  const HeadWorkspace head = MakeHeadWorkspace(config, DType::kF64, 2, 75);
  ASSERT_EQ(head.chunk_rows, 80);  // 80 + 70 rows
  const auto ops = MakeReferenceOps(DType::kF64);
  TestStep step(*layout, *ops);
  step.RandomParams(kSeed, 0.3);
  Batch batch = MakeBatch(*layout, true);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {  // few different tokens: gradients worth looking at
    batch.tokens[i] %= 7;
    if (batch.targets[i] >= 0) batch.targets[i] %= 7;
  }
  double loss[2];
  const absl::Status status = step.Run(batch.tokens, batch.targets, 1 / batch.unmasked, false, loss);
  ASSERT_TRUE(status.ok()) << status;
  for (const auto& [unit, elements] : std::vector<std::pair<int, std::vector<int64_t>>>{
           {0, {0, 9, 31, 55, 4000}}, {1, {3, 200, 500}}, {2, {0, 7}}}) {
    for (const int64_t element : elements) {
      const double numeric = NumericGradient(step, batch, unit, element);
      EXPECT_NEAR(step.Grad(unit, element), numeric, 1e-6 * std::fabs(numeric) + 1e-10)
          << unit << " " << element;
    }
  }
}

// The gradient with respect to a block's input, by itself: the objective is a fixed random combination of the
// block's outputs.
TEST(Model, InputGradientsOfATransformerBlockMatchFiniteDifferences) {
  const auto ops = MakeReferenceOps(DType::kF64);
  for (const Variant& variant : Variants()) {
    SCOPED_TRACE(variant.name);
    const auto layout = BuildModelLayout(variant.config, DType::kF64, variant.micro_batch, variant.seq);
    ASSERT_TRUE(layout.ok()) << layout.status();
    TestStep step(*layout, *ops);
    step.RandomParams(kSeed, 0.3);
    const int64_t n = layout->micro_batch * layout->seq * layout->config.hidden;
    const Block& block = layout->blocks[1];
    const CounterRandom random(kSeed, 2000);
    std::vector<double> input(n), weight(n), output(n), grad(n);
    for (int64_t i = 0; i < n; ++i) {
      input[i] = random.Normal(2 * i);
      grad[i] = weight[i] = random.Normal(2 * i + 1);
    }
    GuardedBuffer saved(block.saved_bytes), rest(block.saved_rest_bytes),
        forward(block.forward_workspace_bytes), backward(block.backward_workspace_bytes),
        unit_grad(layout->units[block.units[0]].elements * SizeOf(DType::kF64));
    const std::vector<const void*> params = {step.params()[block.units[0]]};
    const std::vector<void*> grads = {unit_grad.data()};
    BlockArgs args;
    args.block = 1;
    args.params = params;
    args.input = input.data();
    args.draw = variant.draw;
    args.saved = saved.data();
    args.saved_rest = rest.data();
    const auto objective = [&] {
      args.output = output.data();
      args.workspace = {forward.data(), forward.bytes()};
      const absl::Status status = step.model().Forward(nullptr, args);
      EXPECT_TRUE(status.ok()) << status;
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += weight[i] * output[i];
      return sum;
    };
    objective();
    BlockArgs back = args;
    back.output = nullptr;
    back.grad = grad.data();
    back.grads = grads;
    back.workspace = {backward.data(), backward.bytes()};
    const absl::Status status = step.model().Backward(nullptr, back);
    ASSERT_TRUE(status.ok()) << status;
    for (int64_t i = 0; i < n; ++i) {
      const double value = input[i];
      const auto difference = [&](double h) {
        input[i] = value + h;
        const double above = objective();
        input[i] = value - h;
        const double below = objective();
        input[i] = value;
        return (above - below) / (2 * h);
      };
      const double numeric = (4 * difference(5e-4) - difference(1e-3)) / 3;
      ASSERT_NEAR(grad[i], numeric, 1e-6 * std::fabs(numeric) + 1e-8) << i;
    }
  }
}

TEST(Model, AllTargetsMaskedIsZeroLossAndZeroGradient) {
  const auto ops = MakeReferenceOps(DType::kF64);
  const auto layout = BuildModelLayout(Llama(2, false), DType::kF64, 2, 5);
  ASSERT_TRUE(layout.ok());
  TestStep step(*layout, *ops);
  step.RandomParams(kSeed, 0.3);
  Batch batch = MakeBatch(*layout, false);
  std::fill(batch.targets.begin(), batch.targets.end(), -1);
  double loss[2];
  ASSERT_TRUE(step.Run(batch.tokens, batch.targets, 1, true, loss).ok());
  EXPECT_EQ(loss[0], 0);
  EXPECT_EQ(loss[1], 0);
  for (const auto& unit : step.grads()) {
    for (const double value : unit) ASSERT_EQ(value, 0);
  }
}

// Without a key nothing is dropped: evaluation is that of the same model without dropout.
TEST(Model, DropoutIsOfTrainingOnlyAndDrawsByStepAndSeed) {
  const auto ops = MakeReferenceOps(DType::kF64);
  ModelConfig config = Gpt2(Activation::kGeluTanh, true);
  const auto plain_layout = BuildModelLayout(config, DType::kF64, 2, 5);
  config.dropout = {.embedding = 0.2, .residual = 0.3};
  const auto layout = BuildModelLayout(config, DType::kF64, 2, 5);
  ASSERT_TRUE(layout.ok() && plain_layout.ok());
  const Batch batch = MakeBatch(*layout, false);
  const auto loss = [&](const ModelLayout& of, uint64_t seed, std::optional<DrawKey> draw) {
    TestStep step(of, *ops, seed);
    step.RandomParams(kSeed, 0.3);
    step.SetDraw(draw);
    return MeanLoss(step, batch);
  };
  const double plain = loss(*plain_layout, 1, std::nullopt);
  EXPECT_EQ(loss(*layout, 1, std::nullopt), plain);
  EXPECT_EQ(loss(*plain_layout, 1, DrawKey{}), plain);
  const double dropped = loss(*layout, 1, DrawKey{});
  EXPECT_EQ(loss(*layout, 1, DrawKey{}), dropped);
  for (const double other : {plain, loss(*layout, 2, DrawKey{}), loss(*layout, 1, DrawKey{.step = 1}),
                             loss(*layout, 1, DrawKey{.first_row = 10})}) {
    EXPECT_NE(other, dropped);
  }
}

// A row is dropped by its place in the global batch: two micro-batches of one sequence are one of two.
TEST(Model, DropoutDoesNotDependOnHowTheGlobalBatchIsCut) {
  const auto ops = MakeReferenceOps(DType::kF64);
  ModelConfig config = Gpt2(Activation::kGeluErf, false);
  config.dropout = {.embedding = 0.2, .residual = 0.3};
  constexpr int64_t kSequence = 5;
  const auto both_layout = BuildModelLayout(config, DType::kF64, 2, kSequence);
  const auto one_layout = BuildModelLayout(config, DType::kF64, 1, kSequence);
  ASSERT_TRUE(both_layout.ok() && one_layout.ok());
  TestStep both(*both_layout, *ops, 9), one(*one_layout, *ops, 9);
  both.RandomParams(kSeed, 0.3);
  one.RandomParams(kSeed, 0.3);
  const Batch batch = MakeBatch(*both_layout, false);
  const std::span<const int32_t> tokens = batch.tokens, targets = batch.targets;
  double whole[2], sum = 0;
  both.SetDraw(DrawKey{.step = 4, .first_row = 30});
  ASSERT_TRUE(both.Run(tokens, targets, 1, true, whole).ok());
  std::vector<std::vector<double>> grads;
  for (int64_t i = 0; i < 2; ++i) {
    double loss[2];
    one.SetDraw(DrawKey{.step = 4, .first_row = 30 + i * kSequence});
    ASSERT_TRUE(one.Run(tokens.subspan(i * kSequence, kSequence), targets.subspan(i * kSequence, kSequence),
                        1, true, loss)
                    .ok());
    sum += loss[0];
    if (i == 0) grads = one.grads();
    for (size_t u = 0; i == 1 && u < grads.size(); ++u) {
      for (size_t e = 0; e < grads[u].size(); ++e) grads[u][e] += one.grads()[u][e];
    }
  }
  EXPECT_NEAR(sum, whole[0], 1e-12);
  for (size_t u = 0; u < grads.size(); ++u) {
    for (size_t e = 0; e < grads[u].size(); ++e)
      ASSERT_NEAR(grads[u][e], both.grads()[u][e], 1e-11) << u << " " << e;
  }
}

TEST(Model, RefusesCallsThatLackSomethingNamingIt) {
  const auto ops = MakeReferenceOps(DType::kF64);
  const auto layout = BuildModelLayout(Gpt2(Activation::kGeluTanh, true), DType::kF64, 2, 5);
  ASSERT_TRUE(layout.ok());
  TestStep step(*layout, *ops);
  BlockCompute& model = step.model();
  const auto refused = [](const absl::Status& status, const char* what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_NE(std::string(status.message()).find(what), std::string::npos) << status;
  };
  std::vector<std::byte> buffer(1 << 16);
  const std::vector<const void*> two = {buffer.data(), buffer.data()};
  const std::vector<const void*> one = {buffer.data()};
  BlockArgs args;
  args.block = 4;
  refused(model.Forward(nullptr, args), "block 4");
  args.block = -1;
  refused(model.Backward(nullptr, args), "block -1");
  args.block = 0;
  args.params = one;
  refused(model.Forward(nullptr, args), "needs 2");
  args.params = two;
  refused(model.Forward(nullptr, args), "output");
  args.block = 1;
  args.params = one;
  args.output = buffer.data();
  refused(model.Forward(nullptr, args), "workspace");
  refused(model.Loss(nullptr, args), "only the head");
  args.block = 3;
  args.params = two;
  args.workspace = {buffer.data(), layout->blocks[3].backward_workspace_bytes};
  refused(model.Forward(nullptr, args), "the head has no forward");
  args.input = buffer.data();
  refused(model.Loss(nullptr, args), "targets");
}

}  // namespace
}  // namespace strata
