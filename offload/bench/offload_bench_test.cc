// The promises of the engine on the synthetic model: where bytes live and how they travel is invisible to the
// states, and what is reported is what was planned.
#include "offload/bench/offload_bench.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/checked.h"
#include "common/fd.h"
#include "gtest/gtest.h"
#include "offload/io/io_engine.h"
#include "offload/io/path_probe.h"
#include "offload/plan/chunk_size.h"
#include "offload/plan/test_layouts.h"

namespace strata {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kStoreBlock = 4096;

class OffloadBenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/offload_bench_test_" + std::to_string(getpid());
    ASSERT_TRUE(MakeDirectories(folder_).ok());
    const auto info = ProbePath(folder_);
    ASSERT_TRUE(info.ok()) << info.status();
    base_.shape = {.parameters = 400'000, .layers = 3, .rows = 50};
    base_.request.budget = {64 * kMiB, 64 * kMiB, 256 * kMiB};
    base_.request.micro_batches = 2;
    base_.request.chunk_elements = ChunkElements(64 << 10);
    base_.clip_norm = 0.5;
    base_.state_hash = true;
    base_.engine.store.paths = {{folder_}};
    base_.engine.store.owner = "bench";
    base_.engine.store.direct = info->o_direct ? DirectIo::kRequire : DirectIo::kBuffered;
#ifdef STRATA_SANITIZE
    base_.threads = 1;  // ThreadSanitizer does not see the barriers of libgomp
#endif
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_).ok()); }

  static void Place(OffloadBenchOptions& options, Tier params, Tier gradients, Tier optimizer,
                    Tier activations) {
    options.request.params = params;
    options.request.gradients = gradients;
    options.request.optimizer = optimizer;
    options.request.activations = activations;
  }
  static void OnNvme(OffloadBenchOptions& options) {
    Place(options, Tier::kNvme, Tier::kHost, Tier::kNvme, Tier::kHost);
  }

  static absl::StatusOr<OffloadBenchReport> Run(const OffloadBenchOptions& options) {
    return RunOffloadBench(
        options, [](const PlannedJob&) {}, [](const StepPlan&, const OffloadBenchStep&) {});
  }

  // Loss, norm and hash of every step.
  static std::string Bits(const OffloadBenchOptions& options) {
    const auto report = Run(options);
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) return report.status().ToString();
    std::string bits;
    for (const OffloadBenchStep& step : report->steps) {
      bits += std::to_string(step.result.loss_sum) + " " + std::to_string(step.result.grad_norm) + " " +
              step.state_hash + "\n";
    }
    for (int tier = 0; tier < kTierCount; ++tier)
      EXPECT_EQ(report->high_water_bytes[tier], report->planned.train.arena_bytes[tier]);
    return bits;
  }

  std::string folder_;
  OffloadBenchOptions base_;
};

// Counts requests that were handed over and not taken back.
class CountingEngine : public IoEngine {
 public:
  CountingEngine(std::unique_ptr<IoEngine> engine, std::atomic<size_t>& most)
      : engine_(std::move(engine)), most_(most) {}

  void Submit(std::span<const IoRequest> requests) override {
    engine_->Submit(requests);
    size_t most = most_;
    while (most < outstanding() && !most_.compare_exchange_weak(most, outstanding())) {
    }
  }
  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    engine_->Poll(min_completions, out);
  }
  size_t outstanding() const override { return engine_->outstanding(); }
  unsigned depth() const override { return engine_->depth(); }
  absl::Status RegisterBuffer(std::span<std::byte> memory) override {
    return engine_->RegisterBuffer(memory);
  }
  absl::Status RegisterFile(const IoFile& file) override { return engine_->RegisterFile(file); }
  IoEngineReport report() const override { return engine_->report(); }

 private:
  const std::unique_ptr<IoEngine> engine_;
  std::atomic<size_t>& most_;
};

// Chunks are smaller than a request, so a request is an operation.
TEST_F(OffloadBenchTest, DepthIsHowManyOperationsALaneKeepsInFlight) {
  for (const size_t depth : {1, 2, 4}) {
    std::atomic<size_t> most = 0;
    OffloadBenchOptions options = base_;
    OnNvme(options);
    options.state_hash = false;
    options.request.prefetch_depth = static_cast<int>(depth);
    options.engine.wrap_io_engine = [&most](std::unique_ptr<IoEngine> engine) {
      return std::make_unique<CountingEngine>(std::move(engine), most);
    };
    const auto report = Run(options);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(most, depth);
  }
}

