#include "offload/plan/planner.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/random.h"
#include "gtest/gtest.h"
#include "offload/model/model_layout.h"
#include "offload/plan/placement_search.h"
#include "offload/plan/slot_table.h"
#include "offload/plan/test_layouts.h"

namespace strata {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int kDevice = static_cast<int>(Tier::kDevice);
constexpr int kHost = static_cast<int>(Tier::kHost);
constexpr Recompute kPolicies[] = {Recompute::kNone, Recompute::kFull, Recompute::kSqrt,
                                   Recompute::kSelective, Recompute::kOptimal};

ModelLayout RealLayout(int64_t layers) {
  ModelConfig config;
  config.layers = layers;
  config.hidden = 384;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 64;
  config.ffn = 1024;
  config.vocab = 256;
  config.max_seq = 256;
  absl::StatusOr<ModelLayout> layout = BuildModelLayout(config, DType::kBF16, 4, 256);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return *std::move(layout);
}

std::variant<PlannedJob, PlanShortfall> Plan(const PlanRequest& request) {
  absl::StatusOr<std::variant<PlannedJob, PlanShortfall>> plan = MakePlan(request);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

PlanRequest Roomy(const ModelLayout& layout) {
  PlanRequest request;
  request.layout = &layout;
  request.budget = {int64_t{64} << 30, int64_t{64} << 30, int64_t{64} << 30};
  return request;
}

// The budget of each tier alone at its minimum fits, and one byte less is refused with a remedy that fits.
void ExpectExactMinimum(const PlanRequest& request, const std::string& what) {
  const auto plan = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlannedJob>(plan))
      << what << ": " << std::get<PlanShortfall>(plan).remedy;
  const PlannedJob& job = std::get<PlannedJob>(plan);
  for (int t = 0; t < kTierCount; ++t) {
    EXPECT_LE(job.minimum_bytes[t], job.peak_bytes[t]) << what << " tier " << t;
    PlanRequest tight = request;
    tight.budget[t] = job.minimum_bytes[t];
    const auto at_minimum = Plan(tight);
    ASSERT_TRUE(std::holds_alternative<PlannedJob>(at_minimum)) << what << " tier " << t;
    EXPECT_EQ(std::get<PlannedJob>(at_minimum).minimum_bytes[t], job.minimum_bytes[t]) << what;
    if (job.minimum_bytes[t] == 0) continue;
    tight.budget[t] -= 1;
    const auto below = Plan(tight);
    ASSERT_TRUE(std::holds_alternative<PlanShortfall>(below)) << what << " tier " << t;
    const PlanShortfall& shortfall = std::get<PlanShortfall>(below);
    EXPECT_GT(shortfall.needed_bytes, shortfall.budget_bytes);
    EXPECT_NE(shortfall.remedy.find("memory."), std::string::npos) << shortfall.remedy;
    PlanRequest remedied = tight;
    remedied.budget[static_cast<int>(shortfall.tier)] = shortfall.needed_bytes;
    EXPECT_TRUE(std::holds_alternative<PlannedJob>(Plan(remedied))) << what << ": " << shortfall.remedy;
  }
}

// Budgets of `request` that what "memory.host: at least N bytes (...) and memory.nvme: ..." says.
PlanRequest Obeying(const std::string& remedy, PlanRequest request) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
    const std::string name = std::string("memory.") + Name(tier) + ": at least ";
    if (const size_t at = remedy.find(name); at != std::string::npos)
      request.budget[static_cast<int>(tier)] = std::stoll(remedy.substr(at + name.size()));
  }
  return request;
}

