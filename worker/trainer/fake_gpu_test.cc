// The engine on the CUDA device backend over FakeCuda: the real plans, executor and model, the math of the
// CPU as work of streams that runs as late as events permit. What holds for a GPU but for its kernels.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/device/cuda_accelerator.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/fake_cufile.h"
#include "offload/device/host_math.h"
#include "offload/exec/block_compute.h"
#include "offload/exec/step_metrics.h"
#include "offload/io/io_engine.h"
#include "proto/job_spec/plan_job.h"
#include "worker/trainer/engine_testing.h"
#include "worker/trainer/failure.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using Order = FakeCudaOptions::Order;

// Declares the buffers of each call to the fake, whose checker then knows what the model's kernels touch.
class DeclaredCompute : public BlockCompute {
 public:
  DeclaredCompute(FakeCuda& cuda, ModelLayout layout, std::unique_ptr<BlockCompute> inner)
      : cuda_(cuda), layout_(std::move(layout)), inner_(std::move(inner)) {}

  absl::Status Forward(Stream* stream, const BlockArgs& args) override {
    Declare(stream, "forward", args, /*saves=*/true);
    return inner_->Forward(stream, args);
  }
  absl::Status RecomputeRest(Stream* stream, const BlockArgs& args) override {
    Declare(stream, "recompute", args, /*saves=*/true);
    return inner_->RecomputeRest(stream, args);
  }
  absl::Status Backward(Stream* stream, const BlockArgs& args) override {
    Declare(stream, "backward", args, /*saves=*/false);
    return inner_->Backward(stream, args);
  }
  absl::Status Loss(Stream* stream, const BlockArgs& args) override {
    Declare(stream, "loss", args, /*saves=*/false);
    return inner_->Loss(stream, args);
  }

 private:
  void Declare(Stream* stream, const char* what, const BlockArgs& args, bool saves) {
    const Block& block = layout_.blocks[args.block];
    const int64_t rows = layout_.micro_batch * layout_.seq;
    const int64_t activation = rows * layout_.config.hidden * SizeOf(layout_.compute_dtype);
    std::vector<MemoryAccess> accesses;
    const auto add = [&](const void* begin, int64_t bytes, bool write) {
      if (begin != nullptr && bytes > 0) accesses.push_back({begin, bytes, write});
    };
    for (size_t i = 0; i < block.units.size(); ++i) {
      const int64_t elements = layout_.units[block.units[i]].elements;
      if (i < args.params.size()) add(args.params[i], elements * SizeOf(layout_.compute_dtype), false);
      if (i < args.grads.size()) add(args.grads[i], elements * SizeOf(layout_.acc_dtype()), true);
    }
    add(args.tokens, rows * 4, false);
    add(args.targets, rows * 4, false);
    add(args.input, block.kind == BlockKind::kEmbedding ? 0 : activation, false);
    add(args.output, activation, true);
    add(args.saved, block.saved_bytes, saves && args.output != nullptr);
    add(args.saved_rest, block.saved_rest_bytes, saves);
    add(args.grad, activation, true);
    add(args.workspace.data, args.workspace.bytes, true);
    cuda_.Declare(stream, absl::StrCat(what, " of block ", args.block), std::move(accesses));
  }

  FakeCuda& cuda_;
  const ModelLayout layout_;
  const std::unique_ptr<BlockCompute> inner_;
};

// Each pass of a block takes so long on the device, and none of it where it is enqueued.
class SlowCompute : public BlockCompute {
 public:
  SlowCompute(FakeCuda& cuda, double seconds, std::unique_ptr<BlockCompute> inner)
      : cuda_(cuda), seconds_(seconds), inner_(std::move(inner)) {}

  absl::Status Forward(Stream* stream, const BlockArgs& args) override {
    cuda_.Spend(stream, seconds_);
    return inner_->Forward(stream, args);
  }
  absl::Status RecomputeRest(Stream* stream, const BlockArgs& args) override {
    cuda_.Spend(stream, seconds_);
    return inner_->RecomputeRest(stream, args);
  }
  absl::Status Backward(Stream* stream, const BlockArgs& args) override {
    cuda_.Spend(stream, seconds_);
    return inner_->Backward(stream, args);
  }
  absl::Status Loss(Stream* stream, const BlockArgs& args) override {
    cuda_.Spend(stream, seconds_);
    return inner_->Loss(stream, args);
  }

 private:
  FakeCuda& cuda_;
  const double seconds_;
  const std::unique_ptr<BlockCompute> inner_;
};

// Memory that is with the kernel is accessed by the host.
class AnnouncedIo : public IoEngine {
 public:
  AnnouncedIo(FakeCuda& cuda, std::unique_ptr<IoEngine> inner) : cuda_(cuda), inner_(std::move(inner)) {}
  ~AnnouncedIo() override {
    inner_.reset();  // drains
    for (const auto& [token, access] : in_flight_) cuda_.EndHostAccess(access);
  }

