#include "offload/plan/verifier.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "gtest/gtest.h"
#include "offload/plan/builder.h"
#include "offload/plan/plan_text.h"
#include "offload/plan/planner.h"
#include "offload/plan/symbolic_run.h"
#include "offload/plan/test_layouts.h"

namespace strata {
namespace {

StepPlan Build(const ModelLayout& layout, const PlanChoice& choice, PlanKind kind = PlanKind::kTrain) {
  absl::StatusOr<StepPlan> plan = BuildPlan(layout, choice, kind);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

constexpr RedoSteps kRedoSteps[] = {RedoSteps::kNone, RedoSteps::kAll, RedoSteps::kOdd};

// Sound plans of many kinds, with one chunk size.
std::vector<StepPlan> SoundPlans(int64_t micro_batches) {
  TestShape shape{
      .layers = 4, .layer_elements = 5120, .edge_elements = 3072, .tied = true, .frozen_units = 1 << 2};
  const ModelLayout bf16 = MakeTestLayout(shape);
  // fp16 has the sizes of bf16, and one rule of order more.
  shape.compute = DType::kF16;
  const ModelLayout f16 = MakeTestLayout(shape);
  std::vector<StepPlan> plans;
  int n = 0;
  for (const Mode mode : {Mode::kSync, Mode::kOverlap, Mode::kForwardOverlap, Mode::kSpeculative}) {
    for (const auto& [params, gradients, record] : {
             std::tuple{Tier::kDevice, Tier::kDevice, Tier::kDevice},
             std::tuple{Tier::kDevice, Tier::kDevice, Tier::kNvme},
             std::tuple{Tier::kDevice, Tier::kHost, Tier::kHost},
             std::tuple{Tier::kHost, Tier::kHost, Tier::kNvme},
             std::tuple{Tier::kNvme, Tier::kHost, Tier::kNvme},
             std::tuple{Tier::kNvme, Tier::kDevice, Tier::kHost},
             std::tuple{Tier::kHost, Tier::kNvme, Tier::kHost},
             std::tuple{Tier::kNvme, Tier::kNvme, Tier::kNvme},
         }) {
      const ModelLayout& layout = n % 2 == 0 ? bf16 : f16;
      PlanChoice choice = UniformChoice(layout, params, gradients, record,
                                        n % 2 == 0 ? Tier::kHost : Tier::kDevice, n % 3 == 0);
      choice.chunk_elements = 2048;
      choice.mode = mode;
      choice.micro_batches = micro_batches;
      choice.prefetch_depth = 1 + n % 3;
      choice.io_threads = 1 + n % 4;
      choice.direct = n / 2 % 2 == 0;
      Hold(Holdings()[n % Holdings().size()], &choice);
      plans.push_back(Build(layout, choice));
      ++n;
    }
  }
  return plans;
}

TEST(VerifierTest, EverySchedulesResultIsThatOfProgramOrder) {
  for (const StepPlan& plan : SoundPlans(2)) {
    ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
    const uint64_t digest = SymbolicRun(plan, 3, std::nullopt);
    for (const RedoSteps redo : kRedoSteps) {
      for (uint64_t seed = 0; seed < 5; ++seed) EXPECT_EQ(SymbolicRun(plan, 3, seed, redo), digest) << seed;
    }
  }
}

// P1 of the architecture, for data flow: what is computed does not depend on where things lie.
TEST(VerifierTest, PlacementModeAndDepthDoNotChangeWhatIsComputed) {
  for (const int64_t micro_batches : {1, 3}) {
    const std::vector<StepPlan> plans = SoundPlans(micro_batches);
    const uint64_t digest = SymbolicRun(plans[0], 3, std::nullopt);
    for (const StepPlan& plan : plans) {
      for (const RedoSteps redo : kRedoSteps) EXPECT_EQ(SymbolicRun(plan, 3, std::nullopt, redo), digest);
    }
  }
}

TEST(VerifierTest, DelayedUpdatesUseTheGradientOfTheStepBefore) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 3, .tied = true});
  uint64_t digest = 0;
  for (const auto& [params, gradients, record] : {
           std::tuple{Tier::kDevice, Tier::kDevice, Tier::kDevice},
           std::tuple{Tier::kDevice, Tier::kDevice, Tier::kNvme},
           std::tuple{Tier::kHost, Tier::kHost, Tier::kHost},
           std::tuple{Tier::kNvme, Tier::kHost, Tier::kNvme},
       }) {
    PlanChoice choice = UniformChoice(layout, params, gradients, record, Tier::kHost, false);
    choice.mode = Mode::kDelayed;
    choice.clip = true;
    choice.micro_batches = 2;
    const StepPlan plan = Build(layout, choice);
    ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
    if (digest == 0) digest = SymbolicRun(plan, 3, std::nullopt);
    for (uint64_t seed = 0; seed < 5; ++seed) EXPECT_EQ(SymbolicRun(plan, 3, seed), digest);
  }
  PlanChoice sync = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false);
  sync.micro_batches = 2;
  EXPECT_NE(SymbolicRun(Build(layout, sync), 3, std::nullopt), digest);
}