// Where only a device or a host that holds everything would do alone, what less of it and more of NVMe take
// is told too.
TEST(PlannerTest, EveryAlternativeOfARemedyFits) {
  const ModelLayout layout = RealLayout(6);
  int together = 0;
  for (const int64_t device : {16 * kMiB, 36 * kMiB}) {
    for (const int64_t host : {int64_t{4096}, 30 * kMiB}) {
      PlanRequest request = Roomy(layout);
      request.budget = {device, host, kMiB};
      const auto plan = Plan(request);
      ASSERT_TRUE(std::holds_alternative<PlanShortfall>(plan)) << device << " " << host;
      const std::string& remedy = std::get<PlanShortfall>(plan).remedy;
      EXPECT_TRUE(absl::StrContains(remedy, "and memory.nvme")) << remedy;
      together += absl::StrContains(remedy, ", or memory.");
      for (const absl::string_view one : absl::StrSplit(remedy, ", or ")) {
        EXPECT_TRUE(std::holds_alternative<PlannedJob>(Plan(Obeying(std::string(one), request))))
            << device << " " << host << ": " << one << " of " << remedy;
      }
    }
  }
  EXPECT_GE(together, 3);
}

TEST(PlannerTest, MinimumIsExactForManyLayoutsWishesAndBudgets) {
  constexpr uint64_t kSeed = 20261129;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const CounterRandom random(kSeed, 0);
  uint64_t draw = 0;
  for (int i = 0; i < 15; ++i) {
    TestShape shape;
    shape.layers = 1 + static_cast<int>(random.Below(draw++, 7));
    shape.tied = random.Below(draw++, 2) == 0;
    shape.norm_elements = random.Below(draw++, 2) == 0 ? 0 : 64;
    shape.edge_elements = 64 * (1 + static_cast<int64_t>(random.Below(draw++, 600)));
    shape.layer_elements = 64 * (1 + static_cast<int64_t>(random.Below(draw++, 600)));
    shape.units_per_layer = 1 + static_cast<int>(random.Below(draw++, 2));
    shape.saved_bytes = static_cast<int64_t>(random.Below(draw++, 3)) * 12000;
    shape.saved_rest_bytes = shape.saved_bytes * 2 / 3;
    const ModelLayout layout = MakeTestLayout(shape);
    PlanRequest request = Roomy(layout);
    request.micro_batches = 1 + static_cast<int64_t>(random.Below(draw++, 3));
    request.clip = random.Below(draw++, 2) == 0;
    request.chunk_elements = random.Below(draw++, 2) == 0 ? 0 : 4096;
    if (random.Below(draw++, 3) == 0) request.params = static_cast<Tier>(random.Below(draw, 3));
    if (random.Below(draw++, 3) == 0) request.gradients = Tier::kHost;
    if (random.Below(draw++, 2) == 0) request.recompute = kPolicies[random.Below(draw++, 5)];
    if (random.Below(draw++, 3) == 0) request.prefetch_depth = 2;
    if (random.Below(draw++, 3) == 0 && request.params != Tier::kNvme) request.budget[2] = 0;
    const auto roomy = Plan(request);
    ASSERT_TRUE(std::holds_alternative<PlannedJob>(roomy)) << i;
    ExpectExactMinimum(request, absl::StrCat("request ", i));
    // Everything a little short of comfortable, so that placements must mix.
    PlanRequest mixed = request;
    mixed.budget[0] = std::get<PlannedJob>(roomy).minimum_bytes[0] * 3 / 2;
    PlanRequest probe = mixed;
    const auto half = Plan(probe);
    if (const PlannedJob* job = std::get_if<PlannedJob>(&half)) {
      mixed.budget[1] = (job->minimum_bytes[1] + job->peak_bytes[1]) / 2;
      ExpectExactMinimum(mixed, absl::StrCat("mixed request ", i));
    }
  }
}

