#include "offload/plan/builder.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "offload/plan/planner.h"
#include "offload/plan/slot_table.h"
#include "offload/plan/store_layout_of.h"
#include "offload/plan/test_layouts.h"
#include "offload/plan/verifier.h"

namespace strata {
namespace {

std::vector<TestShape> Shapes() {
  return {
      TestShape{},
      TestShape{.layers = 1},
      TestShape{.layers = 5, .norm_elements = 0, .tied = true},
      TestShape{.layers = 4, .tied = true, .units_per_layer = 2, .compute = DType::kF32},
      TestShape{.layers = 6, .saved_rest_bytes = 0},
      TestShape{.layers = 4, .compute = DType::kF64, .saved_bytes = 0, .saved_rest_bytes = 0},
  };
}

std::string Text(const PlanChoice& c) {
  return absl::StrCat("params ", Name(c.units[0].params), " gradients ", Name(c.units[0].gradients),
                      " record ", Name(c.units[0].record), " mode ", Name(c.mode), " clip ", c.clip,
                      " depth ", c.prefetch_depth, " io ", c.io_threads, " micro-batches ", c.micro_batches,
                      " chunk ", c.chunk_elements, c.direct ? " direct" : "");
}

// Every placement that exists, for every shape, in every mode.
template <typename Visit>
void ForAllChoices(const ModelLayout& layout, const Visit& visit) {
  constexpr Tier kAll[] = {Tier::kDevice, Tier::kHost, Tier::kNvme};
  int n = 0;
  for (const Tier params : kAll) {
    for (const Tier gradients : kAll) {
      for (const Tier record : kAll) {
        if (record == Tier::kDevice && (params != Tier::kDevice || gradients != Tier::kDevice)) continue;
        for (const Holding& holding : Holdings()) {
          PlanChoice choice = UniformChoice(layout, params, gradients, record, Tier::kHost, false);
          Hold(holding, &choice);
          // The rest turns with the placement, so that all of it is seen with all of that.
          for (int turn = 0; turn < 3; ++turn, ++n) {
            choice.mode = static_cast<Mode>((n / 2 + turn) % 5);
            if (choice.mode == Mode::kDelayed && gradients == Tier::kNvme) choice.mode = Mode::kSpeculative;
            choice.clip = n % 2 == 0 && choice.mode != Mode::kOverlap;
            choice.prefetch_depth = 1 + (n / 3 + turn) % 4;
            choice.io_threads = 1 + (n / 5) % 4;
            choice.micro_batches = 1 + (n / 7 + turn) % 3;
            choice.direct = (n / 4 + turn) % 3 == 0;
            choice.chunk_elements = turn == 0 ? 2048 : turn == 1 ? 4096 : 4 << 20;
            visit(choice, absl::StrCat(Text(choice), " ", holding.name));
          }
        }
      }
    }
  }
}

TEST(BuilderTest, EveryChoiceGivesPlansThatVerifyAndPeaksThatSumsAloneKnow) {
  for (const TestShape& shape : Shapes()) {
    const ModelLayout layout = MakeTestLayout(shape);
    const LayoutFacts facts(layout);
    ForAllChoices(layout, [&](const PlanChoice& choice, const std::string& text) {
      const absl::StatusOr<BuiltPlans> plans = BuildPlans(layout, choice);
      ASSERT_TRUE(plans.ok()) << plans.status() << " for " << text;
      const auto peaks = PeakBytes(layout, facts, choice);
      for (int t = 0; t < kTierCount; ++t) {
        EXPECT_EQ(peaks[t], std::max(plans->train.arena_bytes[t], plans->eval.arena_bytes[t])) << text;
      }
      const absl::StatusOr<uint64_t> capacity = CapacityBytes(StoreLayoutOf(plans->train));
      ASSERT_TRUE(capacity.ok()) << capacity.status();
      EXPECT_EQ(peaks[static_cast<int>(Tier::kNvme)], static_cast<int64_t>(*capacity)) << text;
    });
  }
}

TEST(BuilderTest, BothPlansShareTheirPersistentSlots) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 4, .tied = true});
  ForAllChoices(layout, [&](const PlanChoice& choice, const std::string& text) {
    const absl::StatusOr<BuiltPlans> plans = BuildPlans(layout, choice);
    ASSERT_TRUE(plans.ok()) << plans.status() << " for " << text;
    for (size_t s = 0; s < plans->train.slots.size() && plans->train.slots[s].persistent; ++s) {
      const Slot& train = plans->train.slots[s];
      const Slot& eval = plans->eval.slots[s];
      EXPECT_TRUE(train.tier == eval.tier && train.offset == eval.offset && train.bytes == eval.bytes &&
                  eval.persistent && train.name == eval.name);
    }
  });
}