class OffloadBenchOptimizerTest : public OffloadBenchTest, public ::testing::WithParamInterface<Moments> {
 protected:
  void SetUp() override {
    OffloadBenchTest::SetUp();
    base_.shape.moments = GetParam();
  }
};

INSTANTIATE_TEST_SUITE_P(Optimizers, OffloadBenchOptimizerTest,
                         ::testing::Values(Moments::kF32, Moments::kCode8),
                         [](const auto& info) { return std::string(OptimizerName(info.param)); });

TEST_P(OffloadBenchOptimizerTest, EverySettingGivesTheSameStatesAtEveryStep) {
  const std::string expected = Bits(base_);
  ASSERT_FALSE(HasFailure());
  const std::pair<const char*, std::function<void(OffloadBenchOptions&)>> settings[] = {
      {"all on the device",
       [](auto& o) { Place(o, Tier::kDevice, Tier::kDevice, Tier::kDevice, Tier::kDevice); }},
      {"all in the host", [](auto& o) { Place(o, Tier::kHost, Tier::kHost, Tier::kHost, Tier::kHost); }},
      {"NVMe", [](auto& o) { OnNvme(o); }},
      {"NVMe, sync, depth 1, one lane",
       [](auto& o) {
         OnNvme(o);
         o.request.mode = Mode::kSync;
         o.request.prefetch_depth = 1;
         o.request.io_threads = 1;
       }},
      {"NVMe, an odd chunk, depth 4, four lanes, threads",
       [](auto& o) {
         OnNvme(o);
         o.request.chunk_elements = ChunkElements(100'000);
         o.request.prefetch_depth = 4;
         o.request.io_threads = 4;
         o.engine.io_backend = IoBackend::kThreads;
         o.engine.read_depth = o.engine.write_depth = 3;
       }},
      {"NVMe, big chunks, I/O depth 1, scalar",
       [](auto& o) {
         OnNvme(o);
         o.request.chunk_elements = ChunkElements(4 * kMiB);
         o.engine.read_depth = o.engine.write_depth = 1;
         o.isa = Isa::kScalar;
       }},
      {"NVMe on two paths of uneven weight, speculative",
       [this](auto& o) {
         OnNvme(o);
         EXPECT_TRUE(MakeDirectories(folder_ + "/second").ok());
         o.engine.store.paths.push_back({folder_ + "/second", 3});
         o.request.mode = Mode::kSpeculative;
       }},
      {"optimizer on NVMe only, recompute",
       [](auto& o) {
         Place(o, Tier::kDevice, Tier::kDevice, Tier::kNvme, Tier::kDevice);
         o.request.recompute = Recompute::kFull;
       }},
#ifndef STRATA_SANITIZE
      {"two threads", [](auto& o) { o.threads = 2; }},
#endif
      {"slow compute", [](auto& o) { o.shape.compute_delay = absl::Milliseconds(2); }},
      {"busy compute",
       [](auto& o) {
         o.shape.compute_delay = absl::Milliseconds(1);
         o.compute_busy = true;
       }},
  };
  for (const auto& [what, set] : settings) {
    OffloadBenchOptions options = base_;
    set(options);
    EXPECT_EQ(Bits(options), expected) << what;
  }
  OffloadBenchOptions other = base_;
  other.seed = 2;
  EXPECT_NE(Bits(other), expected);
}

// Settings that no test has thought of: any homes, modes, depths, lanes, chunks, paths and weights, with and
// without layers of which nothing is trained.
TEST_F(OffloadBenchTest, RandomSettingsGiveTheSameStates) {
  constexpr uint64_t kSeed = 20261201;
  std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed));
  TestRandom random(kSeed);
  base_.shape.layers = 4;
  base_.request.budget = {64 * kMiB, 64 * kMiB, 512 * kMiB};
  for (const uint64_t frozen : {0, 5, 15}) {
    base_.shape.frozen_layers = frozen;
    const std::string expected = Bits(base_);
    ASSERT_FALSE(HasFailure());
    for (int i = 0; i < 10; ++i) {
      OffloadBenchOptions options = base_;
      PlanRequest& request = options.request;
      Place(options, random.AnyTier(), random.AnyTier(), random.AnyTier(), random.AnyTier());
      if (request.optimizer == Tier::kDevice) request.params = request.gradients = Tier::kDevice;
      request.mode = std::array{Mode::kSync, Mode::kForwardOverlap, Mode::kSpeculative}[random.Below(3)];
      request.prefetch_depth = 1 + random.Below(4);
      request.io_threads = 1 + random.Below(4);
      request.chunk_elements = ChunkElements(int64_t{16 << 10} << random.Below(5));
      options.engine.io_backend = random.Below(2) == 0 ? IoBackend::kAuto : IoBackend::kThreads;
      options.engine.store.paths.clear();
      for (int path = random.Below(4); path >= 0; --path) {
        options.engine.store.paths.push_back({folder_ + "/" + std::to_string(path), 0.1 + random.Uniform()});
        ASSERT_TRUE(MakeDirectories(options.engine.store.paths.back().path).ok());
      }
      EXPECT_EQ(Bits(options), expected) << "frozen " << frozen << ", setting " << i;
    }
  }
}

