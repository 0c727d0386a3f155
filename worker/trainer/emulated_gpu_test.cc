// The kernels that a GPU runs, emulated, under the device backend that a GPU has, over FakeCuda: the same job
// gives the bits that it gives with the same kernels on the CPU as a device. Small, for the emulator is slow.
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_state_ops.h"
#include "kernels/cuda/reference_gemm.h"
#include "kernels/dispatch/cuda_attention.h"
#include "offload/device/cpu_device.h"
#include "offload/device/cuda_accelerator.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/fake_cufile.h"
#include "offload/device/host_math.h"
#include "worker/trainer/engine_testing.h"

namespace strata {
namespace {

// The emulated kernels; they run when they are called.
class EmulatedKernels {
 public:
  EmulatedKernels() : scratch_(CudaStateScratchBytes() + 64) {}

  std::unique_ptr<Ops> MakeOps(DType compute) { return MakeCudaOps(compute, gemm_, attention_); }
  std::unique_ptr<StateOps> MakeStateOps() {
    void* data = scratch_.data();
    size_t space = scratch_.size();
    std::align(64, static_cast<size_t>(CudaStateScratchBytes()), data, space);
    return MakeCudaStateOps({data, CudaStateScratchBytes()});
  }

 private:
  ReferenceGemm gemm_;
  CudaAttention attention_{/*arch=*/80, {}};
  std::vector<std::byte> scratch_;
};

// The kernels on the CPU as a device.
class EmulatedAccelerator : public Accelerator {
 public:
  std::string description() const override { return "emulated kernels"; }
  std::string identity() const override { return description(); }
  int64_t memory_bytes() const override { return int64_t{1} << 40; }
  absl::StatusOr<std::string> gpudirect() override { return NoCufile().status(); }
  absl::StatusOr<int64_t> FreeForJobs() override { return memory_bytes(); }
  absl::Status Release() override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Device>> CreateDevice(int64_t budget_bytes) override {
    return CreateCpuDevice(budget_bytes, *state_ops_);
  }
  absl::StatusOr<std::unique_ptr<Ops>> CreateOps(DType compute) override { return kernels_.MakeOps(compute); }
  absl::Status CheckFp8() const override { return absl::OkStatus(); }

 private:
  EmulatedKernels kernels_;
  const std::unique_ptr<StateOps> state_ops_ = kernels_.MakeStateOps();
};

class EmulatedGpuTest : public EngineTest {
 protected:
  void UseCpuDevice() { accelerator_ = std::make_unique<EmulatedAccelerator>(); }
  void UseFakeGpu(const FakeCudaOptions& options) {
    accelerator_.reset();
    cuda_ = std::make_unique<FakeCuda>(options);
    kernels_ = std::make_unique<EmulatedKernels>();
    auto accelerator = CreateCudaAccelerator(
        *cuda_,
        {.make_ops = [this](DType compute) { return EnqueuedOps(*cuda_, kernels_->MakeOps(compute)); },
         .states = {.make =
                        [this](Workspace) { return EnqueuedStateOps(*cuda_, kernels_->MakeStateOps()); }}},
        [this]() -> absl::StatusOr<CufileApi*> { return &cufile_; });
    ASSERT_TRUE(accelerator.ok()) << accelerator.status();
    accelerator_ = *std::move(accelerator);
  }
  void Adjust(EngineOptions& options) override { options.accelerator = {accelerator_.get(), ""}; }

  FakeCufile cufile_;
  std::unique_ptr<FakeCuda> cuda_;
  std::unique_ptr<EmulatedKernels> kernels_;
  std::unique_ptr<Accelerator> accelerator_;
};

v1::JobSpec Tiny(v1::JobSpec spec) {
  v1::ModelConfig& model = *spec.mutable_model()->mutable_config();
  model.set_layers(1);
  model.set_hidden(32);
  model.set_heads(4);
  model.set_head_dim(8);
  model.set_kv_heads(model.kv_heads() < 4 ? 2 : 4);
  model.set_ffn(48);
  model.set_max_seq(16);
  spec.mutable_data()->set_seq_len(16);
  spec.mutable_training()->set_steps(2);
  spec.mutable_training()->set_global_batch(2);
  spec.mutable_training()->set_micro_batch(1);
  spec.mutable_training()->set_compute_threads(1);
  return spec;
}

TEST_F(EmulatedGpuTest, AJobGivesTheBitsOfTheSameKernelsOnTheCpuDevice) {
  for (const v1::JobSpec& base : {Tiny(SmallLlama()), Tiny(SmallDroppingGpt2()),
                                  WithOptimizer(Tiny(SmallLlama()), "adamw8bit"), Tiny(SmallFp8Llama())}) {
    UseCpuDevice();
    const std::string expected = Bits(base);
    for (const bool nvme : {false, true}) {
      v1::JobSpec spec = base;
      const v1::Tier tier = nvme ? v1::TIER_NVME : v1::TIER_DEVICE;
      Place(*spec.mutable_memory(), tier, nvme ? v1::TIER_HOST : v1::TIER_DEVICE, tier, v1::TIER_DEVICE);
      UseFakeGpu({.order = FakeCudaOptions::Order::kLazy});
      EXPECT_EQ(Bits(spec), expected) << nvme;
      EXPECT_EQ(cuda_->Complaints(/*with_leaks=*/true), "");
    }
  }
}

// The kernel's checksums are those that the host has written and compares with.
TEST_F(EmulatedGpuTest, DirectTransfersCheckedByTheDeviceGiveTheSameBits) {
  v1::JobSpec spec = Tiny(SmallLlama());
  spec.mutable_training()->set_steps(3);
  // With one slot ahead the first layer's input leaves the device.
  spec.mutable_model()->mutable_config()->set_layers(2);
  spec.mutable_memory()->set_prefetch_depth(1);
  UseCpuDevice();
  const std::string expected = Bits(spec);
  Place(*spec.mutable_memory(), v1::TIER_NVME, v1::TIER_HOST, v1::TIER_NVME, v1::TIER_NVME);
  spec.mutable_memory()->add_require(v1::FEATURE_GPUDIRECT);
  UseFakeGpu({.order = FakeCudaOptions::Order::kRandom, .seed = 4});
  EXPECT_EQ(Bits(spec), expected);
  EXPECT_EQ(cuda_->Complaints(/*with_leaks=*/true), "");
  EXPECT_EQ(cufile_.Complaints(), "");
  EXPECT_GT(cufile_.reads(), 10);
  EXPECT_GE(cufile_.writes(), 3 * 2);
}

}  // namespace
}  // namespace strata