  void Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      const bool read = request.op == IoOp::kRead;
      in_flight_.emplace(request.token,
                         cuda_.BeginHostAccess(read ? "a read from NVMe" : "a write to NVMe",
                                               {{request.data, static_cast<int64_t>(request.size), read}}));
    }
    inner_->Submit(requests);
  }
  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    const size_t before = out.size();
    inner_->Poll(min_completions, out);
    for (size_t i = before; i < out.size(); ++i) {
      const auto found = in_flight_.find(out[i].token);
      ASSERT_NE(found, in_flight_.end());
      cuda_.EndHostAccess(found->second);
      in_flight_.erase(found);
    }
  }
  size_t outstanding() const override { return inner_->outstanding(); }
  unsigned depth() const override { return inner_->depth(); }
  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return inner_->RegisterBuffer(memory); }
  absl::Status RegisterFile(const IoFile& file) override { return inner_->RegisterFile(file); }
  IoEngineReport report() const override { return inner_->report(); }

 private:
  FakeCuda& cuda_;
  std::unique_ptr<IoEngine> inner_;
  std::multimap<uint64_t, int64_t> in_flight_;  // token -> access
};

// A device, all of its calls passed on.
class WrappedDevice : public Device {
 public:
  explicit WrappedDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::string description() const override { return inner_->description(); }
  std::byte* arena() const override { return inner_->arena(); }
  int64_t arena_bytes() const override { return inner_->arena_bytes(); }
  absl::Status RegisterHost(std::span<std::byte> memory) override { return inner_->RegisterHost(memory); }
  absl::StatusOr<std::span<std::byte>> AllocateResults(int64_t bytes) override {
    return inner_->AllocateResults(bytes);
  }
  void HostUsesResults(std::span<const std::byte> results, bool write) override {
    inner_->HostUsesResults(results, write);
  }
  absl::StatusOr<Stream*> CreateStream() override { return inner_->CreateStream(); }
  absl::StatusOr<std::unique_ptr<DeviceEvent>> CreateEvent() override { return inner_->CreateEvent(); }
  absl::Status Record(Stream* stream, DeviceEvent* event) override { return inner_->Record(stream, event); }
  absl::Status Wait(Stream* stream, DeviceEvent* event) override { return inner_->Wait(stream, event); }
  absl::Status Synchronize(DeviceEvent* event) override { return inner_->Synchronize(event); }
  absl::StatusOr<int64_t> PassedNanos(DeviceEvent* event) override { return inner_->PassedNanos(event); }
  absl::Status CopyToDevice(Stream* stream, std::byte* device, const std::byte* host,
                            int64_t bytes) override {
    return inner_->CopyToDevice(stream, device, host, bytes);
  }
  absl::Status CopyToHost(Stream* stream, std::byte* host, const std::byte* device, int64_t bytes) override {
    return inner_->CopyToHost(stream, host, device, bytes);
  }
  absl::StatusOr<std::unique_ptr<IoEngine>> CreateDirectEngine() override {
    return inner_->CreateDirectEngine();
  }
  StateOps& state_ops() override { return inner_->state_ops(); }

 private:
  const std::unique_ptr<Device> inner_;
};

// The fake's checker learns of what the host reads and writes of results: losses and norms.
class AnnouncedDevice : public WrappedDevice {
 public:
  AnnouncedDevice(FakeCuda& cuda, std::unique_ptr<Device> inner)
      : WrappedDevice(std::move(inner)), cuda_(cuda) {}
  void HostUsesResults(std::span<const std::byte> results, bool write) override {
    if (results.empty()) return;
    cuda_.EndHostAccess(
        cuda_.BeginHostAccess(write ? "the host's clearing of results" : "the host's read of results",
                              {{results.data(), static_cast<int64_t>(results.size()), write}}));
  }

 private:
  FakeCuda& cuda_;
};

// A device backend with a bug: some of its waits do nothing.
class ForgetfulDevice : public WrappedDevice {
 public:
  enum class Forgets {
    kWait,
    kSynchronize,
    kSynchronizeWithLanes,  // but not with a checksum, whose stream has a single event
  };
  ForgetfulDevice(std::unique_ptr<Device> inner, Forgets what)
      : WrappedDevice(std::move(inner)), what_(what) {}

  absl::Status Wait(Stream* stream, DeviceEvent* event) override {
    if (what_ == Forgets::kWait) return absl::OkStatus();
    return WrappedDevice::Wait(stream, event);
  }
  absl::Status Record(Stream* stream, DeviceEvent* event) override {
    MutexLock lock(mu_);
    stream_of_[event] = stream;
    events_[stream].insert(event);
    return WrappedDevice::Record(stream, event);
  }
  absl::Status Synchronize(DeviceEvent* event) override {
    if (what_ == Forgets::kSynchronize) return absl::OkStatus();
    if (what_ == Forgets::kSynchronizeWithLanes) {
      MutexLock lock(mu_);
      if (events_[stream_of_[event]].size() > 1) return absl::OkStatus();
    }
    return WrappedDevice::Synchronize(event);
  }

 private:
  const Forgets what_;
  Mutex mu_;
  std::map<DeviceEvent*, Stream*> stream_of_ ABSL_GUARDED_BY(mu_);
  std::map<Stream*, std::set<DeviceEvent*>> events_ ABSL_GUARDED_BY(mu_);
};

class WrappedAccelerator : public Accelerator {
 public:
  using Wrap = std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)>;
  WrappedAccelerator(std::unique_ptr<Accelerator> inner, Wrap wrap)
      : inner_(std::move(inner)), wrap_(std::move(wrap)) {}
  std::string description() const override { return inner_->description(); }
  std::string identity() const override { return inner_->identity(); }
  int64_t memory_bytes() const override { return inner_->memory_bytes(); }
  absl::StatusOr<std::string> gpudirect() override { return inner_->gpudirect(); }
  absl::StatusOr<int64_t> FreeForJobs() override { return inner_->FreeForJobs(); }
  absl::Status Release() override { return inner_->Release(); }
  absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) override {
    auto device = inner_->CreateDevice(budget_bytes);
    if (!device.ok()) return device;
    return wrap_(*std::move(device));
  }
  absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) override {
    return inner_->CreateOps(compute);
  }
  absl::Status CheckFp8() const override { return inner_->CheckFp8(); }

 private:
  const std::unique_ptr<Accelerator> inner_;
  const Wrap wrap_;
};