// Placements no test has thought of: sound, and of one layout all compute the same.
TEST(VerifierTest, RandomPlansVerifyAndComputeTheSame) {
  constexpr uint64_t kSeed = 20261131;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  TestRandom random(kSeed);
  for (int i = 0; i < 40; ++i) {
    TestShape shape = RandomShape(random);
    shape.compute = i % 3 == 0 ? DType::kF16 : i % 3 == 1 ? DType::kBF16 : DType::kF32;
    const ModelLayout layout = MakeTestLayout(shape);
    std::array<std::optional<uint64_t>, 2> digests;  // mode delayed computes something else
    for (int j = 0; j < 6; ++j) {
      PlanChoice choice = RandomChoice(layout, random, j % 3 == 0);
      choice.chunk_elements = 4096;
      choice.micro_batches = 1 + i % 3;
      const absl::StatusOr<BuiltPlans> plans = BuildPlans(layout, choice);
      ASSERT_TRUE(plans.ok()) << plans.status() << " of " << i << ", " << j;
      std::optional<uint64_t>& digest = digests[choice.mode == Mode::kDelayed];
      if (!digest.has_value()) digest = SymbolicRun(plans->train, 3, std::nullopt);
      for (const RedoSteps redo : kRedoSteps) EXPECT_EQ(SymbolicRun(plans->train, 3, j, redo), *digest);
    }
  }
}

TEST(VerifierTest, OfFrozenUnitsOnlyParametersMove) {
  constexpr int kFrozen = 2;
  for (const Mode mode : {Mode::kSync, Mode::kForwardOverlap, Mode::kSpeculative, Mode::kDelayed}) {
    for (const Tier home : {Tier::kDevice, Tier::kHost, Tier::kNvme}) {
      const Tier gradients = home == Tier::kNvme && mode == Mode::kDelayed ? Tier::kHost : home;
      const ModelLayout layout = MakeTestLayout(TestShape{.frozen_units = 1 << kFrozen});
      PlanChoice choice = UniformChoice(layout, home, gradients, home, Tier::kHost, false);
      choice.mode = mode;
      choice.micro_batches = 2;
      StepPlan plan = Build(layout, choice);
      ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
      for (const Op& op : plan.ops) {
        if (op.unit != kFrozen) continue;
        EXPECT_TRUE(op.kind == OpKind::kRead || op.kind == OpKind::kH2D)
            << DescribeOp(plan, static_cast<int32_t>(&op - plan.ops.data()));
        EXPECT_EQ(op.operands[0].content.kind, ContentKind::kParams)
            << DescribeOp(plan, static_cast<int32_t>(&op - plan.ops.data()));
      }
      // What is done for nobody is refused, and so is what is left out.
      plan.frozen[kFrozen] = false;
      EXPECT_FALSE(VerifyPlan(plan).ok());
      plan = Build(MakeTestLayout(TestShape{}), choice);
      ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
      plan.frozen[kFrozen] = true;
      const absl::Status useless = VerifyPlan(plan);
      EXPECT_FALSE(useless.ok());
      EXPECT_NE(useless.message().find("which is frozen"), std::string::npos) << useless;
      plan.frozen.clear();
      EXPECT_FALSE(VerifyPlan(plan).ok());
    }
  }
}

// ---- Mutations

class Mutator {
 public:
  Mutator(StepPlan plan, uint64_t seed) : plan_(std::move(plan)), random_(seed, 7) {}