// Memory that does not grow with depth: what a layer (or a segment) needs stays, whatever their number.
TEST(BuilderTest, DevicePeakIsConstantInLayersWhereNothingIsHeldOnTheDevice) {
  for (const Holding& holding : Holdings()) {
    if (holding.activation == Tier::kDevice || holding.mixed || holding.segment > 3 ||
        (holding.saved != PlanChoice::Saved::kRecompute && holding.saved_home == Tier::kDevice))
      continue;
    int64_t peak = 0;
    for (const int layers : {6, 12, 24, 48}) {
      const ModelLayout layout = MakeTestLayout(TestShape{.layers = layers});
      PlanChoice choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kNvme, Tier::kHost, false);
      Hold(holding, &choice);
      const int64_t now = PeakBytes(layout, LayoutFacts(layout), choice)[static_cast<int>(Tier::kDevice)];
      if (peak == 0) peak = now;
      EXPECT_EQ(now, peak) << layers << ", " << holding.name;
    }
  }
}

// One forward pass more at most, less what the last segment has left behind.
TEST(BuilderTest, SegmentsAreComputedAgainOnce) {
  constexpr int kLayers = 8;
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = kLayers});
  for (const int segment : {1, 2, 3, 4, 8}) {
    PlanChoice choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false);
    choice.micro_batches = 2;
    Hold({"", PlanChoice::Saved::kRecompute, Tier::kDevice, Tier::kHost, segment}, &choice);
    const absl::StatusOr<BuiltPlans> plans = BuildPlans(layout, choice);
    ASSERT_TRUE(plans.ok()) << plans.status();
    int recomputes = 0, out = 0;
    for (const Op& op : plans->train.ops) {
      recomputes += op.kind == OpKind::kRecompute;
      out += op.kind == OpKind::kActOut;
    }
    const int last = (kLayers - 1) % segment + 1;
    EXPECT_EQ(recomputes, 2 * (kLayers - last)) << segment;
    // Where inputs follow each other two are on the device at one time: the last is there still.
    EXPECT_EQ(out, 2 * ((kLayers - 1) / segment + (segment == 1 ? 0 : 1))) << segment;
  }
}

// Transfers of one kind and content, by block (of sums: by unit).
std::map<int, int> Transfers(const StepPlan& plan, OpKind kind, ContentKind content) {
  std::map<int, int> count;
  for (const Op& op : plan.ops) {
    if (op.kind == kind && op.operands[0].content.kind == content)
      ++count[content == ContentKind::kAccumulated ? op.unit : op.block];
  }
  return count;
}

StepPlan SixLayers(Tier gradients, Tier activation, int depth, int64_t micro_batches) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 6, .edge_elements = 64});
  PlanChoice choice = UniformChoice(layout, Tier::kHost, gradients, Tier::kHost, activation, true);
  for (PlanChoice::BlockChoice& block : choice.blocks) block.saved_home = activation;
  choice.prefetch_depth = depth;
  choice.micro_batches = micro_batches;
  choice.chunk_elements = 2048;
  const absl::StatusOr<BuiltPlans> plans = BuildPlans(layout, choice);
  EXPECT_TRUE(plans.ok()) << plans.status();
  return plans->train;
}

// Of what FORWARD makes the last is where it is when BACKWARD turns round: it neither goes nor comes, nor has
// it a home.
TEST(BuilderTest, WhatForwardMadeLastStaysWhereItIs) {
  using Count = std::map<int, int>;
  const StepPlan host = SixLayers(Tier::kHost, Tier::kHost, 1, 2);
  // One slot on the device for what moves; two for inputs, of which the head's input takes one.
  for (const ContentKind kind : {ContentKind::kSaved, ContentKind::kSavedRest, ContentKind::kActivation}) {
    const Count out = {{1, 2}, {2, 2}, {3, 2}, {4, 2}, {5, 2}};
    EXPECT_EQ(Transfers(host, OpKind::kActOut, kind), out) << Name(kind);
    EXPECT_EQ(Transfers(host, OpKind::kActIn, kind), out) << Name(kind);
  }
  // Two on the device (and a third for inputs), and two more on their way to the drive.
  const StepPlan nvme = SixLayers(Tier::kHost, Tier::kNvme, 2, 3);
  for (const ContentKind kind : {ContentKind::kSaved, ContentKind::kSavedRest, ContentKind::kActivation}) {
    const Count moved = {{1, 3}, {2, 3}, {3, 3}, {4, 3}}, stored = {{1, 3}, {2, 3}};
    EXPECT_EQ(Transfers(nvme, OpKind::kActOut, kind), moved) << Name(kind);
    EXPECT_EQ(Transfers(nvme, OpKind::kWrite, kind), stored) << Name(kind);
    EXPECT_EQ(Transfers(nvme, OpKind::kRead, kind), stored) << Name(kind);
  }
  for (const StepPlan* plan : {&host, &nvme}) {
    std::vector<bool> used(plan->slots.size(), false);
    for (const Op& op : plan->ops) {
      for (const Operand& operand : op.operands) used[operand.slot] = true;
    }
    for (size_t s = 0; s < used.size(); ++s) EXPECT_TRUE(used[s]) << plan->slots[s].name;
  }
}