TEST_F(OffloadBenchTest, LayersThatAreFrozenMoveTheirParametersOnly) {
  OffloadBenchOptions options = base_;
  OnNvme(options);
  options.state_hash = false;
  options.request.mode = Mode::kForwardOverlap;
  const auto all = Run(options);
  ASSERT_TRUE(all.ok()) << all.status();
  options.shape.frozen_layers = 7;  // all layers: the embedding and the last norm are trained
  const auto few = Run(options);
  ASSERT_TRUE(few.ok()) << few.status();
  const auto of = [](const TrafficBytes& bytes, TrafficClass traffic) {
    return bytes[static_cast<int>(traffic)];
  };
  constexpr int kNvme = static_cast<int>(Tier::kNvme), kDevice = static_cast<int>(Tier::kDevice);
  const OffloadBenchSummary &a = all->summary, &f = few->summary;
  EXPECT_EQ(of(a.read[kNvme], TrafficClass::kParams), of(f.read[kNvme], TrafficClass::kParams));
  EXPECT_LT(of(f.written[kNvme], TrafficClass::kParams), of(a.written[kNvme], TrafficClass::kParams) / 2);
  EXPECT_LT(of(f.read[kNvme], TrafficClass::kRecords), of(a.read[kNvme], TrafficClass::kRecords) / 2);
  EXPECT_LT(of(f.written[kNvme], TrafficClass::kRecords), of(a.written[kNvme], TrafficClass::kRecords) / 2);
  EXPECT_LT(of(f.read[kDevice], TrafficClass::kGradients), of(a.read[kDevice], TrafficClass::kGradients) / 2);
}

TEST_F(OffloadBenchTest, Fp16HalvesItsLossScaleAfterABadStepAndPlacementDoesNotMatter) {
  base_.shape.compute_dtype = DType::kF16;
  base_.injection =
      BenchInjection{.value = std::numeric_limits<float>::infinity(), .step = 2, .tensor = "layers.2.down"};
  const auto report = Run(base_);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->steps[1].state_hash, report->steps[0].state_hash);
  EXPECT_EQ(report->steps[2].result.loss_scale, report->steps[0].result.loss_scale / 2);
  EXPECT_NE(report->steps[2].state_hash, report->steps[1].state_hash);
  const std::string expected = Bits(base_);
  OnNvme(base_);
  for (const Mode mode : {Mode::kSync, Mode::kForwardOverlap, Mode::kSpeculative}) {
    base_.request.mode = mode;
    EXPECT_EQ(Bits(base_), expected) << Name(mode);
  }
}

TEST_F(OffloadBenchTest, StepsThatOverlapEndInTheSameState) {
  OnNvme(base_);
  base_.steps = 6;
  const auto one_by_one = Run(base_);
  ASSERT_TRUE(one_by_one.ok()) << one_by_one.status();
  base_.state_hash = false;
  const auto overlapped = Run(base_);
  ASSERT_TRUE(overlapped.ok()) << overlapped.status();
  for (size_t i = 0; i < one_by_one->steps.size(); ++i) {
    EXPECT_EQ(overlapped->steps[i].result.loss_sum, one_by_one->steps[i].result.loss_sum);
    EXPECT_EQ(overlapped->steps[i].result.grad_norm, one_by_one->steps[i].result.grad_norm);
  }
}