TEST(PlannerTest, DeviceMinimumDoesNotGrowWithTheNumberOfLayers) {
  int64_t minimum = 0;
  for (const int layers : {6, 12, 24, 48}) {
    const ModelLayout layout = RealLayout(layers);
    const PlanRequest request = Roomy(layout);
    const auto plan = Plan(request);
    ASSERT_TRUE(std::holds_alternative<PlannedJob>(plan));
    const int64_t now = std::get<PlannedJob>(plan).minimum_bytes[kDevice];
    if (minimum == 0) minimum = now;
    EXPECT_EQ(now, minimum) << layers << " layers";
  }
}

TEST(PlannerTest, TheHostNeedNotHoldAllGradientsNorActivations) {
  int64_t minimum = 0;
  for (const int layers : {6, 12, 24}) {
    const ModelLayout layout = RealLayout(layers);
    PlanRequest request = Roomy(layout);
    request.params = request.gradients = request.optimizer = request.activations = Tier::kNvme;
    request.micro_batches = 2;
    request.prefetch_depth = 1;
    const auto plan = Plan(request);
    ASSERT_TRUE(std::holds_alternative<PlannedJob>(plan)) << std::get<PlanShortfall>(plan).remedy;
    const int64_t now = std::get<PlannedJob>(plan).minimum_bytes[static_cast<int>(Tier::kHost)];
    if (minimum == 0) minimum = now;
    EXPECT_EQ(now, minimum) << layers << " layers";
  }
}

TEST(PlannerTest, WishesAndBudgetsHold) {
  const ModelLayout layout = RealLayout(6);
  for (const int64_t device : {32, 48, 96, 400}) {
    for (const Tier params : {Tier::kHost, Tier::kNvme}) {
      PlanRequest request = Roomy(layout);
      request.budget[kDevice] = device * kMiB;
      request.params = params;
      request.optimizer = Tier::kNvme;
      request.micro_batches = 4;
      const auto plan = Plan(request);
      ASSERT_TRUE(std::holds_alternative<PlannedJob>(plan)) << std::get<PlanShortfall>(plan).remedy;
      const PlannedJob& job = std::get<PlannedJob>(plan);
      EXPECT_LE(job.peak_bytes[kDevice], request.budget[kDevice]);
      for (const PlanChoice::UnitHome& home : job.choice.units) {
        EXPECT_EQ(home.params, params);
        EXPECT_EQ(home.record, Tier::kNvme);
      }
      EXPECT_FALSE(job.notes.empty());
      EXPECT_GT(job.simulation.step_seconds, 0);
      EXPECT_GT(job.read_bytes[2], 0);
      EXPECT_EQ(job.train.arena_bytes[2], job.eval.arena_bytes[2]);
    }
  }
}

// What a policy lets the blocks of a plan be.
void ExpectPolicy(Recompute policy, const PlanChoice& choice, const std::string& what) {
  const int head = static_cast<int>(choice.blocks.size()) - 1;
  int inputs = 0;
  for (int b = 1; b < head; ++b) {
    const PlanChoice::BlockChoice& block = choice.blocks[b];
    inputs += block.checkpoint;
    if (policy == Recompute::kOptimal) continue;
    EXPECT_EQ(block.saved, policy == Recompute::kNone        ? PlanChoice::Saved::kKeep
                           : policy == Recompute::kSelective ? PlanChoice::Saved::kSelective
                                                             : PlanChoice::Saved::kRecompute)
        << what << " block " << b;
  }
  if (policy == Recompute::kOptimal) return;
  EXPECT_EQ(inputs, policy == Recompute::kSqrt ? 3 : head - 1) << what;  // 9 layers
}