// Between NVMe and the device nothing passes through the host, which has no slots for it. What the optimizer
// works on is the host's.
TEST(BuilderTest, DirectTransfersReplaceTheHostsPartInThem) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 6});
  for (const int io_threads : {1, 3}) {
    PlanChoice choice = UniformChoice(layout, Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kNvme, true);
    for (PlanChoice::BlockChoice& block : choice.blocks) block.saved_home = Tier::kNvme;
    choice.io_threads = io_threads;
    choice.prefetch_depth = 2;
    choice.micro_batches = 2;
    const absl::StatusOr<BuiltPlans> through = BuildPlans(layout, choice);
    choice.direct = true;
    const absl::StatusOr<BuiltPlans> direct = BuildPlans(layout, choice);
    ASSERT_TRUE(through.ok() && direct.ok()) << through.status() << direct.status();
    const StepPlan& plan = direct->train;
    using Count = std::map<int, int>;
    EXPECT_EQ(Transfers(plan, OpKind::kReadDirect, ContentKind::kParams),
              Transfers(through->train, OpKind::kRead, ContentKind::kParams));
    EXPECT_EQ(Transfers(direct->eval, OpKind::kReadDirect, ContentKind::kParams),
              Transfers(through->eval, OpKind::kRead, ContentKind::kParams));
    // Nothing waits in the host on its way to the drive: there is no stage. What stays on the device stays.
    for (const ContentKind kind : {ContentKind::kSaved, ContentKind::kSavedRest, ContentKind::kActivation}) {
      const Count moved = {{1, 2}, {2, 2}, {3, 2}, {4, 2}};
      EXPECT_EQ(Transfers(plan, OpKind::kWriteDirect, kind), moved) << Name(kind);
      EXPECT_EQ(Transfers(plan, OpKind::kReadDirect, kind), moved) << Name(kind);
    }
    for (const Op& op : plan.ops) {
      const ContentKind kind = op.operands.empty() ? ContentKind::kBatch : op.operands[0].content.kind;
      EXPECT_NE(op.kind, OpKind::kActOut);
      EXPECT_NE(op.kind, OpKind::kActIn);
      EXPECT_TRUE(op.kind != OpKind::kH2D || kind == ContentKind::kBatch);
      EXPECT_TRUE(op.kind != OpKind::kRead || kind == ContentKind::kRecord);
      EXPECT_TRUE(op.kind != OpKind::kWrite || kind == ContentKind::kRecord || kind == ContentKind::kParams);
      EXPECT_EQ(plan.lanes[op.lane].direct, IsDirect(op.kind));
    }
    for (const Slot& slot : plan.slots) {
      EXPECT_EQ(slot.name.find("stage.params."), std::string::npos);
      EXPECT_EQ(slot.name.find("stage.saved"), std::string::npos);
      EXPECT_EQ(slot.name.find("stage.activation"), std::string::npos);
    }
    const auto bytes = [](const StepPlan& of, Tier tier) { return of.arena_bytes[static_cast<int>(tier)]; };
    EXPECT_LT(bytes(plan, Tier::kHost), bytes(through->train, Tier::kHost));
    EXPECT_EQ(bytes(plan, Tier::kDevice), bytes(through->train, Tier::kDevice));
  }
}