  // The mutant, and what was done to it.
  std::pair<StepPlan, std::string> Mutate() {
    for (std::string done; done.empty();) done = what_ = Try();
    return {std::move(plan_), what_};
  }

 private:
  uint64_t Draw(uint64_t bound) { return random_.Below(draw_++, bound); }
  Op& AnyOp() { return plan_.ops[at_ = static_cast<int32_t>(Draw(plan_.ops.size()))]; }
  std::string Named(const char* what) const { return std::string(what) + " of " + DescribeOp(plan_, at_); }

  // Empty: this one did not apply.
  std::string Try() {
    switch (Draw(12)) {
      case 0: {  // drop a dependency
        Op& op = AnyOp();
        if (op.dependencies.empty()) return "";
        op.dependencies.erase(op.dependencies.begin() + static_cast<int64_t>(Draw(op.dependencies.size())));
        return Named("dropped a dependency");
      }
      case 1: {  // make a dependency one of the step before, or the reverse
        Op& op = AnyOp();
        if (op.dependencies.empty()) return "";
        op.dependencies[Draw(op.dependencies.size())].distance ^= 1;
        return Named("turned the distance");
      }
      case 2: {  // another slot of the same tier
        Op& op = AnyOp();
        if (op.operands.empty()) return "";
        Operand& operand = op.operands[Draw(op.operands.size())];
        const int32_t slot = static_cast<int32_t>(Draw(plan_.slots.size()));
        if (slot == operand.slot || plan_.slots[slot].tier != plan_.slots[operand.slot].tier) return "";
        operand.slot = slot;
        return Named("changed a slot");
      }
      case 3: {  // two slots of a pool become one
        const int32_t a = static_cast<int32_t>(Draw(plan_.slots.size()));
        const int32_t b = static_cast<int32_t>(Draw(plan_.slots.size()));
        if (a == b || plan_.slots[a].persistent || plan_.slots[b].persistent ||
            plan_.slots[a].tier != plan_.slots[b].tier || plan_.slots[a].bytes != plan_.slots[b].bytes)
          return "";
        for (Op& op : plan_.ops) {
          for (Operand& operand : op.operands) {
            if (operand.slot == b) operand.slot = a;
          }
        }
        return "merged " + DescribeSlot(plan_, a) + " and " + DescribeSlot(plan_, b);
      }
      case 4: {  // leave an operation out
        const Op& op = AnyOp();
        const std::string what = Named("removed all");
        (void)op;
        Remove(at_);
        return what;
      }
      case 5: {  // another chunk
        Op& op = AnyOp();
        if (op.chunk < 0 || plan_.chunks[op.unit].size() < 2) return "";
        const int32_t other = static_cast<int32_t>(Draw(plan_.chunks[op.unit].size()));
        if (other == op.chunk) return "";
        for (Operand& operand : op.operands) {
          if (operand.content.chunk == op.chunk) operand.content.chunk = other;
          if (operand.before.chunk == op.chunk) operand.before.chunk = other;
        }
        op.chunk = other;
        return Named("changed the chunk");
      }
      case 6: {  // move an operand
        Op& op = AnyOp();
        if (op.operands.empty()) return "";
        op.operands[Draw(op.operands.size())].offset += 64;
        return Named("moved an operand");
      }
      case 7: {  // a cycle, or only more order
        Op& op = AnyOp();
        const int32_t on = static_cast<int32_t>(Draw(plan_.ops.size()));
        op.dependencies.push_back(Dependency{on, 0});
        return Named("added a dependency");
      }
      case 8: {  // swap two neighbours
        if (plan_.ops.size() < 2) return "";
        at_ = static_cast<int32_t>(Draw(plan_.ops.size() - 1));
        Swap(at_);
        return Named("swapped neighbours");
      }
      case 9: {  // another lane
        Op& op = AnyOp();
        op.lane = static_cast<int32_t>(Draw(plan_.lanes.size()));
        return Named("changed the lane");
      }
      case 10: {  // runs in other steps
        Op& op = AnyOp();
        const auto other = static_cast<Speculation>(Draw(3));
        if (other == op.speculation) return "";
        op.speculation = other;
        return Named("changed the speculation");
      }
      default: {  // slots that overlap
        const int32_t slot = static_cast<int32_t>(Draw(plan_.slots.size()));
        if (plan_.slots[slot].tier == Tier::kNvme || plan_.slots[slot].offset == 0) return "";
        plan_.slots[slot].offset -= kSlotAlignment;
        return "moved " + DescribeSlot(plan_, slot);
      }
    }
  }

