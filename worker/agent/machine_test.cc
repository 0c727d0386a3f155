#include "worker/agent/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;
const MemoryLimit kMemory = {20 * kGiB, "memory.max of the control group /sys/fs/cgroup/work"};
const GpuMemory kGpu = {"a GPU", 80 * kGiB, 70 * kGiB};

absl::StatusOr<OfferedBytes> Offer(int64_t device, int64_t host, const GpuMemory* gpu = nullptr) {
  AgentOptions options;
  options.device_bytes = device;
  options.host_bytes = host;
  return OfferMemory(options, kMemory, gpu);
}

TEST(MachineTest, AutoBudgetsAreSharesOfWhatTheControlGroupAllows) {
  EXPECT_EQ(Offer(0, 0)->device, 5 * kGiB);
  EXPECT_EQ(Offer(0, 0)->host, 12 * kGiB);
  // What one is told to take the other cannot have.
  EXPECT_EQ(Offer(16 * kGiB, 0)->host, 4 * kGiB);
  EXPECT_EQ(Offer(0, 18 * kGiB)->device, 2 * kGiB);
}

TEST(MachineTest, AGpusBudgetIsOfWhatIsFreeOfItAndTakesNothingOfTheRam) {
  EXPECT_EQ(Offer(0, 0, &kGpu)->device, 63 * kGiB);
  EXPECT_EQ(Offer(0, 0, &kGpu)->host, 12 * kGiB);
  EXPECT_EQ(Offer(70 * kGiB, 20 * kGiB, &kGpu)->device, 70 * kGiB);
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