// A sum is written when its slot is wanted, not before: what is used where it has grown never is.
TEST(BuilderTest, SumsAreWrittenOnlyToMakeRoom) {
  using Count = std::map<int, int>;
  const auto written = [](int depth, int64_t micro_batches) {
    return Transfers(SixLayers(Tier::kNvme, Tier::kHost, depth, micro_batches), OpKind::kWrite,
                     ContentKind::kAccumulated);
  };
  // Five chunks each. Units 1 to 6 are the layers, 0, 7 and 8 the edges, which have slots of their own.
  const Count one = written(1, 1);
  EXPECT_EQ(one.count(1), 0u);
  for (int u = 2; u <= 6; ++u) EXPECT_EQ(one.at(u), 5) << u;
  const Count deep = written(4, 1);
  for (int u = 1; u <= 4; ++u) EXPECT_EQ(deep.count(u), 0u) << u;
  for (int u = 5; u <= 6; ++u) EXPECT_EQ(deep.at(u), 5) << u;
  const Count two = written(1, 2);
  EXPECT_EQ(two.at(1), 5);
  for (int u = 2; u <= 6; ++u) EXPECT_EQ(two.at(u), 10) << u;
  EXPECT_TRUE(written(6, 3).empty());
}

TEST(BuilderTest, DepthIsTheWindowOfNvmeLanes) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  PlanChoice choice = UniformChoice(layout, Tier::kNvme, Tier::kNvme, Tier::kNvme, Tier::kNvme, true);
  for (const auto& [depth, window] : {std::pair{1, 1}, std::pair{3, 3}, std::pair{9, 4}}) {
    choice.prefetch_depth = depth;
    const absl::StatusOr<BuiltPlans> plans = BuildPlans(layout, choice);
    ASSERT_TRUE(plans.ok()) << plans.status();
    for (const StepPlan* plan : {&plans->train, &plans->eval}) {
      for (const Lane& lane : plan->lanes) {
        const bool nvme = lane.kind == LaneKind::kNvmeRead || lane.kind == LaneKind::kNvmeWrite;
        EXPECT_EQ(lane.window, nvme ? window : 1) << Name(lane.kind) << ", depth " << depth;
      }
    }
  }
}

// It waits for CLIP and would hold up what does not.
TEST(BuilderTest, WhatIsDoneAgainHasLanesOfItsOwnAndOneSlot) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 6});
  PlanChoice choice = UniformChoice(layout, Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false);
  for (const int io_threads : {1, 3}) {
    choice.io_threads = io_threads;
    choice.prefetch_depth = 3;
    choice.mode = Mode::kOverlap;
    const absl::StatusOr<BuiltPlans> overlap = BuildPlans(layout, choice);
    choice.mode = Mode::kForwardOverlap;
    const absl::StatusOr<BuiltPlans> other = BuildPlans(layout, choice);
    ASSERT_TRUE(overlap.ok() && other.ok()) << overlap.status() << other.status();
    const StepPlan& plan = overlap->train;
    EXPECT_EQ(plan.lanes.size(), other->train.lanes.size() + 2);
    std::vector<int> redo(plan.lanes.size()), rest(plan.lanes.size());
    std::set<int32_t> redo_slots, slots;
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::kRead && op.kind != OpKind::kWrite) continue;
      ++(op.speculation == Speculation::kRedo ? redo : rest)[op.lane];
      (op.speculation == Speculation::kRedo ? redo_slots : slots)
          .insert(op.operands[op.kind == OpKind::kRead ? 1 : 0].slot);
    }
    EXPECT_EQ(redo_slots.size(), 2u);  // a record's and one of parameters
    EXPECT_GT(slots.size(), 4u);
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) EXPECT_EQ(redo[lane] * rest[lane], 0) << lane;
    EXPECT_GT(*std::max_element(redo.begin(), redo.end()), 0);
  }
}

TEST(BuilderTest, CombinationsThatDoNotExistNameTheFieldAndTheRemedy) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  PlanChoice choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kDevice, Tier::kHost, false);
  absl::Status status = BuildPlans(layout, choice).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("memory.placement.optimizer"), std::string::npos) << status;
  choice = UniformChoice(layout, Tier::kHost, Tier::kNvme, Tier::kHost, Tier::kHost, false);
  choice.mode = Mode::kDelayed;
  EXPECT_NE(BuildPlans(layout, choice).status().message().find("memory.placement.gradients"),
            std::string::npos);
  choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false);
  choice.blocks[1].checkpoint = false;
  EXPECT_NE(BuildPlans(layout, choice).status().message().find("memory.recompute"), std::string::npos);
  choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, true);
  choice.blocks[2].checkpoint = false;
  EXPECT_NE(BuildPlans(layout, choice).status().message().find("memory.recompute"), std::string::npos);
  choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false);
  choice.mode = Mode::kOverlap;
  choice.clip = true;
  EXPECT_NE(BuildPlans(layout, choice).status().message().find("memory.mode"), std::string::npos);
  choice.clip = false;
  choice.chunk_elements = 1000;
  EXPECT_NE(BuildPlans(layout, choice).status().message().find("memory.chunk_elements"), std::string::npos);
}

}  // namespace
}  // namespace strata