class FakeGpuTest : public EngineTest {
 protected:
  // Engines made from now on run on a fresh fake GPU; on the CPU again after UseCpu.
  void UseGpu(const FakeCudaOptions& options) {
    UseCpu();
    cuda_ = std::make_unique<FakeCuda>(options);
    auto accelerator = CreateCudaAccelerator(
        *cuda_,
        {.make_ops = [this](DType compute) { return EnqueuedOps(*cuda_, MakeCpuOps(compute, 1)); },
         .states = {.make = [this](Workspace) { return EnqueuedStateOps(*cuda_, MakeCpuStateOps(1)); }}},
        [this]() -> absl::StatusOr<CufileApi*> { return cufile_ == nullptr ? NoCufile() : cufile_.get(); });
    ASSERT_TRUE(accelerator.ok()) << accelerator.status();
    WrapDevice(*std::move(accelerator), [this](std::unique_ptr<Device> device) {
      return std::make_unique<AnnouncedDevice>(*cuda_, std::move(device));
    });
  }
  void WrapDevice(std::unique_ptr<Accelerator> accelerator, WrappedAccelerator::Wrap wrap) {
    accelerator_ = std::make_unique<WrappedAccelerator>(std::move(accelerator), std::move(wrap));
  }
  // The same with GPUDirect Storage.
  void UseDirectGpu(const FakeCudaOptions& options) {
    cufile_ = std::make_unique<FakeCufile>();
    UseGpu(options);
  }
  void UseCpu() {
    accelerator_.reset();
    cuda_.reset();
  }
  void Adjust(EngineOptions& options) override {
    if (cuda_ == nullptr) return;
    options.accelerator = {accelerator_.get(), ""};
    options.wrap_model = [this, spec = options.spec,
                          budget = options.budget](std::unique_ptr<BlockCompute> model) {
      model = std::make_unique<DeclaredCompute>(*cuda_, *ModelLayoutOf(spec, budget), std::move(model));
      if (pass_seconds_ > 0) model = std::make_unique<SlowCompute>(*cuda_, pass_seconds_, std::move(model));
      return model;
    };
    options.wrap_state_ops = [this](std::unique_ptr<StateOps> ops) {
      return AnnouncedStateOps(*cuda_, std::move(ops));
    };
    options.wrap_io_engine = [this](std::unique_ptr<IoEngine> io) {
      return std::make_unique<AnnouncedIo>(*cuda_, std::move(io));
    };
  }

  // Creates an engine, trains `steps`, hashes: the first error, or the hash.
  absl::StatusOr<std::string> Train(const v1::JobSpec& spec, int64_t steps) {
    STRATA_ASSIGN_OR_RETURN(const auto engine, Make(spec));
    STRATA_RETURN_IF_ERROR(engine->Initialize(7));
    RandomTokens source(spec);
    TrainerCounters counters = StartOf(spec);
    STRATA_RETURN_IF_ERROR(engine->train().Run(source, steps, counters));
    RandomTokens eval(spec);
    STRATA_RETURN_IF_ERROR(engine->eval().Run(eval, 1, counters));
    return engine->StateHash(counters.iterations);
  }

  std::unique_ptr<FakeCuda> cuda_;
  std::unique_ptr<FakeCufile> cufile_;  // null: none
  std::unique_ptr<Accelerator> accelerator_;
  double pass_seconds_ = 0;  // SlowCompute; 0: none
};

v1::JobSpec TinyLlama() {
  v1::JobSpec spec = SmallLlama();
  spec.mutable_training()->set_steps(3);
  spec.mutable_training()->set_compute_threads(1);
  return spec;
}

class FakeGpuModeTest : public FakeGpuTest,
                        public ::testing::WithParamInterface<std::tuple<v1::Mode, const char*>> {};