// MakePlan verifies every plan that it returns.
TEST(PlannerTest, EveryPolicyIsPlannedAtEveryBudgetDownToItsMinimum) {
  const ModelLayout layout = RealLayout(9);
  for (const Recompute policy : kPolicies) {
    PlanRequest request = Roomy(layout);
    request.recompute = policy;
    request.micro_batches = 2;
    const auto roomy = Plan(request);
    ASSERT_TRUE(std::holds_alternative<PlannedJob>(roomy));
    const std::array<int64_t, kTierCount> minimum = std::get<PlannedJob>(roomy).minimum_bytes;
    for (const int tenths : {10, 13, 20, 40}) {
      for (const int64_t host : {int64_t{16} << 30, 20 * kMiB}) {
        const std::string what = absl::StrCat("policy ", static_cast<int>(policy), " device ", tenths,
                                              "/10 of its minimum, host ", host);
        request.budget[kDevice] = minimum[kDevice] * tenths / 10;
        request.budget[kHost] = host;
        const auto plan = Plan(request);
        if (std::holds_alternative<PlanShortfall>(plan)) {
          EXPECT_EQ(host, 20 * kMiB) << what;
          continue;
        }
        const PlannedJob& job = std::get<PlannedJob>(plan);
        ExpectPolicy(policy, job.choice, what);
        for (int t = 0; t < kTierCount; ++t) {
          EXPECT_LE(job.peak_bytes[t], request.budget[t]) << what;
          EXPECT_EQ(std::max(job.train.arena_bytes[t], job.eval.arena_bytes[t]), job.peak_bytes[t]) << what;
        }
      }
    }
    request.budget = Roomy(layout).budget;
    ExpectExactMinimum(request, absl::StrCat("policy ", static_cast<int>(policy)));
  }
}

// The device holds the states and little of what 12 layers save.
PlanRequest ShortOfRoomToKeep(const ModelLayout& layout) {
  PlanRequest request = Roomy(layout);
  request.recompute = Recompute::kFull;
  request.activations = Tier::kHost;
  request.params = Tier::kHost;
  request.gradients = Tier::kHost;
  request.optimizer = Tier::kHost;
  request.budget[kDevice] = std::get<PlannedJob>(Plan(request)).minimum_bytes[kDevice];
  for (const Block& block : layout.blocks)
    request.budget[kDevice] += (block.saved_bytes + block.saved_rest_bytes) / 2;
  request.recompute.reset();
  request.activations.reset();
  return request;
}

// None computes nothing again: what the device cannot keep waits in the host, and without room there on NVMe.
TEST(PlannerTest, WhatTheDeviceCannotKeepIsSwapped) {
  const ModelLayout layout = RealLayout(12);
  PlanRequest request = ShortOfRoomToKeep(layout);
  request.recompute = Recompute::kNone;
  const auto count = [](const PlannedJob& job, Tier tier) {
    int blocks = 0;
    for (int b = 1; b <= 12; ++b) {
      EXPECT_EQ(job.choice.blocks[b].saved, PlanChoice::Saved::kKeep);
      blocks += job.choice.blocks[b].saved_home == tier;
    }
    return blocks;
  };
  const auto in_host = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlannedJob>(in_host)) << std::get<PlanShortfall>(in_host).remedy;
  const PlannedJob& job = std::get<PlannedJob>(in_host);
  EXPECT_GT(count(job, Tier::kHost), 0);
  EXPECT_GT(count(job, Tier::kDevice), 0);
  request.budget[kHost] = job.minimum_bytes[kHost];
  const auto on_nvme = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlannedJob>(on_nvme)) << std::get<PlanShortfall>(on_nvme).remedy;
  EXPECT_GT(count(std::get<PlannedJob>(on_nvme), Tier::kNvme), 0);
}

