#include "client/cli/local_limits.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/device/cuda_accelerator.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/fake_cufile.h"
#include "offload/io/path_probe.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

// 16 GiB of RAM in a control group, 10 of them free; with a GPU of 4 GiB, 3 of them for jobs.
class LocalLimitsTest : public ::testing::Test {
 protected:
  LocalMachine Machine(bool gpu) {
    LocalMachine machine;
    machine.memory = {.total = {16 * kGiB, "memory.max of the control group /sys/fs/cgroup/me"},
                      .available = {10 * kGiB, "what is free of it"}};
    if (gpu) {
      machine.gpu = *CreateCudaAccelerator(cuda_, {}, NoCufile);
      machine.gpu_free_bytes = 3 * kGiB;
    } else {
      machine.why_no_gpu = "no GPU: install one";
    }
    return machine;
  }
  static v1::JobSpec Spec(int64_t device, int64_t host) {
    v1::JobSpec spec;
    spec.mutable_memory()->set_device(device);
    spec.mutable_memory()->set_host(host);
    return spec;
  }
  static std::string Refusal(const std::vector<FieldViolation>& violations) {
    EXPECT_EQ(violations.size(), 1u);
    return violations.empty() ? "" : violations[0].field + ": " + violations[0].description;
  }

  FakeCuda cuda_{{.memory_bytes = 4 * kGiB}};
};

TEST_F(LocalLimitsTest, AutoIsAShareOfTheFreeRamOrOfTheGpusFreeMemory) {
  const v1::ResourceRequest cpu = *LocalLimits(Spec(0, 0), Machine(false), "/", kLocalRunBytes);
  EXPECT_EQ(cpu.device_bytes(), 2 * kGiB);
  EXPECT_EQ(cpu.host_bytes(), 5 * kGiB);
  const v1::ResourceRequest gpu = *LocalLimits(Spec(0, 0), Machine(true), "/", kLocalRunBytes);
  EXPECT_EQ(gpu.device_bytes(), AutoDeviceBudget(3 * kGiB));
  EXPECT_EQ(gpu.host_bytes(), 5 * kGiB);
  EXPECT_EQ(LocalLimits(Spec(kGiB, 2 * kGiB), Machine(true), "/", kLocalRunBytes)->device_bytes(), kGiB);
}

TEST_F(LocalLimitsTest, AutoLeavesWhatTheProgramsTake) {
  for (const int64_t free : {kLocalRunBytes + (16 << 20), kLocalRunBytes + (64 << 20)}) {
    LocalMachine small = Machine(false);
    small.memory.available.bytes = free;
    const v1::ResourceRequest limits = *LocalLimits(Spec(0, 0), small, "/", kLocalRunBytes);
    EXPECT_LE(limits.device_bytes() + limits.host_bytes(), free - kLocalRunBytes);
    EXPECT_GE(limits.device_bytes() + limits.host_bytes(), free - kLocalRunBytes - 2);
  }
  LocalMachine none = Machine(false);
  none.memory.available.bytes = kLocalRunBytes;
  const absl::Status refused = LocalLimits(Spec(0, 0), none, "/", kLocalRunBytes).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("memory.device, memory.host: auto finds no memory for the device tier: "));
  LocalMachine full = Machine(true);
  full.gpu_free_bytes = 0;
  EXPECT_EQ(
      LocalLimits(Spec(0, 0), full, "/", kLocalRunBytes).status().message(),
      "memory.device is auto, and jobs can have 0 B of the 4 GiB of Fake GPU: end what else uses the GPU");
}

// What a path in memory holds is memory, too.
TEST_F(LocalLimitsTest, ScratchInMemoryIsWhatTheBudgetsLeave) {
  if (!IsInMemory("/dev/shm")) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  LocalMachine small = Machine(false);
  small.memory.available.bytes = kLocalRunBytes + (16 << 20);
  EXPECT_LE(LocalLimits(Spec(0, 0), small, "/dev/shm", kLocalRunBytes)->nvme_bytes(), 4096);
  EXPECT_LE(LocalLimits(Spec(1 << 20, 1 << 20), small, "/dev/shm", kLocalRunBytes)->nvme_bytes(), 14 << 20);
}

