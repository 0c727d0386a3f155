#include "offload/calibrate/gpu_probe.h"

#include <chrono>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/calibrate/calibrate.h"
#include "offload/device/cuda_accelerator.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/fake_cufile.h"
#include "offload/device/paced_math.h"
#include "offload/model/model_layout.h"
#include "offload/plan/planner.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// A GPU of given speeds that computes nothing.
class PacedGpu {
 public:
  PacedGpu(const FakeCudaOptions& options, const FakeSpeeds& speeds) : cuda_(options) {
    accelerator_ = *CreateCudaAccelerator(
        cuda_,
        {.make_ops = [this, speeds](DType compute) -> absl::StatusOr<std::unique_ptr<Ops>> {
           if (compute == DType::kF32 && !f32_) return absl::UnimplementedError("no kernel takes fp32");
           return PacedOps(cuda_, compute, speeds);
         },
         .states = {.make = [this, speeds](Workspace) -> absl::StatusOr<std::unique_ptr<StateOps>> {
           return PacedStateOps(cuda_, speeds);
         }}},
        NoCufile);
  }
  FakeCuda& cuda() { return cuda_; }
  Accelerator& accelerator() { return *accelerator_; }
  void TakesNoF32() { f32_ = false; }

 private:
  FakeCuda cuda_;
  std::unique_ptr<Accelerator> accelerator_;
  bool f32_ = true;
};

FakeCudaOptions Options(double h2d, double d2h, bool one_copy_engine = false) {
  return {.order = FakeCudaOptions::Order::kEager,
          .memory_bytes = 330 * kMiB,  // 74 for jobs
          .h2d_bytes_per_second = h2d,
          .d2h_bytes_per_second = d2h,
          .one_copy_engine = one_copy_engine};
}

std::string Probe(PacedGpu& gpu, MachineProfile* profile) {
  std::vector<std::byte> host(32 * kMiB);
  const absl::StatusOr<std::string> said = ProbeGpu(gpu.accelerator(), host, profile);
  EXPECT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(gpu.cuda().Complaints(/*with_leaks=*/true), "");
  return said.value_or("");
}

// What is measured is never faster than the GPU, and slower by little: it is the best of several calls.
void ExpectSpeed(double measured, double speed, const char* what) {
  EXPECT_LE(measured, speed * 1.001) << what;
  EXPECT_GE(measured, speed * 0.8) << what;
}

constexpr FakeSpeeds kSpeeds = {
    .flops = 8e12, .attention_flops = 4e12, .bytes_per_second = 4e10, .launch_seconds = 5e-6};

TEST(GpuProbeTest, FindsTheSpeedsOfTheDevice) {
  PacedGpu gpu(Options(2e9, 1e9), kSpeeds);
  MachineProfile profile;
  profile.per_op_seconds = 0;
  const auto begin = std::chrono::steady_clock::now();
  const std::string said = Probe(gpu, &profile);
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::seconds(10));  // beside what else runs here
  EXPECT_FALSE(profile.device_is_cpu);
  EXPECT_EQ(profile.bf16.forward_gemm.size(), profile.bf16.backward_gemm.size());
  ASSERT_GE(profile.bf16.forward_gemm.size(), 2u);
  ExpectSpeed(profile.bf16.forward_gemm.back().rate, 8e12, "forward products");
  ExpectSpeed(profile.bf16.backward_gemm.back().rate, 8e12, "backward products");
  ExpectSpeed(profile.f32.forward_gemm.back().rate, 2e12, "products in fp32");
  ASSERT_EQ(profile.bf16.fp8_forward_gemm.size(), profile.bf16.forward_gemm.size());
  ExpectSpeed(profile.bf16.fp8_forward_gemm.back().rate, 8e12, "forward products in fp8");
  ExpectSpeed(profile.bf16.fp8_backward_gemm.back().rate, 8e12, "backward products in fp8");
  ExpectSpeed(profile.bf16.dropout_elements_per_second, 1e10, "dropout");
  EXPECT_LE(profile.bf16.attention_flops, 4e12);
  EXPECT_GT(profile.bf16.attention_flops, 1e12);
  ExpectSpeed(profile.bf16.elementwise_bytes_per_second, 4e10, "element-wise");
  ExpectSpeed(profile.h2d_bytes_per_second, 2e9, "to the device");
  ExpectSpeed(profile.d2h_bytes_per_second, 1e9, "back");
  EXPECT_GE(profile.per_op_seconds, 5e-6);
  EXPECT_LT(profile.per_op_seconds, 1e-3);
  EXPECT_THAT(said, HasSubstr("Fake GPU, driver 1.2.3 (copies "));
  EXPECT_THAT(said, HasSubstr("both together"));
}