// More choice is never slower by the clock that chooses, whatever is dear on the machine.
TEST(PlannerTest, AutoIsAsFastAsEveryPolicyByTheSimulator) {
  const ModelLayout layout = RealLayout(12);
  for (const double link : {0.5e9, 100e9}) {
    PlanRequest request = ShortOfRoomToKeep(layout);
    request.profile.d2h_bytes_per_second = request.profile.h2d_bytes_per_second = link;
    request.profile.device_is_cpu = false;
    const double best = std::get<PlannedJob>(Plan(request)).simulation.step_seconds;
    for (const Recompute policy : kPolicies) {
      PlanRequest wished = request;
      wished.recompute = policy;
      const auto plan = Plan(wished);
      ASSERT_TRUE(std::holds_alternative<PlannedJob>(plan)) << std::get<PlanShortfall>(plan).remedy;
      const double seconds = std::get<PlannedJob>(plan).simulation.step_seconds;
      std::printf("link %.1f GB/s, policy %d: %.3f ms, auto %.3f ms\n", link / 1e9, static_cast<int>(policy),
                  1e3 * seconds, 1e3 * best);
      EXPECT_LE(best, seconds * 1.01) << static_cast<int>(policy);
    }
  }
}

// An 8 B model in bf16, four sequences of 4096 at a time, on an accelerator of 24 GiB behind a link of 12
// GB/s. The link is too slow to swap all that is saved while the device computes, and computing it all again
// is dear.
PlanRequest EightBillion(const ModelLayout& layout) {
  PlanRequest request;
  request.layout = &layout;
  request.micro_batches = 16;
  request.clip = true;
  request.budget = {0, int64_t{192} << 30, int64_t{4} << 40};
  request.predict_only = true;
  MachineProfile& machine = request.profile;
  machine.device_is_cpu = false;
  machine.bf16.forward_gemm = machine.bf16.backward_gemm = {{1, 120e12}};
  machine.bf16.attention_flops = machine.bf16.attention_backward_flops = 80e12;
  machine.bf16.elementwise_bytes_per_second = 800e9;
  machine.h2d_bytes_per_second = machine.d2h_bytes_per_second = 12e9;
  machine.nvme_read_bytes_per_second = 7e9;
  machine.nvme_write_bytes_per_second = 5e9;
  machine.nvme_mixed_bytes_per_second = 8e9;
  machine.dram_bytes_per_second = 150e9;
  machine.accumulate_bytes_per_second = machine.norm_bytes_per_second = machine.dram_bytes_per_second;
  machine.adamw_seconds_per_parameter = 28 / machine.dram_bytes_per_second;
  return request;
}

TEST(PlannerTest, OptimalIsNeverSlowerThanOnePolicyForAllAndMixesThemWhereThatIsFaster) {
  ModelConfig config;
  config.layers = 32;
  config.hidden = 4096;
  config.heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.ffn = 14336;
  config.vocab = 128256;
  config.max_seq = 8192;
  const absl::StatusOr<ModelLayout> layout = BuildModelLayout(config, DType::kBF16, 4, 4096);
  ASSERT_TRUE(layout.ok()) << layout.status();
  PlanRequest request = EightBillion(*layout);
  int faster = 0;
  for (const int64_t gib : {16, 20, 24}) {
    request.budget[kDevice] = gib << 30;
    double uniform = std::numeric_limits<double>::infinity();
    for (const Recompute policy : kPolicies) {
      request.recompute = policy;
      const auto plan = Plan(request);
      if (std::holds_alternative<PlanShortfall>(plan)) continue;
      const PlannedJob& job = std::get<PlannedJob>(plan);
      const double seconds = job.simulation.step_seconds;
      std::printf("%2lld GiB, policy %d: %.2f s\n", static_cast<long long>(gib), static_cast<int>(policy),
                  seconds);
      if (policy != Recompute::kOptimal) {
        uniform = std::min(uniform, seconds);
        continue;
      }
      // Candidates are compared on samples of the step.
      EXPECT_LE(seconds, uniform * 1.002) << gib;
      std::set<std::pair<PlanChoice::Saved, Tier>> kinds;
      for (int b = 1; b <= 32; ++b)
        kinds.emplace(job.choice.blocks[b].saved, job.choice.blocks[b].saved_home);
      if (seconds > 0.98 * uniform) continue;
      EXPECT_GT(kinds.size(), 1u) << gib;
      ++faster;
    }
  }
  EXPECT_GE(faster, 2);
}