TEST_P(FakeGpuModeTest, EveryPlacementGivesTheBitsOfTheCpuWithoutARace) {
  const auto [mode, optimizer] = GetParam();
  v1::JobSpec spec = WithOptimizer(TinyLlama(), optimizer);
  spec.mutable_memory()->set_mode(mode == v1::MODE_DELAYED ? mode : v1::MODE_SYNC);
  if (mode == v1::MODE_OVERLAP) spec.mutable_training()->set_grad_clip(0);
  Bits(spec, /*hash_each_step=*/false);
  const std::string losses = losses_, hash = final_hash_;
  uint64_t seed = 100 * static_cast<uint64_t>(mode);
  for (const Setting& setting : kSettings) {
    v1::JobSpec changed = spec;
    setting.set(*changed.mutable_memory());
    changed.mutable_memory()->set_mode(mode);
    // There is no such plan.
    if (mode == v1::MODE_DELAYED && changed.memory().placement().gradients() == v1::TIER_NVME) continue;
    const Order order = ++seed % 3 == 0 ? Order::kLazy : Order::kRandom;
    const std::string name = absl::StrCat(setting.name, ", seed ", seed);
    UseGpu({.order = order, .seed = seed});
    Bits(changed, /*hash_each_step=*/seed % 2 == 0);
    EXPECT_EQ(losses_, losses) << name;
    EXPECT_EQ(final_hash_, hash) << name;
    EXPECT_EQ(cuda_->Complaints(/*with_leaks=*/true), "") << name;
    EXPECT_EQ(cuda_->pageable_copies(), 0) << name;
    EXPECT_GT(cuda_->work_done(), 100) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, FakeGpuModeTest,
    ::testing::Combine(::testing::Values(v1::MODE_SYNC, v1::MODE_OVERLAP, v1::MODE_FORWARD_OVERLAP,
                                         v1::MODE_SPECULATIVE, v1::MODE_DELAYED),
                       ::testing::Values("adamw", "adamw8bit")),
    [](const auto& info) { return v1::Mode_Name(std::get<0>(info.param)) + "_" + std::get<1>(info.param); });

TEST_F(FakeGpuTest, OtherPrecisionsAndModelsGiveTheBitsOfTheCpuToo) {
  uint64_t seed = 100;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_FP16}) {
    for (v1::JobSpec spec : {TinyLlama(), SmallGpt2(), SmallDroppingGpt2()}) {
      spec.mutable_training()->set_precision(precision);
      spec.mutable_training()->set_compute_threads(1);
      ApplyDefaults(spec);
      Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
      UseCpu();
      const std::string expected = Bits(spec);
      UseGpu({.seed = ++seed});
      EXPECT_EQ(Bits(spec), expected) << v1::Precision_Name(precision);
      EXPECT_EQ(cuda_->Complaints(true), "");
    }
  }
}

TEST_F(FakeGpuTest, EvaluationAfterTrainingSeesWhatTrainingLeft) {
  const v1::JobSpec spec = TinyLlama();
  std::vector<float> losses;
  for (const bool gpu : {false, true}) {
    if (gpu) UseGpu({.order = Order::kLazy});
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec), eval(spec);
    TrainerCounters counters = StartOf(spec);
    ASSERT_TRUE((*engine)->train().Run(source, 2, counters).ok());
    ASSERT_TRUE((*engine)->eval().Run(eval, 3, counters).ok());
    ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
    for (const StepResult& result : eval.results) losses.push_back(result.loss);
    for (const StepResult& result : source.results) losses.push_back(result.loss);
  }
  EXPECT_TRUE(std::equal(losses.begin(), losses.begin() + 6, losses.begin() + 6, losses.end()));
  EXPECT_EQ(cuda_->Complaints(true), "");
}

// Busy and waiting of the GPU's lanes are the device's: enqueuing a kernel that takes 4 ms, or a copy that
// takes as long as the bytes over the speed, is done in microseconds.
TEST_F(FakeGpuTest, BusyTimesExposedIoAndTheTraceAreThoseOfTheDevice) {
  v1::JobSpec spec = TinyLlama();
  Place(*spec.mutable_memory(), v1::TIER_HOST, v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_DEVICE);
  constexpr double kSpeed = 4e6;      // bytes per second
  constexpr double kRounded = 0.999;  // the runtime's times are floats
  pass_seconds_ = 0.004;
  for (const bool slow_copies : {false, true}) {
    UseGpu({.order = Order::kEager, .h2d_bytes_per_second = slow_copies ? kSpeed : 0});
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    TrainerCounters counters = StartOf(spec);
    ASSERT_TRUE((*engine)->train().Run(source, 10, counters).ok());
    const StepPlan& plan = (*engine)->train().plan();
    const StepResult& result = source.results[1];
    // What a busy machine can break holds of the steps that it lets be.
    const auto some_step = [&](const std::function<bool(const StepResult&, const StepMetrics&)>& holds) {
      return std::any_of(source.results.begin() + 1, source.results.end(),
                         [&](const StepResult& step) { return holds(step, SummarizeStep(plan, step)); });
    };
    const StepMetrics metrics = SummarizeStep(plan, result);
    for (size_t lane = 0; lane < plan.lanes.size(); ++lane) {
      const LaneStats& stats = result.lanes[lane];
      const double busy = static_cast<double>(stats.busy_nanos) * 1e-9;
      if (plan.lanes[lane].kind == LaneKind::kCompute) {
        int passes = 0;
        for (const Op& op : plan.ops) {
          passes += op.kind == OpKind::kForward || op.kind == OpKind::kBackward || op.kind == OpKind::kLoss ||
                    op.kind == OpKind::kRecompute;
        }
        ASSERT_GT(passes, 4);
        EXPECT_GE(busy, kRounded * pass_seconds_ * passes);
        const int64_t copies = stats.stall_nanos[static_cast<int>(StallCause::kCopy)];
        EXPECT_EQ(copies, metrics.exposed_io_nanos);
        if (slow_copies) {
          EXPECT_GT(metrics.exposed_io_nanos, 10'000'000);
        } else {
          EXPECT_TRUE(some_step([](const StepResult& step, const StepMetrics& its) {
            return its.exposed_io_nanos < step.wall_nanos / 2;
          }));
        }
      } else if (plan.lanes[lane].kind == LaneKind::kH2D && slow_copies && stats.bytes > 0) {
        EXPECT_GE(busy, kRounded * static_cast<double>(stats.bytes) / kSpeed);
      }
      int64_t end = 0;
      for (const Span& span : (*engine)->train().traces()[lane].spans()) {
        if (plan.lanes[lane].kind != LaneKind::kCompute) continue;
        EXPECT_LE(span.wait_begin_nanos, span.begin_nanos);
        EXPECT_LE(end, span.begin_nanos);  // one after the other
        EXPECT_LE(span.begin_nanos, span.end_nanos);
        end = span.end_nanos;
      }
    }
    // Of enqueue times it would be next to nothing. A single step's can be more than 1: steps overlap.
    EXPECT_TRUE(some_step([](const StepResult&, const StepMetrics& its) {
      return its.overlap_efficiency > 0.2 && its.overlap_efficiency < 1.5;
    }));
    EXPECT_EQ(cuda_->Complaints(false), "");
  }
}