TEST_P(OffloadBenchOptimizerTest, BytesAreThoseOfThePlanAndTheKernelCountsThemToo) {
  OnNvme(base_);
  const auto report = Run(base_);
  ASSERT_TRUE(report.ok()) << report.status();
  constexpr int kNvme = static_cast<int>(Tier::kNvme);
  const OffloadBenchSummary& summary = report->summary;
  int64_t read = 0, written = 0;
  for (int i = 0; i < kTrafficClasses; ++i) {
    read += summary.read[kNvme][i];
    written += summary.written[kNvme][i];
  }
  EXPECT_EQ(read, report->planned.read_bytes[kNvme]);
  EXPECT_EQ(written, report->planned.written_bytes[kNvme]);
  EXPECT_EQ(summary.read[kNvme][static_cast<int>(TrafficClass::kGradients)], 0);
  int64_t records = 0;
  for (const auto& unit : report->planned.train.chunks) {
    for (const ChunkInfo& chunk : unit)
      records += RoundUp(RecordBytes(GetParam(), chunk.end - chunk.begin), kStoreBlock);
  }
  EXPECT_EQ(summary.read[kNvme][static_cast<int>(TrafficClass::kRecords)], records);
  EXPECT_EQ(summary.read[kNvme][static_cast<int>(TrafficClass::kRecords)],
            summary.written[kNvme][static_cast<int>(TrafficClass::kRecords)]);
  EXPECT_EQ(report->store.checksum_errors, 0);
  EXPECT_GE(report->store.written_bytes, written * static_cast<int64_t>(report->steps.size()));
  EXPECT_GT(summary.io_read.requests, 0);
  EXPECT_GT(summary.io_read.p50_nanos, 0);
  EXPECT_GE(summary.io_read.p99_nanos, summary.io_read.p50_nanos);
  EXPECT_GT(summary.io_write.queue_depth, 0);
  if (base_.engine.store.direct != DirectIo::kRequire) GTEST_SKIP() << "no O_DIRECT here";
  if (summary.kernel_read_bytes < 0) GTEST_SKIP() << "the kernel does not count I/O per process";
  EXPECT_NEAR(summary.kernel_read_bytes, static_cast<double>(read), 0.03 * static_cast<double>(read));
  EXPECT_NEAR(summary.kernel_written_bytes, static_cast<double>(written),
              0.03 * static_cast<double>(written));
}

// Whatever the next step has read ahead by then.
TEST_F(OffloadBenchTest, BytesOfAllPathsTogetherAreThoseOfTheStep) {
  OffloadBenchOptions options = base_;
  OnNvme(options);
  options.state_hash = false;
  options.request.mode = Mode::kForwardOverlap;
  options.request.prefetch_depth = 4;
  options.engine.store.paths.clear();
  for (const char* name : {"/a", "/b", "/c"}) {
    ASSERT_TRUE(MakeDirectories(folder_ + name).ok());
    options.engine.store.paths.push_back({folder_ + name});
  }
  const auto report = Run(options);
  ASSERT_TRUE(report.ok()) << report.status();
  constexpr int kNvme = static_cast<int>(Tier::kNvme);
  for (const OffloadBenchStep& step : report->steps) {
    PathBytes sum;
    ASSERT_EQ(step.result.path_bytes.size(), 3u);
    for (const PathBytes& path : step.result.path_bytes) {
      EXPECT_GT(path.read, 0);
      EXPECT_GT(path.written, 0);
      sum.read += path.read;
      sum.written += path.written;
    }
    EXPECT_EQ(sum.read, step.result.read_bytes[kNvme]) << step.result.step;
    EXPECT_EQ(sum.written, step.result.written_bytes[kNvme]) << step.result.step;
    EXPECT_EQ(sum.read, report->planned.read_bytes[kNvme]) << step.result.step;
  }
}

TEST_P(OffloadBenchOptimizerTest, AStepWithANonFiniteGradientIsANoOpThatNamesTheTensor) {
  for (const auto& [tensor, name] :
       {std::pair("first", "embedding.weight"), std::pair("last", "final_norm.weight"),
        std::pair("layers.1.up_bias", "layers.1.up_bias")}) {
    for (const float value :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      OffloadBenchOptions options = base_;
      OnNvme(options);
      options.injection = BenchInjection{.value = value, .step = 2, .tensor = tensor};
      const auto report = Run(options);
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->summary.skipped_steps, 1);
      EXPECT_TRUE(report->steps[1].result.skipped);
      EXPECT_EQ(report->steps[1].result.bad_tensor, name);
      EXPECT_EQ(report->steps[1].state_hash, report->steps[0].state_hash);
      EXPECT_NE(report->steps[2].state_hash, report->steps[1].state_hash);
    }
  }
}

TEST_F(OffloadBenchTest, OptionsThatCannotWorkAreRefused) {
  const auto code = [&](const std::function<void(OffloadBenchOptions&)>& set) {
    OffloadBenchOptions options = base_;
    set(options);
    return Run(options).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.steps = 0; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.shape.parameters = 10; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.injection = BenchInjection{.step = 9, .tensor = "first"}; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.injection = BenchInjection{.step = 1, .tensor = "wte"}; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.request.budget[0] = 4096; }), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace strata