// The sums of gradients go to NVMe by themselves where the host is too small for them, as many as have to.
TEST(PlannerTest, GradientsAndActivationsGoToNvmeWhereTheHostIsTooSmall) {
  const ModelLayout layout = RealLayout(12);
  PlanRequest request = Roomy(layout);
  request.micro_batches = 2;
  request.recompute = Recompute::kFull;
  request.budget[kDevice] = std::get<PlannedJob>(Plan(request)).minimum_bytes[kDevice];
  const auto in_host = [](const PlannedJob& job) {
    int units = 0;
    for (const PlanChoice::UnitHome& home : job.choice.units) units += home.gradients == Tier::kHost;
    return units;
  };
  const auto roomy = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlannedJob>(roomy));
  EXPECT_EQ(in_host(std::get<PlannedJob>(roomy)), static_cast<int>(layout.units.size()));
  const int64_t minimum = std::get<PlannedJob>(roomy).minimum_bytes[kHost];
  int64_t sums = 0;
  for (const ParamUnit& unit : layout.units) sums += unit.elements * SizeOf(layout.acc_dtype());
  EXPECT_LT(minimum, sums);
  request.budget[kHost] = minimum;
  const auto least = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlannedJob>(least)) << std::get<PlanShortfall>(least).remedy;
  EXPECT_GT(std::get<PlannedJob>(least).placement[1][2], 0);
  request.budget[kHost] = minimum + sums / 2;
  const auto half = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlannedJob>(half)) << std::get<PlanShortfall>(half).remedy;
  std::printf("%d of %zu sums in the host\n", in_host(std::get<PlannedJob>(half)), layout.units.size());
  EXPECT_GE(in_host(std::get<PlannedJob>(half)), in_host(std::get<PlannedJob>(least)));
  request.mode = Mode::kDelayed;
  request.budget[kHost] = minimum;
  EXPECT_TRUE(std::holds_alternative<PlanShortfall>(Plan(request)));
}

TEST(PlannerTest, WithRoomForAllNothingLeavesTheDevice) {
  const ModelLayout layout = RealLayout(6);
  const auto plan = Plan(Roomy(layout));
  const PlannedJob& job = std::get<PlannedJob>(plan);
  for (const PlanChoice::UnitHome& home : job.choice.units) {
    EXPECT_EQ(home.params, Tier::kDevice);
    EXPECT_EQ(home.record, Tier::kDevice);
  }
  for (int b = 1; b <= 6; ++b) EXPECT_EQ(job.choice.blocks[b].saved, PlanChoice::Saved::kKeep);
  EXPECT_EQ(job.choice.mode, Mode::kOverlap);
  PlanRequest clipped = Roomy(layout);
  clipped.clip = true;
  EXPECT_EQ(std::get<PlannedJob>(Plan(clipped)).choice.mode, Mode::kForwardOverlap);
}