TEST_F(FakeGpuTest, TheLadderTellsOfTheGpuAndOfMemoryThatCannotBeRegistered) {
  v1::JobSpec spec = TinyLlama();
  const auto hash = Train(spec, 2);
  ASSERT_TRUE(hash.ok()) << hash.status();
  UseGpu({});
  cuda_->FailCall(0, kCudaMemoryAllocation, "cudaHostRegister");
  {
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const Ladder ladder = (*engine)->ladder();
    const Rung& gpu = ladder[ladder.size() - 2];
    EXPECT_EQ(gpu.feature, Feature::kGpu);
    EXPECT_THAT(gpu.chosen, HasSubstr("Fake GPU"));
    EXPECT_EQ(gpu.why, "");
    EXPECT_EQ(ladder.back().feature, Feature::kCudaHostRegister);
    EXPECT_EQ(ladder.back().chosen, "pageable");
    EXPECT_THAT(ladder.back().why, HasSubstr("cudaHostRegister"));
  }
  cuda_->FailCall(0, kCudaMemoryAllocation, "cudaHostRegister");
  EXPECT_EQ(Train(spec, 2).value_or("?"), *hash);
  EXPECT_GT(cuda_->pageable_copies(), 0);
  EXPECT_EQ(cuda_->Complaints(true), "");
  cuda_->FailCall(0, kCudaMemoryAllocation, "cudaHostRegister");
  spec.mutable_memory()->add_require(v1::FEATURE_CUDA_HOST_REGISTER);
  EXPECT_THAT(Make(spec).status().message(), HasSubstr("memory.require: cuda_host_register"));
  EXPECT_TRUE(Make(spec).ok());
}

TEST_F(FakeGpuTest, GpuDirectIsARungOfJobsWithNvmeAndRefusedWhereRequired) {
  v1::JobSpec spec = TinyLlama();
  UseGpu({});
  spec.mutable_memory()->add_require(v1::FEATURE_GPUDIRECT);
  {
    // Nothing on NVMe: not missed.
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    EXPECT_EQ((*engine)->ladder().back().feature, Feature::kCudaHostRegister);
  }
  Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_HOST);
  const absl::Status refused = Make(spec).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(),
              HasSubstr("memory.require: gpudirect cannot be had, there is only host arena: "));
  EXPECT_THAT(refused.message(),
              HasSubstr("no cuFile here; mend that, or take it out of memory.require: the numbers stay the "
                        "same"));
  spec.mutable_memory()->clear_require();
  auto engine = Make(spec);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->ladder().back().feature, Feature::kGpuDirect);
}

// As much as there is for direct transfers: parameters, inputs and saved areas on NVMe, with so little memory
// that they have no other place.
v1::JobSpec Direct(v1::JobSpec spec, int layers = 5, int depth = 1) {
  spec.mutable_model()->mutable_config()->set_layers(layers);
  v1::MemorySpec& memory = *spec.mutable_memory();
  Place(memory, v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_NVME);
  memory.set_recompute(v1::RECOMPUTE_NONE);
  memory.set_prefetch_depth(depth);
  memory.add_require(v1::FEATURE_GPUDIRECT);
  memory.set_device(PlanJob(spec, {})->tiers(0).minimum_bytes());
  memory.set_host(PlanJob(spec, {})->tiers(1).minimum_bytes());
  return spec;
}

// The same job on the other way, with room for it.
v1::JobSpec Through(v1::JobSpec direct) {
  direct.mutable_memory()->clear_require();
  direct.mutable_memory()->set_device(64 * kMiB);
  direct.mutable_memory()->set_host(64 * kMiB);
  return direct;
}

int64_t Count(const StepPlan& plan, OpKind kind, ContentKind content) {
  return std::count_if(plan.ops.begin(), plan.ops.end(), [&](const Op& op) {
    return op.kind == kind && op.operands[0].content.kind == content;
  });
}

TEST_F(FakeGpuTest, DirectTransfersGiveTheBitsOfTheCpuWithoutARace) {
  for (const v1::Mode mode :
       {v1::MODE_SYNC, v1::MODE_FORWARD_OVERLAP, v1::MODE_SPECULATIVE, v1::MODE_DELAYED}) {
    std::string losses, hash;
    for (const int depth : {1, 2}) {
      v1::JobSpec spec = TinyLlama();
      spec.mutable_memory()->set_mode(mode);
      spec.mutable_memory()->set_io_threads(depth == 1 ? 1 : 4);
      spec = Direct(spec, /*layers=*/5, depth);
      if (losses.empty()) {
        UseCpu();
        Bits(Through(spec), /*hash_each_step=*/false);
        losses = losses_;
        hash = final_hash_;
      }
      const uint64_t seed = 10 * static_cast<uint64_t>(mode) + static_cast<uint64_t>(depth);
      const std::string name = absl::StrCat(v1::Mode_Name(mode), ", depth ", depth);
      UseDirectGpu({.order = depth == 1 ? Order::kLazy : Order::kRandom, .seed = seed});
      Bits(spec, /*hash_each_step=*/depth == 1);
      EXPECT_EQ(losses_, losses) << name;
      EXPECT_EQ(final_hash_, hash) << name;
      EXPECT_EQ(cuda_->Complaints(/*with_leaks=*/true), "") << name;
      EXPECT_EQ(cufile_->Complaints(), "") << name;
      EXPECT_GT(cufile_->reads(), 20) << name;
      EXPECT_GT(cufile_->writes(), 5) << name;
    }
  }
}