TEST(GpuProbeTest, CopiesThatShareALinkAreAsFastAsTheyAreTogether) {
  PacedGpu gpu(Options(2e9, 2e9, /*one_copy_engine=*/true), kSpeeds);
  MachineProfile profile;
  Probe(gpu, &profile);
  ExpectSpeed(profile.h2d_bytes_per_second, 1e9, "to the device");
  ExpectSpeed(profile.d2h_bytes_per_second, 1e9, "back");
}

TEST(GpuProbeTest, AGpuWhoseKernelsTakeNoFp32IsMeasuredInBf16) {
  PacedGpu gpu(Options(2e9, 2e9), kSpeeds);
  gpu.TakesNoF32();
  MachineProfile profile;
  Probe(gpu, &profile);
  EXPECT_EQ(profile.f32, profile.bf16);
}

TEST(GpuProbeTest, MemoryThatCannotBeRegisteredIsMeasuredAllTheSame) {
  PacedGpu gpu(Options(2e9, 2e9), kSpeeds);
  gpu.cuda().FailCall(0, kCudaMemoryAllocation, "cudaHostRegister");
  MachineProfile profile;
  Probe(gpu, &profile);
  EXPECT_GT(gpu.cuda().pageable_copies(), 0);
}

TEST(GpuProbeTest, AGpuWithoutMemoryOrThatBreaksIsAnErrorAndNothingIsKept) {
  std::vector<std::byte> host(32 * kMiB);
  MachineProfile profile;
  FakeCudaOptions options = Options(0, 0);
  options.memory_bytes = 280 * kMiB;
  PacedGpu small(options, kSpeeds);
  const absl::Status full = ProbeGpu(small.accelerator(), host, &profile).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("it takes 32 MiB of the device's memory, 24 MiB are free for jobs"));
  for (const int64_t nth : {0, 40}) {
    PacedGpu broken(Options(0, 0), kSpeeds);
    broken.cuda().FailWork(nth, kCudaIllegalAddress);
    const absl::Status status = Calibrate({.threads = 1, .gpu = &broken.accelerator()}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << nth;
    EXPECT_THAT(status.message(), HasSubstr("calibration of Fake GPU")) << nth;
    EXPECT_THAT(status.message(), HasSubstr("illegal memory access")) << nth;
  }
}

// The step that is predicted for a job on a machine with such a GPU.
Simulation Predict(const MachineProfile& profile, Tier homes) {
  ModelConfig config;
  config.architecture = Architecture::kLlama;
  config.activation = Activation::kSwiglu;
  config.layers = 4;
  config.hidden = 1024;
  config.heads = config.kv_heads = 8;
  config.head_dim = 128;
  config.ffn = 2816;
  config.vocab = 2048;
  config.max_seq = 512;
  const absl::StatusOr<ModelLayout> layout = BuildModelLayout(config, DType::kBF16, 4, 512);
  EXPECT_TRUE(layout.ok()) << layout.status();
  PlanRequest request;
  request.layout = &*layout;
  request.budget.fill(int64_t{16} << 30);
  request.params = request.gradients = request.optimizer = request.activations = homes;
  request.mode = Mode::kSync;
  request.predict_only = true;
  request.profile = profile;
  const auto outcome = MakePlan(request);
  EXPECT_TRUE(outcome.ok()) << outcome.status();
  return std::get<PlannedJob>(*outcome).simulation;
}

TEST(GpuProbeTest, PredictedStepsFollowTheSpeeds) {
  const auto measured = [](const FakeSpeeds& speeds, double copies) {
    PacedGpu gpu(Options(copies, copies), speeds);
    MachineProfile profile;
    profile.adamw_seconds_per_parameter = 1e-12;  // the host is no limit here
    profile.accumulate_bytes_per_second = profile.norm_bytes_per_second = 1e15;
    profile.per_op_seconds = 0;
    Probe(gpu, &profile);
    return profile;
  };
  FakeSpeeds half = kSpeeds;
  half.flops /= 2;
  half.attention_flops /= 2;
  half.bytes_per_second /= 2;
  const MachineProfile fast = measured(kSpeeds, 4e9), slow = measured(half, 4e9),
                       slow_link = measured(kSpeeds, 1e9);
  // All on the device: the device's speed alone.
  const double step = Predict(fast, Tier::kDevice).step_seconds;
  EXPECT_NEAR(Predict(slow, Tier::kDevice).step_seconds / step, 2, 0.3);
  EXPECT_NEAR(Predict(slow_link, Tier::kDevice).step_seconds / step, 1, 0.15);
  // All in host memory: the link binds when it is slow.
  const Simulation offloaded = Predict(slow_link, Tier::kHost);
  EXPECT_THAT(offloaded.binding, ::testing::AnyOf("h2d", "d2h"));
  EXPECT_GT(offloaded.step_seconds, 1.5 * Predict(fast, Tier::kHost).step_seconds);
}

}  // namespace
}  // namespace strata