// The mode is the one whose simulation is fastest, of those that give the same bits; the plan shows the
// numbers.
TEST(PlannerTest, TheModeIsChosenBySimulation) {
  const ModelLayout layout = RealLayout(12);
  PlanRequest request = Roomy(layout);
  request.params = request.gradients = Tier::kHost;
  request.optimizer = Tier::kNvme;
  const auto note = [](const PlannedJob& job) {
    for (const std::string& text : job.notes) {
      if (text.find("mode ") == 0) return text;
    }
    return std::string("no note on the mode");
  };
  const auto seconds_of = [](PlanRequest wished, Mode mode) {
    wished.mode = mode;
    return std::get<PlannedJob>(Plan(wished)).simulation.step_seconds;
  };
  std::set<std::pair<bool, Mode>> chosen;
  // From a step that is nothing but its optimizer to one in which that takes no time.
  for (const int i : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
    request.clip = i % 2 == 1;
    request.params = i < 8 ? Tier::kHost : Tier::kNvme;
    request.io_threads = i < 8 ? 2 : 1;
    const double bandwidth = 50e6 * std::pow(5.0, i / 2 % 4);
    request.profile.nvme_read_bytes_per_second = request.profile.nvme_write_bytes_per_second = bandwidth;
    request.profile.nvme_mixed_bytes_per_second = 2 * bandwidth;
    const auto plan = Plan(request);
    const PlannedJob& job = std::get<PlannedJob>(plan);
    chosen.emplace(request.clip, job.choice.mode);
    const std::string text = note(job);
    std::printf("%.0f MB/s: %s\n", bandwidth / 1e6, text.c_str());
    EXPECT_NE(text.find("forward-overlap"), std::string::npos) << text;
    EXPECT_TRUE(text.find(" ms") != std::string::npos || text.find(" s") != std::string::npos) << text;
    EXPECT_EQ(text.find("where every step clips") != std::string::npos, request.clip) << text;
    // Never slower than the mode that would have been taken without looking.
    const Mode usual = request.clip ? Mode::kForwardOverlap : Mode::kOverlap;
    EXPECT_LE(job.simulation.step_seconds, seconds_of(request, usual) * 1.01) << text;
  }
  const std::set<std::pair<bool, Mode>> same_bits = {{false, Mode::kOverlap},
                                                     {false, Mode::kForwardOverlap},
                                                     {true, Mode::kForwardOverlap},
                                                     {true, Mode::kSpeculative}};
  for (const auto& mode : chosen) EXPECT_EQ(same_bits.count(mode), 1u) << Name(mode.second);
  EXPECT_GE(chosen.size(), 3u);
  request.mode = Mode::kSync;
  const auto asked = Plan(request);
  EXPECT_NE(note(std::get<PlannedJob>(asked)).find("mode sync as asked"), std::string::npos);
}

// The way to the best choice of one policy is gone again without its wish: for another mode, for more memory.
TEST(PlannerTest, MovesTakeWholeSegmentsApart) {
  const ModelLayout layout = RealLayout(9);
  PlanRequest wished = Roomy(layout);
  wished.recompute = Recompute::kSqrt;
  const PlanChoice segments = PlacementSearch(wished).bases().front();
  const PlanRequest request = Roomy(layout);
  const PlacementSearch search(request);
  const int all = search.Movable(Move::kKeepSaved);
  ASSERT_EQ(all, 9);
  for (int count = 0; count <= all; ++count) {
    const PlanChoice moved = search.Moved(segments, Move::kKeepSaved, count);
    EXPECT_TRUE(CheckChoice(layout, moved).ok()) << count << ": " << CheckChoice(layout, moved);
    EXPECT_TRUE(BuildPlans(layout, moved).ok()) << count;
  }
}

// From a rating and the bytes of a step, by hand.
TEST(PlannerTest, APlanSaysHowLongTheDriveLasts) {
  const ModelLayout layout = RealLayout(6);
  PlanRequest request = Roomy(layout);
  request.optimizer = Tier::kNvme;
  const auto note = [&] {
    const auto plan = Plan(request);
    for (const std::string& text : std::get<PlannedJob>(plan).notes) {
      if (text.find("nvme: ") == 0) return text;
    }
    return std::string();
  };
  EXPECT_EQ(note(), "");
  request.profile.nvme_endurance_bytes = 600e12;
  const auto plan = Plan(request);
  const PlannedJob& job = std::get<PlannedJob>(plan);
  const double steps = 600e12 / static_cast<double>(job.written_bytes[2]);
  const double days = steps * job.simulation.step_seconds / 86400;
  EXPECT_NE(note().find(absl::StrFormat("rated for 600 TB lasts %.1f days", days)), std::string::npos)
      << note();
  request.optimizer = Tier::kHost;
  EXPECT_EQ(note(), "");
}