TEST_F(FakeGpuTest, WhatIsDirectIsInThePlanTheLadderAndTheMetrics) {
  UseDirectGpu({});
  v1::JobSpec spec = Direct(TinyLlama());
  auto engine = Make(spec);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const StepPlan& plan = (*engine)->train().plan();
  for (const ContentKind content : {ContentKind::kParams, ContentKind::kActivation, ContentKind::kSaved})
    EXPECT_GT(Count(plan, OpKind::kReadDirect, content), 0) << Name(content);
  for (const ContentKind content : {ContentKind::kActivation, ContentKind::kSaved})
    EXPECT_GT(Count(plan, OpKind::kWriteDirect, content), 0) << Name(content);
  EXPECT_GT(Count(plan, OpKind::kRead, ContentKind::kRecord), 0);
  const Rung rung = (*engine)->ladder().back();
  EXPECT_EQ(rung.feature, Feature::kGpuDirect);
  EXPECT_EQ(rung.chosen, "nvidia-fs 2.19");
  EXPECT_EQ(rung.why, "");
  EXPECT_EQ((*engine)->ladder().front().chosen, "io_uring");
  std::string notes, lanes;
  for (const std::string& note : (*engine)->plan().notes()) notes += note + "\n";
  for (const v1::LaneRow& row : (*engine)->plan().lanes()) lanes += row.lane() + " ";
  EXPECT_THAT(notes, HasSubstr("gpudirect: "));
  EXPECT_THAT(lanes, HasSubstr("nvme-read-direct "));
  EXPECT_THAT(lanes, HasSubstr("nvme-write-direct"));

  ASSERT_TRUE((*engine)->Initialize(7).ok());
  RandomTokens source(spec);
  TrainerCounters counters = StartOf(spec);
  ASSERT_TRUE((*engine)->train().Run(source, 2, counters).ok());
  const PlannedJob& planned = (*engine)->planned();
  const StepResult& result = source.results.back();
  const int device = static_cast<int>(Tier::kDevice), nvme = static_cast<int>(Tier::kNvme);
  EXPECT_EQ(result.read_bytes[nvme], planned.read_bytes[nvme]);
  EXPECT_EQ(result.written_bytes[device], planned.written_bytes[device]);
  EXPECT_EQ(result.read_bytes[device], planned.read_bytes[device]);
  const StepMetrics metrics = SummarizeStep(plan, result);
  const auto sum = [](const TrafficBytes& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  };
  for (int tier = 0; tier < kTierCount; ++tier) {
    EXPECT_EQ(sum(metrics.read[tier]), planned.read_bytes[tier]) << tier;
    EXPECT_EQ(sum(metrics.written[tier]), planned.written_bytes[tier]) << tier;
  }
}

TEST_F(FakeGpuTest, AJobResumesToTheSameBitsWithAndWithoutDirectTransfers) {
  const v1::JobSpec direct = Direct(TinyLlama()), through = Through(direct);
  UseGpu({});
  Bits(through, /*hash_each_step=*/false);
  const std::string expected = final_hash_;
  for (const bool first : {false, true}) {
    UseDirectGpu({.seed = 3});
    const v1::JobSpec& before = first ? direct : through;
    const v1::JobSpec& after = first ? through : direct;
    TrainerCounters counters = StartOf(before);
    std::string path;
    {
      auto engine = Make(before);
      ASSERT_TRUE(engine.ok()) << engine.status();
      ASSERT_TRUE((*engine)->Initialize(before.training().seed()).ok());
      RandomTokens source(before);
      ASSERT_TRUE((*engine)->train().Run(source, 1, counters).ok());
      path = Save(**engine, absl::StrCat(folder_, "/checkpoints", first), counters);
    }
    auto engine = Make(after);
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto reader = CheckpointReader::Open(path);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ASSERT_TRUE((*engine)->LoadCheckpoint(**reader, 1).ok());
    RandomTokens source(after);
    ASSERT_TRUE((*engine)->train().Run(source, after.training().steps() - 1, counters).ok());
    EXPECT_EQ((*engine)->StateHash(counters.iterations).value_or("?"), expected) << first;
    engine->reset();
    EXPECT_EQ(cuda_->Complaints(/*with_leaks=*/true), "");
    EXPECT_EQ(cufile_->Complaints(), "");
  }
}

