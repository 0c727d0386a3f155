#include "offload/plan/planner.h"

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "gtest/gtest.h"
#include "offload/model/model_layout.h"
#include "offload/plan/test_layouts.h"

namespace strata {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int kDevice = static_cast<int>(Tier::kDevice);

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
    if (random.Below(draw++, 4) == 0) request.recompute = Recompute::kNone;
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
      EXPECT_GT(job.step_seconds, 0);
      EXPECT_GT(job.read_bytes[2], 0);
      EXPECT_EQ(job.train.arena_bytes[2], job.eval.arena_bytes[2]);
    }
  }
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