  void Remove(int32_t index) {
    plan_.ops.erase(plan_.ops.begin() + index);
    for (Op& op : plan_.ops) {
      std::vector<Dependency> kept;
      for (Dependency on : op.dependencies) {
        if (on.op == index) continue;
        if (on.op > index) --on.op;
        kept.push_back(on);
      }
      op.dependencies = std::move(kept);
    }
  }

  void Swap(int32_t index) {
    std::swap(plan_.ops[index], plan_.ops[index + 1]);
    for (Op& op : plan_.ops) {
      for (Dependency& on : op.dependencies) {
        if (on.op == index) {
          on.op = index + 1;
        } else if (on.op == index + 1) {
          on.op = index;
        }
      }
    }
  }

  StepPlan plan_;
  const CounterRandom random_;
  uint64_t draw_ = 0;
  int32_t at_ = 0;
  std::string what_;
};

// A mutant is refused, or it computes what the sound plan does under every schedule tried.
TEST(VerifierTest, MutantsAreRefusedOrHarmless) {
  constexpr uint64_t kSeed = 20261129;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 4, .tied = true});
  std::vector<StepPlan> plans = SoundPlans(2);
  for (const auto& [params, gradients, record] : {
           std::tuple{Tier::kNvme, Tier::kHost, Tier::kNvme},
           std::tuple{Tier::kDevice, Tier::kDevice, Tier::kDevice},
           std::tuple{Tier::kHost, Tier::kDevice, Tier::kHost},
       }) {
    PlanChoice delayed = UniformChoice(layout, params, gradients, record, Tier::kNvme, false);
    delayed.mode = Mode::kDelayed;
    delayed.micro_batches = 2;
    plans.push_back(Build(layout, delayed));
  }
  TestRandom random(kSeed);
  const ModelLayout small =
      MakeTestLayout(TestShape{.layers = 5, .layer_elements = 4096, .edge_elements = 2048, .tied = true});
  for (int i = 0; i < 20; ++i) plans.push_back(Build(small, RandomChoice(small, random, i % 2 == 0)));
  int refused = 0, harmless = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const StepPlan& plan = plans[i % plans.size()];
    const auto [mutant, what] = Mutator(plan, kSeed + i).Mutate();
    if (!VerifyPlan(mutant).ok()) {
      ++refused;
      continue;
    }
    ++harmless;
    const uint64_t digest = SymbolicRun(plan, 3, std::nullopt);
    EXPECT_EQ(SymbolicRun(mutant, 3, std::nullopt), digest) << "mutant " << i << ": " << what;
    const bool speculates = std::any_of(mutant.ops.begin(), mutant.ops.end(),
                                        [](const Op& op) { return op.speculation != Speculation::kNone; });
    for (const RedoSteps redo : kRedoSteps) {
      if (redo != RedoSteps::kNone && !speculates) continue;
      for (uint64_t seed = 0; seed < 3; ++seed)
        ASSERT_EQ(SymbolicRun(mutant, 3, seed, redo), digest) << "mutant " << i << ": " << what;
    }
  }
  std::printf("%d refused, %d harmless\n", refused, harmless);
  EXPECT_GT(refused, harmless);
}

// Dependencies are as short as they can be: without any one of them there is a schedule that goes wrong, or
// an order that the mode asks for is missing. The verifier must see each.
void ExpectEveryDependencyIsNeeded(const StepPlan& plan, const std::string& what) {
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    for (size_t d = 0; d < plan.ops[i].dependencies.size(); ++d) {
      StepPlan mutant = plan;
      mutant.ops[i].dependencies.erase(mutant.ops[i].dependencies.begin() + static_cast<int64_t>(d));
      EXPECT_FALSE(VerifyPlan(mutant).ok())
          << what << ": " << DescribeOp(plan, static_cast<int32_t>(i)) << " without waiting for "
          << DescribeOp(plan, plan.ops[i].dependencies[d].op);
    }
  }
}

