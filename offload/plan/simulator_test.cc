#include "offload/plan/simulator.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "offload/plan/builder.h"
#include "offload/plan/planner.h"
#include "offload/plan/test_layouts.h"

namespace strata {
namespace {

struct Case {
  ModelLayout layout;
  PlanChoice choice;
  StepPlan plan;
};

Case Build(Mode mode, int depth, Tier record = Tier::kNvme) {
  Case c;
  c.layout = MakeTestLayout(TestShape{.layers = 6, .layer_elements = 1 << 20});
  c.choice = UniformChoice(c.layout, Tier::kHost, Tier::kHost, record, Tier::kHost, false);
  c.choice.mode = mode;
  c.choice.prefetch_depth = depth;
  c.choice.chunk_elements = 1 << 18;
  absl::StatusOr<StepPlan> plan = BuildPlan(c.layout, c.choice, PlanKind::kTrain);
  EXPECT_TRUE(plan.ok()) << plan.status();
  c.plan = *std::move(plan);
  return c;
}

Simulation SimulateCase(const Case& c, const MachineProfile& profile = MachineProfile()) {
  absl::StatusOr<Simulation> simulation = Simulate(c.layout, c.plan, profile);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return *std::move(simulation);
}

double Sum(const Simulation& simulation) {
  double sum = 0;
  for (const LaneEstimate& lane : simulation.lanes) sum += lane.alone_seconds;
  return sum;
}

Case RandomCase(TestRandom& random, bool minimum_slots) {
  Case c;
  c.layout = MakeTestLayout(RandomShape(random));
  c.choice = RandomChoice(c.layout, random, minimum_slots);
  absl::StatusOr<StepPlan> plan = BuildPlan(c.layout, c.choice, PlanKind::kTrain);
  EXPECT_TRUE(plan.ok()) << plan.status();
  c.plan = *std::move(plan);
  return c;
}

MachineProfile RandomProfile(TestRandom& random, bool shared) {
  const auto around = [&](double value) { return value * (0.1 + 3 * random.Uniform()); };
  MachineProfile profile;
  for (ComputeRates* rates : {&profile.f32, &profile.bf16}) {
    rates->forward_gemm = {{1, around(1e12)}};
    rates->backward_gemm = {{1, around(1e12)}};
  }
  profile.h2d_bytes_per_second = around(1e8);
  profile.d2h_bytes_per_second = around(1e8);
  profile.nvme_read_bytes_per_second = around(1e8);
  profile.nvme_write_bytes_per_second = around(1e8);
  // Unshared: full duplex, and one lane of each kind (see the caller).
  profile.nvme_mixed_bytes_per_second =
      shared ? around(1e8) : profile.nvme_read_bytes_per_second + profile.nvme_write_bytes_per_second;
  profile.adamw_seconds_per_parameter = around(1e-8);
  profile.per_op_seconds = random.Below(2) == 0 ? 0 : around(2e-5);
  if (shared) {
    profile.cores = 1 + random.Below(4);
    profile.dram_bytes_per_second = around(1e9);
  }
  return profile;
}

TEST(SimulatorTest, AStepTakesAtLeastItsBoundAndAtMostFillAndDrainMore) {
  constexpr uint64_t kSeed = 20261130;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  TestRandom random(kSeed);
  double tightest = 1e9, slowest = 0;
  for (int i = 0; i < 400; ++i) {
    const bool shared = i % 2 == 0;
    const Case c = RandomCase(random, /*minimum_slots=*/i % 3 == 0);
    const Simulation s = SimulateCase(c, RandomProfile(random, shared));
    SCOPED_TRACE(i);
    EXPECT_GE(s.step_seconds, s.bound_seconds * (1 - 1e-9));
    EXPECT_LE(s.step_seconds, Sum(s) * (1 + 1e-9));
    EXPECT_GE(s.single_step_seconds, s.bound_seconds * (1 - 1e-9));
    EXPECT_GE(s.single_step_seconds * (1 + 1e-9), s.fill_seconds + s.drain_seconds);
    // What lanes share delays in ways that are not monotonous, if only a little.
    const double fill_and_drain = s.single_step_seconds - s.bound_seconds;
    EXPECT_LE(s.step_seconds, (s.bound_seconds + fill_and_drain) *
                                  (shared || c.choice.io_threads > 1 || c.choice.direct ? 1.25 : 1 + 1e-9));
    tightest = std::min(tightest, s.step_seconds / s.bound_seconds);
    slowest = std::max(slowest, s.step_seconds / s.bound_seconds);
    for (const LaneEstimate& lane : s.lanes) EXPECT_GE(lane.busy_seconds, lane.alone_seconds * (1 - 1e-9));
  }
  std::printf("step / bound: %.3f to %.3f\n", tightest, slowest);
  EXPECT_LT(tightest, 1.01);
  EXPECT_GT(slowest, 1.5);
}

TEST(SimulatorTest, PeaksAreThoseOfThePlan) {
  TestRandom random(7);
  for (int i = 0; i < 100; ++i) {
    const Case c = RandomCase(random, i % 2 == 0);
    const Simulation s = SimulateCase(c);
    SCOPED_TRACE(i);
    EXPECT_EQ(s.peak_bytes[0], c.plan.arena_bytes[0]);
    EXPECT_EQ(s.peak_bytes[2], c.plan.arena_bytes[2]);
    // Between runs states go through the host arena behind the persistent slots: room that steps may not
    // need.
    int64_t host = c.plan.arena_bytes[1];
    if (const Slot& last = c.plan.slots.back(); last.name == "state staging") host = last.offset;
    EXPECT_EQ(s.peak_bytes[1], host);
  }
}

TEST(SimulatorTest, APlanThatCannotFinishIsNamed) {
  Case c = Build(Mode::kOverlap, 1);
  // The first operation of the compute lane waits for the last.
  const int32_t last = static_cast<int32_t>(c.plan.ops.size()) - 1;
  for (Op& op : c.plan.ops) {
    if (c.plan.lanes[op.lane].kind != LaneKind::kCompute) continue;
    op.dependencies.push_back(Dependency{last, 0});
    break;
  }
  const absl::StatusOr<Simulation> simulation = Simulate(c.layout, c.plan, MachineProfile());
  ASSERT_EQ(simulation.status().code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(absl::StrContains(simulation.status().message(), "never finishes")) << simulation.status();
}

// Selective computes a part again, and only that takes time.
TEST(SimulatorTest, ARecomputeOfTheRestTakesWhatTheRestTakes) {
  Case c = Build(Mode::kOverlap, 2);
  const auto compute_seconds = [&](PlanChoice::Saved saved) {
    for (size_t b = 1; b + 1 < c.choice.blocks.size(); ++b) {
      c.choice.blocks[b].saved = saved;
      c.choice.blocks[b].saved_home = Tier::kDevice;
    }
    absl::StatusOr<StepPlan> plan = BuildPlan(c.layout, c.choice, PlanKind::kTrain);
    EXPECT_TRUE(plan.ok()) << plan.status();
    c.plan = *std::move(plan);
    MachineProfile profile;
    profile.per_op_seconds = 0;
    for (const LaneEstimate& lane : SimulateCase(c, profile).lanes) {
      if (lane.lane.kind == LaneKind::kCompute) return lane.alone_seconds;
    }
    return 0.0;
  };
  const double none = compute_seconds(PlanChoice::Saved::kKeep);
  const ComputeRates rates = MachineProfile().rates(c.layout.compute_dtype);
  // The last block's is there still.
  const double again = 5 * RestSeconds(c.layout.blocks[1], rates);
  EXPECT_NEAR(compute_seconds(PlanChoice::Saved::kSelective), none + again, 1e-9);
  EXPECT_LT(none + again, none + 5 * ForwardSeconds(c.layout.blocks[1], rates));
}

// What precision: fp8, adamw8bit and dropout change of a step is what they take, and their own speeds say
// what that is.
TEST(SimulatorTest, Fp8AdamW8AndDropoutHaveSpeedsOfTheirOwn) {
  MachineProfile profile;
  profile.per_op_seconds = 0;
  profile.bf16.fp8_forward_gemm = {{1, 100e9}};
  profile.bf16.fp8_backward_gemm = {{1, 50e9}};
  profile.bf16.dropout_elements_per_second = 1e9;
  profile.adamw_seconds_per_parameter = 2e-9;
  profile.adamw8bit_seconds_per_parameter = 7e-9;
  const auto alone = [&](const Case& c, LaneKind kind) {
    double seconds = 0;
    for (const LaneEstimate& lane : SimulateCase(c, profile).lanes) {
      if (lane.lane.kind == kind) seconds += lane.alone_seconds;
    }
    return seconds;
  };
  Case c = Build(Mode::kSync, 2);
  const double compute = alone(c, LaneKind::kCompute), cpu = alone(c, LaneKind::kCpu);
  // Passes of blocks in a step, by the plan itself.
  int forward = 0, backward = 0;
  double parameters = 0;
  for (const Op& op : c.plan.ops) {
    const bool transformer =
        op.block >= 0 && c.layout.blocks[static_cast<size_t>(op.block)].kind == BlockKind::kTransformer;
    forward += transformer && (op.kind == OpKind::kForward || op.kind == OpKind::kRecompute);
    backward += transformer && op.kind == OpKind::kBackward;
    if (op.kind != OpKind::kUpdate || c.plan.lanes[op.lane].kind != LaneKind::kCpu) continue;
    const ChunkInfo& chunk = c.plan.chunks[op.unit][op.chunk];
    parameters += static_cast<double>(chunk.end - chunk.begin);
  }
  ASSERT_GT(forward, 0);
  ASSERT_GT(backward, 0);
  ASSERT_GT(parameters, 0);

  Case fp8 = c;
  double slower = 0;
  for (Block& block : fp8.layout.blocks) {
    if (block.kind != BlockKind::kTransformer) continue;
    block.fp8 = true;
    const double there = block.forward_flops - block.forward_attention_flops;
    const double back = block.backward_flops - block.backward_attention_flops;
    slower = forward * there * (1 / 100e9 - 1 / 400e9) + backward * back * (1 / 50e9 - 1 / 400e9);
  }
  EXPECT_NEAR(alone(fp8, LaneKind::kCompute), compute + slower, 1e-9 * compute);
  EXPECT_DOUBLE_EQ(alone(fp8, LaneKind::kCpu), cpu);

  Case dropping = c;
  for (Block& block : dropping.layout.blocks) {
    if (block.kind == BlockKind::kTransformer) block.dropout_elements = 3e6;
  }
  EXPECT_NEAR(alone(dropping, LaneKind::kCompute), compute + (forward + backward) * 3e-3, 1e-9 * compute);

  Case codes = c;
  codes.layout.moments = Moments::kCode8;  // the plan stays: what it moves is not asked for here
  EXPECT_NEAR(alone(codes, LaneKind::kCpu), cpu + parameters * 5e-9, 1e-9 * cpu);
  EXPECT_DOUBLE_EQ(alone(codes, LaneKind::kCompute), compute);
}

TEST(SimulatorTest, OverlapAndPrefetchSaveTime) {
  const double sync = SimulateCase(Build(Mode::kSync, 1)).step_seconds;
  const double overlap = SimulateCase(Build(Mode::kOverlap, 1)).step_seconds;
  const double deep = SimulateCase(Build(Mode::kOverlap, 4)).step_seconds;
  EXPECT_LT(overlap, sync);
  EXPECT_LT(deep, overlap);
  EXPECT_LT(SimulateCase(Build(Mode::kForwardOverlap, 4)).step_seconds,
            SimulateCase(Build(Mode::kSync, 4)).step_seconds);
}

TEST(SimulatorTest, WhatLanesShareSlowsThemDown) {
  const Case c = Build(Mode::kOverlap, 4);
  MachineProfile profile;
  profile.nvme_read_bytes_per_second = profile.nvme_write_bytes_per_second = 1e8;
  profile.nvme_mixed_bytes_per_second = 2e8;
  const Simulation duplex = SimulateCase(c, profile);
  profile.nvme_mixed_bytes_per_second = 1e8;
  const Simulation half = SimulateCase(c, profile);
  EXPECT_GT(half.step_seconds,
            1.5 * duplex.step_seconds);  // not twice: what fills and drains is not bound by it
  EXPECT_EQ(half.binding, "nvme reads and writes together");
  EXPECT_NEAR(half.bound_seconds, 2 * duplex.bound_seconds, 0.05 * half.bound_seconds);
  // The bytes and the time alone are the same: only the time beside others grows.
  for (size_t l = 0; l < half.lanes.size(); ++l) {
    EXPECT_EQ(half.lanes[l].bytes, duplex.lanes[l].bytes);
    EXPECT_EQ(half.lanes[l].alone_seconds, duplex.lanes[l].alone_seconds);
  }
  // One core: computing and the optimizer take turns.
  MachineProfile cores;
  cores.adamw_seconds_per_parameter = 3e-9;
  const double many = SimulateCase(c, cores).step_seconds;
  cores.cores = 1;
  EXPECT_GT(SimulateCase(c, cores).step_seconds, many);
}

// Transfers need little of a core: they get it however many operations compute.
TEST(SimulatorTest, WhoAsksForLittleOfAResourceGetsIt) {
  Case c = Build(Mode::kForwardOverlap, 4);
  c.choice.io_threads = 1;
  absl::StatusOr<StepPlan> plan = BuildPlan(c.layout, c.choice, PlanKind::kTrain);
  ASSERT_TRUE(plan.ok()) << plan.status();
  c.plan = *std::move(plan);
  MachineProfile profile;
  profile.threads = profile.cores = 1;
  profile.nvme_cores = 0.1;
  profile.nvme_mixed_bytes_per_second =
      profile.nvme_read_bytes_per_second + profile.nvme_write_bytes_per_second;
  profile.bf16.forward_gemm = profile.bf16.backward_gemm = {{1, 1e9}};
  profile.adamw_seconds_per_parameter = 1e-7;
  const Simulation s = SimulateCase(c, profile);
  double work = 0;
  for (const LaneEstimate& lane : s.lanes) {
    const bool nvme = lane.lane.kind == LaneKind::kNvmeRead || lane.lane.kind == LaneKind::kNvmeWrite;
    if (nvme) {
      EXPECT_NEAR(lane.busy_seconds, lane.alone_seconds, 1e-9 * lane.alone_seconds);
    }
    if (lane.lane.kind == LaneKind::kCompute || lane.lane.kind == LaneKind::kCpu) work += lane.alone_seconds;
  }
  // One core: the lanes that compute take turns, and the transfers' part comes on top.
  EXPECT_GT(s.step_seconds, work);
}

TEST(SimulatorTest, WaitsForTransfersAreExposed) {
  MachineProfile slow;
  slow.nvme_read_bytes_per_second = slow.nvme_write_bytes_per_second = 1e8;
  const Simulation bound_by_disk = SimulateCase(Build(Mode::kSync, 1), slow);
  EXPECT_GT(bound_by_disk.exposed_io_seconds, 0.5 * bound_by_disk.step_seconds);
  MachineProfile slow_compute;
  slow_compute.bf16.forward_gemm = slow_compute.bf16.backward_gemm = {{1, 1e9}};
  const Simulation bound_by_compute = SimulateCase(Build(Mode::kOverlap, 4), slow_compute);
  EXPECT_LT(bound_by_compute.exposed_io_seconds, 0.05 * bound_by_compute.step_seconds);
  EXPECT_EQ(bound_by_compute.binding, "compute");
}

TEST(MachineProfileTest, RatesAreInterpolatedAndScaleWithThreads) {
  const std::vector<RatePoint> points = {{1e9, 100}, {1e11, 300}};
  EXPECT_EQ(RateAt(points, 1), 100);
  EXPECT_DOUBLE_EQ(RateAt(points, 1e10), 200);
  EXPECT_EQ(RateAt(points, 1e13), 300);
  MachineProfile profile;
  profile.cores = 2;
  profile.threads = 1;
  const MachineProfile four = WithThreads(profile, 4);  // two cores are all there is
  EXPECT_DOUBLE_EQ(four.bf16.attention_flops, 2 * profile.bf16.attention_flops);
  EXPECT_DOUBLE_EQ(four.adamw_seconds_per_parameter, profile.adamw_seconds_per_parameter / 2);
  EXPECT_DOUBLE_EQ(four.adamw8bit_seconds_per_parameter, profile.adamw8bit_seconds_per_parameter / 2);
  EXPECT_DOUBLE_EQ(four.bf16.fp8_forward_gemm[0].rate, 2 * profile.bf16.fp8_forward_gemm[0].rate);
  EXPECT_DOUBLE_EQ(four.bf16.dropout_elements_per_second, 2 * profile.bf16.dropout_elements_per_second);
  EXPECT_EQ(WithThreads(profile, 1), profile);
}

}  // namespace
}  // namespace strata
