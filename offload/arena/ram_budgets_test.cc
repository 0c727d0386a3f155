#include "offload/arena/ram_budgets.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// Of 1000 MiB, 60 of them for programs; usual are 200 and 500.
RamOffer Offer(int64_t free, RamBudgets wanted) {
  return {.free = {free * kMiB, "what is free below memory.max of the control group /a"},
          .own_bytes = 60 * kMiB,
          .wanted = {wanted.device * kMiB, wanted.host * kMiB},
          .usual = {200 * kMiB, 500 * kMiB}};
}

TEST(RamBudgetsTest, WhereThereIsEnoughAutoIsWhatIsUsual) {
  const RamBudgets budgets = *OfferRam(Offer(1000, {}));
  EXPECT_EQ(budgets.device, 200 * kMiB);
  EXPECT_EQ(budgets.host, 500 * kMiB);
  EXPECT_EQ(OfferRam(Offer(1000, {.device = 900, .host = 800}))->device, 900 * kMiB) << "named is named";
}

TEST(RamBudgetsTest, ProgramsAndTheOtherBudgetComeFirst) {
  for (const int64_t free : {760, 300, 64}) {
    const RamBudgets budgets = *OfferRam(Offer(free, {}));
    EXPECT_LE(budgets.device + budgets.host, (free - 60) * kMiB) << free;
    EXPECT_GE(budgets.device + budgets.host, (free - 60) * kMiB - 2) << free;
    EXPECT_NEAR(static_cast<double>(budgets.host), 2.5 * static_cast<double>(budgets.device), 4) << free;
  }
  EXPECT_EQ(OfferRam(Offer(300, {.device = 100}))->host, 140 * kMiB);
  EXPECT_EQ(OfferRam(Offer(300, {.host = 100}))->device, 140 * kMiB);
  // A device with memory of its own takes nothing.
  RamOffer beside = Offer(300, {});
  beside.usual.device = 0;
  EXPECT_EQ(OfferRam(beside)->host, 240 * kMiB);
  EXPECT_EQ(OfferRam(beside)->device, 0);
}

TEST(RamBudgetsTest, WhatLeavesNothingIsRefusedWithTierBytesAndRemedy) {
  for (const int64_t free : {0, 30, 60, 61, 63}) {
    const absl::Status refused = OfferRam(Offer(free, {})).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << free;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("raise the limit")) << free;
  }
  EXPECT_EQ(
      OfferRam(Offer(63, {})).status().message(),
      "auto finds no memory for the device tier: 63 MiB are what is free below memory.max of the control "
      "group /a, the programs themselves take 60 MiB of them: raise the limit, or free memory");
  EXPECT_THAT(
      std::string(OfferRam(Offer(300, {.device = 240})).status().message()),
      HasSubstr("for the host tier: 300 MiB are what is free below memory.max of the control group /a, "
                "the programs themselves take 60 MiB of them, and 240 MiB are the other budget's: raise"));
}

}  // namespace
}  // namespace strata