TEST(VerifierTest, EveryDependencyIsNeeded) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 2, .tied = true});
  PlanChoice choice = UniformChoice(layout, Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false);
  choice.micro_batches = 2;
  for (const Mode mode : {Mode::kSync, Mode::kForwardOverlap, Mode::kSpeculative, Mode::kDelayed}) {
    choice.mode = mode;
    choice.direct = !choice.direct;
    ExpectEveryDependencyIsNeeded(Build(layout, choice), Name(mode));
  }
}

TEST(VerifierTest, EveryDependencyIsNeededWhateverIsHeld) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 4, .layer_elements = 4096});
  PlanChoice choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false);
  choice.micro_batches = 2;
  for (const Holding& holding : Holdings()) {
    Hold(holding, &choice);
    choice.prefetch_depth = 3 - choice.prefetch_depth;
    for (PlanChoice::UnitHome& home : choice.units)
      home.gradients = choice.prefetch_depth == 1 ? Tier::kNvme : Tier::kHost;
    for (const bool direct : {false, true}) {
      choice.direct = direct;
      ExpectEveryDependencyIsNeeded(Build(layout, choice), holding.name);
    }
  }
}

// In mode delayed nothing else holds LOSS back; in the others it waits for parameters that are updated after
// CLIP.
TEST(VerifierTest, InFp16LossWaitsForTheClipThatDecidesItsScale) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const ModelLayout layout = MakeTestLayout(TestShape{.compute = dtype});
    PlanChoice choice = UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kNvme, Tier::kHost, false);
    choice.mode = Mode::kDelayed;
    choice.micro_batches = 2;
    StepPlan plan = Build(layout, choice);
    ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
    int dropped = 0;
    for (Op& op : plan.ops) {
      if (op.kind != OpKind::kLoss) continue;
      dropped += static_cast<int>(std::erase_if(op.dependencies, [&](const Dependency& dependency) {
        return plan.ops[dependency.op].kind == OpKind::kClip;
      }));
    }
    const absl::Status status = VerifyPlan(plan);
    EXPECT_EQ(dropped, dtype == DType::kF16 ? 1 : 0);
    EXPECT_EQ(status.ok(), dtype != DType::kF16) << status;
    if (dtype == DType::kF16) {
      EXPECT_NE(status.message().find("loss scale"), std::string::npos) << status;
    }
  }
}

TEST(VerifierTest, MessagesNameOperationSlotAndContents) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  StepPlan plan =
      Build(layout, UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false));
  for (Op& op : plan.ops) {
    if (op.kind != OpKind::kActIn) continue;
    op.operands[0].slot = op.operands[0].slot + 1;  // the next block's
    break;
  }
  const std::string message(VerifyPlan(plan).message());
  EXPECT_NE(message.find("ACT_IN"), std::string::npos) << message;
  EXPECT_NE(message.find("slot"), std::string::npos) << message;
  EXPECT_NE(message.find("activation block"), std::string::npos) << message;
}