TEST_F(LocalLimitsTest, AJobThatRequiresGpuDirectLearnsWhyThisMachineHasNone) {
  v1::JobSpec spec = Spec(kGiB, kGiB);
  EXPECT_EQ(LocalLimits(spec, Machine(true), "/", kLocalRunBytes)->why_no_gpudirect(), "");  // nobody looks
  spec.mutable_memory()->add_require(v1::FEATURE_GPUDIRECT);
  EXPECT_EQ(LocalLimits(spec, Machine(true), "/", kLocalRunBytes)->why_no_gpudirect(), "no cuFile here");
  EXPECT_EQ(LocalLimits(spec, Machine(false), "/", kLocalRunBytes)->why_no_gpudirect(), "there is no GPU");
}

TEST_F(LocalLimitsTest, BudgetsBeyondTheMachineNameTheTierThatBindsAndWhatSetsTheLimit) {
  EXPECT_TRUE(CheckMemory(Spec(6 * kGiB, 10 * kGiB), Machine(false)).empty());
  EXPECT_EQ(
      Refusal(CheckMemory(Spec(12 * kGiB, 6 * kGiB), Machine(false))),
      "memory.device: the budgets of device and host are together 18 GiB, more than the 16 GiB of memory.max "
      "of the control group /sys/fs/cgroup/me: lower memory.device, or write auto");
  EXPECT_THAT(Refusal(CheckMemory(Spec(6 * kGiB, 12 * kGiB), Machine(false))), HasSubstr("memory.host: "));
  // A GPU's memory is its own.
  EXPECT_TRUE(CheckMemory(Spec(3 * kGiB, 16 * kGiB), Machine(true)).empty());
  EXPECT_THAT(Refusal(CheckMemory(Spec(3 * kGiB, 17 * kGiB), Machine(true))),
              HasSubstr("memory.host: the budget of the host is 17 GiB, more than the 16 GiB"));
  EXPECT_EQ(Refusal(CheckMemory(Spec(4 * kGiB, kGiB), Machine(true))),
            "memory.device: is 4 GiB, but jobs can have 3 GiB of the 4 GiB of Fake GPU: lower it, write "
            "auto, or end "
            "what else uses the GPU");
  EXPECT_EQ(CheckMemory(Spec(4 * kGiB, 17 * kGiB), Machine(true)).size(), 2u);
}

TEST_F(LocalLimitsTest, AJobThatRequiresAGpuIsRefusedWithoutOne) {
  v1::JobSpec spec = Spec(0, 0);
  EXPECT_TRUE(CheckRequiredGpu(spec, Machine(false).why_no_gpu).empty());
  spec.mutable_memory()->add_require(v1::FEATURE_O_DIRECT);
  EXPECT_TRUE(CheckRequiredGpu(spec, Machine(false).why_no_gpu).empty());
  spec.mutable_memory()->add_require(v1::FEATURE_GPU);
  EXPECT_TRUE(CheckRequiredGpu(spec, Machine(true).why_no_gpu).empty());
  EXPECT_EQ(Refusal(CheckRequiredGpu(spec, Machine(false).why_no_gpu)),
            "memory.require: gpu cannot be had: no GPU: install one; or take gpu out of memory.require, and "
            "the job "
            "trains on a CPU");
}

TEST_F(LocalLimitsTest, AJobInFp8IsRefusedOnAGpuThatDoesNotMultiplyInIt) {
  v1::JobSpec spec = Spec(0, 0);
  spec.mutable_training()->set_precision(v1::PRECISION_FP8);
  EXPECT_TRUE(CheckFp8(spec, Machine(false)).empty()) << "a CPU computes it";
  EXPECT_TRUE(CheckFp8(spec, Machine(true)).empty());
  FakeCuda cuda({.memory_bytes = 4 * kGiB, .major = 8, .minor = 0});
  LocalMachine older = Machine(true);
  older.gpu = *CreateCudaAccelerator(cuda, {}, NoCufile);
  const std::string refusal = Refusal(CheckFp8(spec, older));
  EXPECT_NE(refusal.find("training.precision: "), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("use training.precision: bf16"), std::string::npos) << refusal;
  spec.mutable_training()->set_precision(v1::PRECISION_BF16);
  EXPECT_TRUE(CheckFp8(spec, older).empty());
}

}  // namespace
}  // namespace strata