// One byte, once: the transfer is repeated. Each time: it is data loss, told with its place.
TEST_F(FakeGpuTest, AFlippedByteOfADirectReadIsNeverUsed) {
  const v1::JobSpec spec = Direct(TinyLlama(), /*layers=*/2);
  UseDirectGpu({.seed = 9});
  const auto expected = Train(spec, 2);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const int reads = cufile_->reads();
  ASSERT_GT(reads, 20);
  for (const bool once : {true, false}) {
    for (int nth = 0; nth < reads; nth += 1 + reads / 8) {
      UseDirectGpu({.seed = 9});
      std::atomic<int> at = 0;
      cufile_->after_read = [&](std::byte* data, size_t bytes) {
        const int read = at++;
        if (once ? read == nth : read >= nth) data[bytes / 3] ^= std::byte{0x10};
      };
      const auto hash = Train(spec, 2);
      if (once) {
        EXPECT_EQ(hash.value_or(hash.status().ToString()), *expected) << nth;
      } else {
        EXPECT_EQ(hash.status().code(), absl::StatusCode::kDataLoss) << nth << ": " << hash.status();
        EXPECT_EQ(CauseOf(hash.status()), v1::NVME_IO_ERROR);
        EXPECT_THAT(hash.status().message(), HasSubstr("READ_DIRECT"));
        EXPECT_THAT(hash.status().message(), HasSubstr("NVMe item "));
        EXPECT_THAT(hash.status().message(), HasSubstr("bytes at offset "));
        EXPECT_THAT(hash.status().message(), HasSubstr("/extents: expected "));
      }
      EXPECT_EQ(cuda_->Complaints(/*with_leaks=*/true), "") << nth;
      EXPECT_EQ(cufile_->Complaints(), "") << nth;
    }
  }
}

// Fails the Nth call of cuFile, of CUDA, and the Nth piece of work, for N = 0, 1, 2, ... until nothing fires.
TEST_F(FakeGpuTest, AFaultAnywhereOnTheDirectWayIsAnErrorWithItsCauseAndNeverASuccess) {
  enum Where { kCufile, kCall, kWork };
  v1::JobSpec spec = TinyLlama();
  spec.mutable_training()->set_global_batch(2);
  spec = Direct(spec, /*layers=*/2);
  UseDirectGpu({});
  const auto expected = Train(spec, 2);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const Where where : {kCufile, kCall, kWork}) {
    int failed = 0;
    int nth = 0;
    for (bool fired = true; fired; nth += nth < 40 || where == kCufile ? 1 : 11) {
      UseDirectGpu({.seed = static_cast<uint64_t>(nth)});
      if (where == kCufile) {
        cufile_->fail_call = nth;
        cufile_->error = {cufile::kIoError, 0};
      } else if (where == kCall) {
        cuda_->FailCall(nth, kCudaLaunchFailure);
      } else {
        cuda_->FailWork(nth, kCudaIllegalAddress);
      }
      const auto hash = Train(spec, 2);
      fired = where == kCufile ? cufile_->calls() > nth : cuda_->failed();
      if (hash.ok()) {
        // It came after the last result, or not at all.
        EXPECT_EQ(*hash, *expected) << nth;
      } else {
        ++failed;
        EXPECT_TRUE(fired) << hash.status();
        const v1::FailureCause cause = CauseOf(hash.status());
        if (where == kCufile) {
          const bool refused = hash.status().code() == absl::StatusCode::kFailedPrecondition;
          EXPECT_EQ(cause, refused ? v1::USER_ERROR : v1::NVME_IO_ERROR) << nth << ": " << hash.status();
          EXPECT_THAT(hash.status().message(), HasSubstr("cuFile error 5044"));
        } else {
          EXPECT_EQ(cause, v1::DEVICE_FAULT) << nth << ": " << hash.status();
        }
      }
      EXPECT_EQ(cuda_->Complaints(false), "") << nth;
      EXPECT_EQ(cufile_->Complaints(), "") << nth;
    }
    std::printf("%d: faults at 0 .. %d, %d runs failed\n", static_cast<int>(where), nth, failed);
    EXPECT_GT(failed, 30);
  }
}

// An evaluation: the host waits for a checksum before it compares it, and before it reads into a slot for the
// block that has used it.
TEST_F(FakeGpuTest, ADirectReadThatDoesNotWaitForTheDeviceIsFound) {
  using Forgets = ForgetfulDevice::Forgets;
  const v1::JobSpec spec = Direct(TinyLlama());
  for (const auto& [forgets, race] :
       {std::pair(Forgets::kSynchronize, "reads what Checksums"),
        std::pair(Forgets::kSynchronizeWithLanes, "a read from NVMe writes what")}) {
    UseDirectGpu({.order = Order::kLazy, .seed = 5});
    WrapDevice(std::move(accelerator_), [what = forgets](std::unique_ptr<Device> device) {
      return std::make_unique<ForgetfulDevice>(std::move(device), what);
    });
    auto engine = Make(spec);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE((*engine)->Initialize(7).ok());
    RandomTokens source(spec);
    TrainerCounters counters = StartOf(spec);
    EXPECT_FALSE((*engine)->eval().Run(source, 1, counters).ok());
    EXPECT_THAT(cuda_->Complaints(false), HasSubstr(race));
  }
}

TEST_F(FakeGpuTest, DirectTransfersNeedFilesOpenForDirectIo) {
  v1::JobSpec spec = Direct(TinyLlama());
  spec.mutable_memory()->mutable_io()->set_direct(v1::DIRECT_IO_OFF);
  UseDirectGpu({});
  const absl::Status refused = Make(spec).status();
  EXPECT_EQ(CauseOf(refused), v1::USER_ERROR) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("is not read by O_DIRECT: asked for"));
  EXPECT_EQ(cufile_->Complaints(), "");
}

TEST_F(FakeGpuTest, AJobThatRequiresAGpuFailsWithoutOne) {
  v1::JobSpec spec = TinyLlama();
  spec.mutable_memory()->add_require(v1::FEATURE_GPU);
  const absl::Status status = Make(spec).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("memory.require: gpu cannot be had, there is only cpu"));
  UseGpu({});
  EXPECT_TRUE(Make(spec).ok());
}