// A copy of updated parameters, safe in every way, that goes to a slot nobody looks at.
TEST(VerifierTest, AWriteThatNobodyReadsIsAFinding) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  StepPlan plan =
      Build(layout, UniformChoice(layout, Tier::kDevice, Tier::kDevice, Tier::kDevice, Tier::kHost, true));
  ASSERT_TRUE(VerifyPlan(plan).ok()) << VerifyPlan(plan);
  const int32_t commit = static_cast<int32_t>(plan.ops.size()) - 1;
  int32_t update = commit;  // of the last chunk, on the compute lane: after all others
  while (plan.ops[update].kind != OpKind::kUpdate) --update;
  Op copy;
  copy.kind = OpKind::kD2H;
  while (plan.lanes[copy.lane].kind != LaneKind::kD2H) ++copy.lane;
  copy.operands = {plan.ops[update].operands[2], plan.ops[update].operands[2]};
  copy.operands[0].access = Access::kRead;
  copy.operands[1].slot = static_cast<int32_t>(plan.slots.size());
  copy.operands[1].offset = 0;
  copy.bytes = copy.operands[0].bytes;
  copy.dependencies = {{update, 0}};
  Slot slot;
  slot.offset = plan.arena_bytes[1];
  slot.bytes = plan.slots[copy.operands[0].slot].bytes;
  slot.name = "a slot nobody looks at";
  plan.arena_bytes[1] += slot.bytes;
  plan.slots.push_back(slot);
  for (Op& op : plan.ops) {
    for (Dependency& on : op.dependencies) on.op += on.op == commit;
  }
  plan.ops.back().dependencies.push_back({commit, 0});
  plan.ops.insert(plan.ops.begin() + commit, copy);
  const std::string message(VerifyPlan(plan).message());
  for (const char* part : {"wasteful plan", "D2H", "a slot nobody looks at", "nobody reads"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(VerifierTest, OperandsOfAnOperationAreApart) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  StepPlan plan =
      Build(layout, UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost, false));
  for (Op& op : plan.ops) {
    if (op.kind != OpKind::kForward || op.block != 1) continue;
    op.operands[1].slot = op.operands[3].slot;  // the saved rest into the output
    break;
  }
  const std::string message(VerifyPlan(plan).message());
  for (const char* part : {"FORWARD", "saved-rest", "activation", "overlap"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(VerifierTest, OnlyNvmeLanesHaveAWindow) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  const StepPlan sound =
      Build(layout, UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kNvme, Tier::kHost, false));
  for (size_t lane = 0; lane < sound.lanes.size(); ++lane) {
    const LaneKind kind = sound.lanes[lane].kind;
    const bool nvme = kind == LaneKind::kNvmeRead || kind == LaneKind::kNvmeWrite;
    for (const int window : {0, 2}) {
      StepPlan plan = sound;
      plan.lanes[lane].window = window;
      const absl::Status status = VerifyPlan(plan);
      EXPECT_EQ(status.ok(), nvme && window == 2) << status;
      if (!status.ok()) {
        EXPECT_NE(status.message().find("in flight"), std::string::npos) << status;
      }
    }
  }
}

// An executor has one way to move bytes on a lane.
TEST(VerifierTest, DirectOperationsHaveTheirLanesAlone) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  PlanChoice choice = UniformChoice(layout, Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false);
  choice.direct = true;
  const StepPlan sound = Build(layout, choice);
  ASSERT_TRUE(VerifyPlan(sound).ok()) << VerifyPlan(sound);
  for (size_t lane = 0; lane < sound.lanes.size(); ++lane) {
    StepPlan plan = sound;
    plan.lanes[lane].direct = !plan.lanes[lane].direct;
    const bool used = std::any_of(plan.ops.begin(), plan.ops.end(),
                                  [&](const Op& op) { return op.lane == static_cast<int32_t>(lane); });
    const LaneKind kind = plan.lanes[lane].kind;
    const bool nvme = kind == LaneKind::kNvmeRead || kind == LaneKind::kNvmeWrite;
    EXPECT_EQ(VerifyPlan(plan).ok(), nvme && !used) << DescribeLane(plan.lanes[lane]);
  }
}

TEST(VerifierTest, BudgetsAreHard) {
  const ModelLayout layout = MakeTestLayout(TestShape{});
  const StepPlan plan =
      Build(layout, UniformChoice(layout, Tier::kHost, Tier::kHost, Tier::kNvme, Tier::kHost, false));
  std::array<int64_t, kTierCount> budget;
  std::copy(std::begin(plan.arena_bytes), std::end(plan.arena_bytes), budget.begin());
  EXPECT_TRUE(VerifyPlan(plan, budget).ok());
  for (int t = 0; t < kTierCount; ++t) {
    auto tight = budget;
    --tight[t];
    EXPECT_EQ(VerifyPlan(plan, tight).code(), absl::StatusCode::kResourceExhausted);
  }
}

TEST(VerifierTest, TwentyThousandOperationsInASecond) {
  const ModelLayout layout = MakeTestLayout(TestShape{.layers = 80});
  PlanChoice choice = UniformChoice(layout, Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost, false);
  choice.micro_batches = 16;
  choice.chunk_elements = 4 << 20;
  const StepPlan plan = Build(layout, choice);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(VerifyPlan(plan).ok());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%zu operations verified in %.0f ms\n", plan.ops.size(), 1e3 * seconds);
  EXPECT_LT(seconds, 10);  // A loaded machine is no reason to fail; quadratic time would be.
}

}  // namespace
}  // namespace strata
