// What the synthetic model notices: it stands in for a real one as the judge of the engine's transfers.
#include "offload/bench/synthetic_compute.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "offload/bench/synthetic_model.h"

namespace strata {
namespace {

constexpr SyntheticShape kShape = {.parameters = 60'000, .layers = 3, .rows = 200};

// All buffers of one micro-batch in plain memory.
struct Memory {
  explicit Memory(const ModelLayout& layout) : layout(layout), batch(2 * layout.seq) {
    for (size_t u = 0; u < layout.units.size(); ++u) {
      params.emplace_back(layout.units[u].elements * SizeOf(layout.compute_dtype), std::byte(u + 1));
    }
    for (const Block& block : layout.blocks) {
      inputs.emplace_back(layout.activation_bytes);
      saved.emplace_back(block.saved_bytes);
      saved_rest.emplace_back(block.saved_rest_bytes);
      grads.emplace_back();
      for (const int unit : block.units) grads.back().emplace_back(layout.units[unit].elements, 7.0f);
    }
    gradient.resize(layout.activation_bytes);
  }
  BlockArgs Args(int block) {
    BlockArgs args;
    args.block = block;
    param_pointers.clear();
    grad_pointers.clear();
    for (size_t i = 0; i < layout.blocks[block].units.size(); ++i) {
      param_pointers.push_back(params[layout.blocks[block].units[i]].data());
      grad_pointers.push_back(grads[block][i].data());
    }
    args.params = param_pointers;
    args.grads = grad_pointers;
    args.tokens = batch.data();
    args.targets = batch.data() + layout.seq;
    args.input = inputs[block].data();
    args.output = block + 1 < static_cast<int>(inputs.size()) ? inputs[block + 1].data() : nullptr;
    args.saved = saved[block].data();
    args.saved_rest = saved_rest[block].data();
    args.grad = gradient.data();
    args.loss = loss;
    args.gradient_scale = 1.0 / static_cast<double>(layout.seq);
    return args;
  }
  absl::Status ForwardAndLoss(SyntheticCompute& compute) {
    const int head = static_cast<int>(layout.blocks.size()) - 1;
    for (int b = 0; b < head; ++b) {
      if (absl::Status status = compute.Forward(nullptr, Args(b)); !status.ok()) return status;
    }
    return compute.Loss(nullptr, Args(head));
  }
  absl::Status BackwardAll(SyntheticCompute& compute) {
    for (int b = static_cast<int>(layout.blocks.size()) - 2; b >= 0; --b) {
      if (absl::Status status = compute.Backward(nullptr, Args(b)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const ModelLayout& layout;
  std::vector<int32_t> batch;
  std::vector<std::vector<std::byte>> params, inputs, saved, saved_rest;
  std::vector<std::vector<std::vector<float>>> grads;  // [block][unit of the block]
  std::vector<std::byte> gradient;
  double loss[2] = {0, 0};
  std::vector<const void*> param_pointers;
  std::vector<void*> grad_pointers;
};

TEST(SyntheticModelTest, HasAboutTheParametersAskedForInOddShapes) {
  for (const int64_t parameters : {60'000, 1'000'000, 1'000'000'000}) {
    for (const int layers : {1, 3, 24}) {
      const auto layout = MakeSyntheticLayout({.parameters = parameters, .layers = layers});
      ASSERT_TRUE(layout.ok()) << layout.status();
      EXPECT_NEAR(static_cast<double>(layout->parameter_count()), static_cast<double>(parameters),
                  0.02 * static_cast<double>(parameters));
      EXPECT_EQ(layout->config.hidden % 2, 1);
      EXPECT_EQ(layout->blocks.size(), static_cast<size_t>(layers + 2));
      EXPECT_EQ(layout->blocks.back().units.back(), layout->blocks.front().units.front()) << "tied";
    }
  }
  EXPECT_FALSE(MakeSyntheticLayout({.parameters = 1000}).ok());
  EXPECT_FALSE(MakeSyntheticLayout({.layers = 0}).ok());
  EXPECT_FALSE(MakeSyntheticLayout({.rows = 1}).ok());
}

TEST(SyntheticComputeTest, GradientsAreFiniteNewInEachBatchAndZeroInPadding) {
  const auto layout = MakeSyntheticLayout(kShape);
  ASSERT_TRUE(layout.ok()) << layout.status();
  SyntheticCompute compute(*layout, {});
  Memory memory(*layout);
  SyntheticCompute::MarkBatch(3, 1, memory.batch.data());
  ASSERT_TRUE(memory.ForwardAndLoss(compute).ok());
  ASSERT_TRUE(memory.BackwardAll(compute).ok());
  const auto first = memory.grads;
  for (size_t b = 0; b < first.size(); ++b) {
    for (size_t i = 0; i < first[b].size(); ++i) {
      const ParamUnit& unit = layout->units[layout->blocks[b].units[i]];
      double sum = 0, squares = 0;
      for (const float g : first[b][i]) {
        sum += g;
        squares += static_cast<double>(g) * g;
      }
      const double n = static_cast<double>(unit.elements);
      EXPECT_NEAR(std::sqrt(squares / n), 0.01 / std::sqrt(3), 0.002) << unit.name;
      EXPECT_NEAR(sum / n, 0, 0.005) << unit.name;
      for (size_t t = 0; t < unit.tensors.size(); ++t) {
        const int64_t end = t + 1 < unit.tensors.size() ? unit.tensors[t + 1].offset : unit.elements;
        for (int64_t e = unit.tensors[t].offset + unit.tensors[t].elements; e < end; ++e)
          ASSERT_EQ(first[b][i][e], 0) << unit.tensors[t].name;
      }
    }
  }
  SyntheticCompute::MarkBatch(3, 2, memory.batch.data());
  ASSERT_TRUE(memory.ForwardAndLoss(compute).ok());
  ASSERT_TRUE(memory.BackwardAll(compute).ok());
  EXPECT_NE(memory.grads, first);
  SyntheticCompute::MarkBatch(3, 1, memory.batch.data());
  ASSERT_TRUE(memory.ForwardAndLoss(compute).ok());
  ASSERT_TRUE(memory.BackwardAll(compute).ok());
  EXPECT_EQ(memory.grads, first);
}

TEST(SyntheticComputeTest, TheLossTellsEveryPageOfParametersApart) {
  const auto layout = MakeSyntheticLayout(kShape);
  ASSERT_TRUE(layout.ok()) << layout.status();
  SyntheticCompute compute(*layout, {});
  Memory memory(*layout);
  ASSERT_TRUE(memory.ForwardAndLoss(compute).ok());
  const double loss = memory.loss[0];
  for (size_t u = 0; u < memory.params.size(); ++u) {
    for (size_t at = 0; at < memory.params[u].size(); at += 4096) {
      memory.params[u][at] ^= std::byte{1};
      memory.loss[0] = 0;
      ASSERT_TRUE(memory.ForwardAndLoss(compute).ok());
      EXPECT_NE(memory.loss[0], loss) << layout->units[u].name << " byte " << at;
      memory.params[u][at] ^= std::byte{1};
    }
  }
}

TEST(SyntheticComputeTest, WrongStaleAndTornBuffersAreDataLoss) {
  const auto layout = MakeSyntheticLayout(kShape);
  ASSERT_TRUE(layout.ok()) << layout.status();
  SyntheticCompute compute(*layout, {});
  const Memory fresh = [&] {
    Memory memory(*layout);
    SyntheticCompute::MarkBatch(5, 0, memory.batch.data());
    EXPECT_TRUE(memory.ForwardAndLoss(compute).ok());
    return memory;
  }();
  Memory old(*layout);
  SyntheticCompute::MarkBatch(4, 0, old.batch.data());
  ASSERT_TRUE(old.ForwardAndLoss(compute).ok());

  const auto backward = [&](const std::function<void(Memory&)>& damage) {
    Memory memory = fresh;
    damage(memory);
    return memory.BackwardAll(compute).code();
  };
  EXPECT_EQ(backward([](Memory&) {}), absl::StatusCode::kOk);
  constexpr auto kLost = absl::StatusCode::kDataLoss;
  EXPECT_EQ(backward([&](Memory& m) { m.inputs[2] = old.inputs[2]; }), kLost) << "stale activation";
  EXPECT_EQ(backward([&](Memory& m) { m.saved[2] = old.saved[2]; }), kLost) << "stale saved state";
  EXPECT_EQ(backward([&](Memory& m) { m.saved[2] = m.saved[1]; }), kLost) << "another block's";
  EXPECT_EQ(backward([&](Memory& m) { m.gradient = old.gradient; }), kLost) << "stale gradient";
  EXPECT_EQ(backward([&](Memory& m) { m.params[2][8192] ^= std::byte{1}; }), kLost) << "other parameters";
  EXPECT_EQ(backward([&](Memory& m) {
              std::copy(old.inputs[2].begin() + 4096, old.inputs[2].begin() + 8192,
                        m.inputs[2].begin() + 4096);
            }),
            kLost)
      << "torn activation";
  EXPECT_EQ(backward([&](Memory& m) { m.saved[1].back() ^= std::byte{1}; }), kLost) << "short copy";
  EXPECT_EQ(backward([&](Memory& m) { m.saved_rest[1] = old.saved_rest[1]; }), kLost) << "stale rest";
  EXPECT_EQ(backward([&](Memory& m) {
              std::fill(m.saved_rest[1].begin(), m.saved_rest[1].end(), std::byte{0});
              EXPECT_TRUE(compute.RecomputeRest(nullptr, m.Args(1)).ok());
            }),
            absl::StatusCode::kOk)
      << "the rest computed again";
}

TEST(SyntheticComputeTest, AnInjectionHitsItsTensorInItsStepOnly) {
  const auto layout = MakeSyntheticLayout(kShape);
  ASSERT_TRUE(layout.ok()) << layout.status();
  SyntheticCompute compute(
      *layout, {.injection = Injection{std::numeric_limits<float>::infinity(), /*step=*/2, /*unit=*/1,
                                       /*tensor=*/3}});
  const TensorInfo& tensor = layout->units[1].tensors[3];
  for (const auto& [step, micro_batch] : {std::pair(1, 0), std::pair(2, 0), std::pair(2, 1)}) {
    Memory memory(*layout);
    SyntheticCompute::MarkBatch(step, micro_batch, memory.batch.data());
    ASSERT_TRUE(memory.ForwardAndLoss(compute).ok());
    ASSERT_TRUE(memory.BackwardAll(compute).ok());
    int bad = 0;
    for (const float g : memory.grads[1][0]) bad += std::isfinite(g) ? 0 : 1;
    EXPECT_EQ(bad, step == 2 && micro_batch == 0 ? 1 : 0) << step << " " << micro_batch;
    EXPECT_EQ(!std::isfinite(memory.grads[1][0][tensor.offset + tensor.elements / 2]), bad == 1);
  }
}

TEST(SyntheticComputeTest, AStopEndsADelay) {
  const auto layout = MakeSyntheticLayout(kShape);
  ASSERT_TRUE(layout.ok());
  for (const bool busy : {false, true}) {
    Memory memory(*layout);
    std::stop_source stop;
    SyntheticCompute compute(*layout, {.delay = absl::Hours(24), .busy = busy, .stop = stop.get_token()});
    SyntheticCompute::MarkBatch(0, 0, memory.batch.data());
    std::thread later([&stop] { stop.request_stop(); });
    EXPECT_TRUE(memory.ForwardAndLoss(compute).ok());
    later.join();
  }
}

}  // namespace
}  // namespace strata
