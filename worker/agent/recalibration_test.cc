#include "worker/agent/recalibration.h"

#include <atomic>
#include <string>

#include "gtest/gtest.h"

namespace strata {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

v1::MachineProfile Speeds(const std::string& source) {
  v1::MachineProfile speeds;
  speeds.set_source(source);
  return speeds;
}
v1::MachineProfile BusySpeeds() {
  v1::MachineProfile speeds = Speeds("measured");
  speeds.set_measured_while_busy(true);
  return speeds;
}

// Measurements whose results the test sets, and a wait for their ends.
class RecalibrationTest : public ::testing::Test {
 protected:
  void WaitForEnds(int ends) {
    MutexLock lock(mu_);
    while (ends_ < ends) changed_.Wait(mu_);
  }

  absl::StatusOr<v1::MachineProfile> result_ = Speeds("idle");
  std::atomic<int> begun_ = 0;
  Mutex mu_;
  CondVar changed_;
  int ends_ ABSL_GUARDED_BY(mu_) = 0;
  Recalibration recalibration_{[this] {
                                 ++begun_;
                                 return result_;
                               },
                               [this] {
                                 MutexLock lock(mu_);
                                 ++ends_;
                                 changed_.SignalAll();
                               }};
};

TEST_F(RecalibrationTest, AGuessIsMeasuredAsSoonAsItCanBe) {
  v1::MachineProfile guess = Speeds("a guess");
  guess.set_guessed(true);
  EXPECT_FALSE(recalibration_.Poll(true, guess, kSecond).has_value());
  EXPECT_FALSE(recalibration_.Poll(true, guess, 40 * kSecond).has_value());
  WaitForEnds(1);
  EXPECT_EQ(recalibration_.Poll(true, guess, 41 * kSecond)->source(), "idle");
}

TEST(RecalibrationRunningTest, ItSaysWhileOneIsUnderWay) {
  Mutex mu;
  CondVar changed;
  bool may_end = false, ended = false;
  Recalibration recalibration(
      [&] {
        MutexLock lock(mu);
        while (!may_end) changed.Wait(mu);
        return Speeds("idle");
      },
      [&] {
        MutexLock lock(mu);
        ended = true;
        changed.SignalAll();
      });
  EXPECT_FALSE(recalibration.Poll(true, BusySpeeds(), kSecond).has_value());
  EXPECT_FALSE(recalibration.running());
  EXPECT_FALSE(recalibration.Poll(true, BusySpeeds(), 40 * kSecond).has_value());
  EXPECT_TRUE(recalibration.running());
  {
    MutexLock lock(mu);
    may_end = true;
    changed.SignalAll();
    while (!ended) changed.Wait(mu);
  }
  EXPECT_FALSE(recalibration.running()) << "whoever hears of the end may begin";
}

TEST_F(RecalibrationTest, BusySpeedsAreMeasuredAgainWhenNothingRuns) {
  EXPECT_FALSE(recalibration_.Poll(/*idle=*/true, BusySpeeds(), kSecond).has_value())
      << "it has just been measured";
  EXPECT_FALSE(recalibration_.Poll(/*idle=*/false, BusySpeeds(), 40 * kSecond).has_value());
  EXPECT_FALSE(recalibration_.Poll(/*idle=*/true, Speeds("measured"), 40 * kSecond).has_value());
  EXPECT_EQ(begun_, 0);
  EXPECT_FALSE(recalibration_.Poll(true, BusySpeeds(), 40 * kSecond).has_value());
  WaitForEnds(1);
  // A task may have begun meanwhile: what was found is found.
  const auto found = recalibration_.Poll(false, BusySpeeds(), 41 * kSecond);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->source(), "idle");
  EXPECT_FALSE(recalibration_.Poll(true, *found, 100 * kSecond).has_value());
  EXPECT_EQ(begun_, 1);
}

TEST_F(RecalibrationTest, WhatStaysBusyOrFailsIsTriedAgainLater) {
  result_ = absl::ResourceExhaustedError("no space");
  EXPECT_FALSE(recalibration_.Poll(false, BusySpeeds(), kSecond).has_value());
  EXPECT_FALSE(recalibration_.Poll(true, BusySpeeds(), 40 * kSecond).has_value());
  WaitForEnds(1);
  EXPECT_FALSE(recalibration_.Poll(true, BusySpeeds(), 41 * kSecond).has_value());
  EXPECT_EQ(begun_, 1) << "at most every half minute";
  result_ = BusySpeeds();
  EXPECT_FALSE(recalibration_.Poll(true, BusySpeeds(), 71 * kSecond).has_value());
  WaitForEnds(2);
  EXPECT_TRUE(recalibration_.Poll(true, BusySpeeds(), 72 * kSecond).has_value());
  EXPECT_FALSE(recalibration_.Poll(true, BusySpeeds(), 130 * kSecond).has_value());
  EXPECT_EQ(begun_, 2) << "a minute behind the second";
  // Ever more seldom, but not for ever.
  int64_t now = 131 * kSecond;
  for (int ends = 3; ends < 12; ++ends) {
    EXPECT_FALSE(recalibration_.Poll(true, BusySpeeds(), now).has_value());
    WaitForEnds(ends);
    EXPECT_TRUE(recalibration_.Poll(true, BusySpeeds(), now + kSecond).has_value());
    EXPECT_EQ(begun_, ends);
    now += 900 * kSecond;
  }
}

}  // namespace
}  // namespace strata