TEST(PlannerTest, ImpossibleWishesNameTheField) {
  const ModelLayout layout = RealLayout(2);
  const auto message = [&](const auto& change) {
    PlanRequest request = Roomy(layout);
    change(&request);
    const absl::Status status = MakePlan(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_NE(message([](PlanRequest* r) {
              r->gradients = Tier::kNvme;
              r->mode = Mode::kDelayed;
            }).find("memory.placement.gradients"),
            std::string::npos);
  EXPECT_NE(message([](PlanRequest* r) {
              r->optimizer = Tier::kDevice;
              r->params = Tier::kHost;
            }).find("memory.placement.optimizer"),
            std::string::npos);
  EXPECT_NE(message([](PlanRequest* r) {
              r->mode = Mode::kOverlap;
              r->clip = true;
            }).find("memory.mode"),
            std::string::npos);
  EXPECT_NE(message([](PlanRequest* r) { r->chunk_elements = -2048; }).find("memory.chunk_elements"),
            std::string::npos);
  EXPECT_NE(message([](PlanRequest* r) { r->micro_batches = int64_t{1} << 40; }).find("training.micro_batch"),
            std::string::npos);
  EXPECT_NE(message([](PlanRequest* r) { r->prefetch_depth = -1; }).find("memory.prefetch_depth"),
            std::string::npos);
  EXPECT_NE(message([](PlanRequest* r) { r->chunk_elements = 77; }).find("memory.chunk_elements"),
            std::string::npos);
}

TEST(PlannerTest, ARemedyThatRelaxesAWishIsNamedWhenItHelps) {
  const ModelLayout layout = RealLayout(12);
  PlanRequest request = Roomy(layout);
  request.recompute = Recompute::kFull;
  const int64_t small = std::get<PlannedJob>(Plan(request)).minimum_bytes[kDevice];
  request.recompute = Recompute::kNone;
  request.budget[kDevice] = small;
  // Without room elsewhere for what it keeps.
  request.params = request.gradients = request.optimizer = Tier::kHost;
  request.activations = Tier::kHost;
  request.recompute = Recompute::kFull;
  const auto full = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlannedJob>(full)) << std::get<PlanShortfall>(full).remedy;
  request.budget[kHost] = std::get<PlannedJob>(full).minimum_bytes[kHost];
  request.budget[2] = 0;
  request.recompute = Recompute::kNone;
  const auto plan = Plan(request);
  ASSERT_TRUE(std::holds_alternative<PlanShortfall>(plan));
  EXPECT_NE(std::get<PlanShortfall>(plan).remedy.find("memory.recompute: full"), std::string::npos)
      << std::get<PlanShortfall>(plan).remedy;
}

TEST(PlannerTest, EqualRequestsGiveEqualPlansQuickly) {
  for (const int layers : {24, 80}) {
    const ModelLayout layout = RealLayout(layers);
    PlanRequest request = Roomy(layout);
    request.clip = true;
    request.micro_batches = 4;
    request.budget = {40 * kMiB, layers * 20 * kMiB, int64_t{64} << 30};
    const auto begin = std::chrono::steady_clock::now();
    const auto first = Plan(request);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%d layers: %.0f ms\n", layers, 1e3 * seconds);
    ASSERT_TRUE(std::holds_alternative<PlannedJob>(first)) << std::get<PlanShortfall>(first).remedy;
    for (const std::string& note : std::get<PlannedJob>(first).notes) std::printf("  %s\n", note.c_str());
    const auto second = Plan(request);
    EXPECT_EQ(std::get<PlannedJob>(first).train.ops.size(), std::get<PlannedJob>(second).train.ops.size());
    EXPECT_EQ(std::get<PlannedJob>(first).peak_bytes, std::get<PlannedJob>(second).peak_bytes);
    EXPECT_EQ(std::get<PlannedJob>(first).notes, std::get<PlannedJob>(second).notes);
  }
}

}  // namespace
}  // namespace strata