TEST_F(FakeGpuTest, Fp8GivesTheBitsOfTheCpuAndIsRefusedWhereTheGpuHasNone) {
  v1::JobSpec spec = SmallFp8Llama();
  spec.mutable_training()->set_compute_threads(1);
  const std::string expected = Bits(spec);
  UseGpu({.seed = 77});
  EXPECT_EQ(Bits(spec), expected);
  EXPECT_EQ(cuda_->Complaints(true), "");
  for (const auto& [major, minor] : {std::pair(8, 6), {8, 0}}) {
    UseGpu({.major = major, .minor = minor});
    const absl::Status status = Make(spec).status();
    EXPECT_EQ(CauseOf(status), v1::USER_ERROR) << status;
    EXPECT_THAT(status.message(), HasSubstr("training.precision: fp8"));
    EXPECT_THAT(status.message(), HasSubstr("need 8.9 or newer: use training.precision: bf16"));
  }
  UseGpu({.major = 8, .minor = 9});
  EXPECT_TRUE(Make(spec).ok());
}

TEST_F(FakeGpuTest, AGpuWithoutTheMemoryIsOutOfDeviceMemory) {
  UseGpu({.memory_bytes = 4096});
  const absl::Status status = Make(TinyLlama()).status();
  EXPECT_EQ(CauseOf(status), v1::DEVICE_OOM) << status;
  EXPECT_THAT(status.message(), HasSubstr("4096 bytes (4 KiB) free"));
}

TEST_F(FakeGpuTest, ABackendThatForgetsItsWaitsIsFound) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the races that this plants are races to ThreadSanitizer as well";
#endif
  const v1::JobSpec spec = TinyLlama();
  for (const auto forgets : {ForgetfulDevice::Forgets::kWait, ForgetfulDevice::Forgets::kSynchronize}) {
    UseGpu({.order = Order::kRandom, .seed = 5});
    WrapDevice(std::move(accelerator_), [forgets](std::unique_ptr<Device> device) {
      return std::make_unique<ForgetfulDevice>(std::move(device), forgets);
    });
    EXPECT_FALSE(Train(spec, 2).ok());
    EXPECT_THAT(cuda_->Complaints(false), HasSubstr("and nothing orders them")) << static_cast<int>(forgets);
  }
}

// With all states on the device losses and norms are all that the host reads of it.
TEST_F(FakeGpuTest, AReadOfLossesAndNormsThatNothingOrdersIsFound) {
  v1::JobSpec spec = TinyLlama();
  Place(*spec.mutable_memory(), v1::TIER_DEVICE, v1::TIER_DEVICE, v1::TIER_DEVICE, v1::TIER_DEVICE);
  for (const bool forgets : {false, true}) {
    UseGpu({.order = Order::kLazy, .seed = 5});
    if (forgets) {
      WrapDevice(std::move(accelerator_), [](std::unique_ptr<Device> device) {
        return std::make_unique<ForgetfulDevice>(std::move(device), ForgetfulDevice::Forgets::kSynchronize);
      });
    }
    EXPECT_EQ(Train(spec, 2).ok(), !forgets);
    const std::string complaints = cuda_->Complaints(false);
    EXPECT_EQ(complaints.find("the host's read of results") != std::string::npos, forgets) << complaints;
    EXPECT_EQ(complaints.empty(), !forgets) << complaints;
  }
}

// Fails the Nth call, and the Nth piece of work, for N = 0, 1, 2, ... until nothing fires.
TEST_F(FakeGpuTest, AFaultAnywhereIsAnErrorWithItsCauseAndNeverASuccess) {
  v1::JobSpec spec = TinyLlama();
  spec.mutable_model()->mutable_config()->set_layers(1);
  spec.mutable_training()->set_global_batch(2);
  Place(*spec.mutable_memory(), v1::TIER_HOST, v1::TIER_DEVICE, v1::TIER_HOST, v1::TIER_DEVICE);
  const auto expected = Train(spec, 2);
  ASSERT_TRUE(expected.ok()) << expected.status();
  int failed = 0, torn_down = 0;
  for (const bool work : {false, true}) {
    int64_t nth = 0;
    for (bool fired = true; fired; nth += nth < 40 ? 1 : 5) {
      UseGpu({.seed = static_cast<uint64_t>(nth)});
      if (work) {
        cuda_->FailWork(nth, kCudaIllegalAddress);
      } else {
        cuda_->FailCall(nth, kCudaLaunchFailure);
      }
      const auto hash = Train(spec, 2);
      fired = cuda_->failed();
      if (hash.ok()) {
        // It came after the last result, or not at all.
        EXPECT_EQ(*hash, *expected) << nth;
        torn_down += fired;
      } else {
        ++failed;
        EXPECT_TRUE(fired) << hash.status();
        EXPECT_EQ(CauseOf(hash.status()), v1::DEVICE_FAULT) << nth << ": " << hash.status();
        EXPECT_THAT(hash.status().message(),
                    HasSubstr(work ? "illegal memory access" : "unspecified launch failure"));
      }
      EXPECT_EQ(cuda_->Complaints(false), "") << nth;
    }
    std::printf("%s: faults at 0 .. %d\n", work ? "work" : "calls", static_cast<int>(nth));
  }
  std::printf("%d runs failed, %d were over already\n", failed, torn_down);
  EXPECT_GT(failed, 100);
}

}  // namespace
}  // namespace strata
