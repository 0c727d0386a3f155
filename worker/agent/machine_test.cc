#include "worker/agent/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;
const MemoryLimit kTotal = {20 * kGiB, "memory.max of the control group /sys/fs/cgroup/work"};
const MemoryLimits kMemory = {
    kTotal, {20 * kGiB, "what is free below memory.max of the control group /sys/fs/cgroup/work"}};
const GpuMemory kGpu = {"a GPU", 80 * kGiB, 70 * kGiB};
constexpr int64_t kPrograms = kAgentBytes + kTrainerBytes;

absl::StatusOr<RamBudgets> Offer(int64_t device, int64_t host, const GpuMemory* gpu = nullptr,
                                 int64_t free = 20 * kGiB) {
  AgentOptions options;
  options.device_bytes = device;
  options.host_bytes = host;
  MemoryLimits memory = kMemory;
  memory.available.bytes = free;
  return OfferMemory(options, memory, gpu);
}

TEST(MachineTest, AutoBudgetsAreSharesOfWhatTheControlGroupAllows) {
  EXPECT_EQ(Offer(0, 0)->device, 5 * kGiB);
  EXPECT_EQ(Offer(0, 0)->host, 12 * kGiB);
  // What one is told to take, and what the programs take, the other cannot have.
  EXPECT_EQ(Offer(16 * kGiB, 0)->host, 4 * kGiB - kPrograms);
  EXPECT_EQ(Offer(0, 18 * kGiB)->device, 2 * kGiB - kPrograms);
}

TEST(MachineTest, AutoBudgetsAreNoMoreThanIsFree) {
  const RamBudgets budgets = *Offer(0, 0, nullptr, 2 * kGiB);
  EXPECT_LE(budgets.device + budgets.host, 2 * kGiB - kPrograms);
  EXPECT_GE(budgets.device + budgets.host, 2 * kGiB - kPrograms - 2);
  const absl::Status refused = Offer(0, 0, nullptr, kPrograms).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("--device-bytes, --host-bytes: auto finds no memory for the device tier: "));
  EXPECT_TRUE(Offer(kGiB, kGiB, nullptr, 0).ok()) << "who names budgets knows what others will give back";
}

TEST(MachineTest, AGpusBudgetIsOfWhatIsFreeOfItAndTakesNothingOfTheRam) {
  EXPECT_EQ(Offer(0, 0, &kGpu)->device, 63 * kGiB);
  EXPECT_EQ(Offer(0, 0, &kGpu)->host, 12 * kGiB);
  EXPECT_EQ(Offer(70 * kGiB, 20 * kGiB, &kGpu)->device, 70 * kGiB);
}

TEST(MachineTest, AGpuWithNothingFreeIsRefusedWithTheNumbers) {
  const GpuMemory full = {"a GPU", 80 * kGiB, 0};
  const absl::Status refused = Offer(0, 0, &full).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(
      refused.message(),
      "--device-bytes is auto, and jobs can have 0 B of the 80 GiB of a GPU: end what else uses the GPU");
}

TEST(MachineTest, WhatExceedsIsRefusedWithTheFlagThatBindsAndWhatSetsTheLimit) {
  const auto refusal = [](int64_t device, int64_t host, const GpuMemory* gpu) {
    const absl::Status status = Offer(device, host, gpu).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(
      refusal(16 * kGiB, 8 * kGiB, nullptr),
      "--device-bytes (16 GiB) and --host-bytes (8 GiB) together exceed 20 GiB, memory.max of the control "
      "group /sys/fs/cgroup/work: lower --device-bytes");
  EXPECT_THAT(refusal(8 * kGiB, 16 * kGiB, nullptr), HasSubstr(": lower --host-bytes"));
  EXPECT_THAT(refusal(0, 21 * kGiB, nullptr), HasSubstr(": lower --host-bytes"));
  EXPECT_THAT(refusal(60 * kGiB, 21 * kGiB, &kGpu),
              HasSubstr("--host-bytes (21 GiB) exceeds 20 GiB, memory.max"));
  EXPECT_EQ(refusal(71 * kGiB, kGiB, &kGpu),
            "--device-bytes (71 GiB) exceeds the 70 GiB that jobs can have of the 80 GiB of a GPU: lower it, "
            "or end "
            "what else uses the GPU");
}

}  // namespace
}  // namespace strata
