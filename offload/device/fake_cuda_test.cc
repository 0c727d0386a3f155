// The checker's teeth: what it must find and what it must leave alone.
#include "offload/device/fake_cuda.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
using Order = FakeCudaOptions::Order;

constexpr size_t kBytes = 256;

class FakeCudaTest : public ::testing::Test {
 protected:
  explicit FakeCudaTest(Order order = Order::kLazy) : FakeCudaTest(FakeCudaOptions{.order = order}) {}
  explicit FakeCudaTest(const FakeCudaOptions& options) : cuda_(options) {
    EXPECT_EQ(cuda_.Malloc(&device_, 2 * kBytes), 0);
    EXPECT_EQ(cuda_.HostAlloc(&host_, 2 * kBytes), 0);
    std::memset(host_, 0, 2 * kBytes);
    for (Stream*& stream : streams_) EXPECT_EQ(cuda_.StreamCreate(&stream), 0);
    for (CudaEvent*& event : events_) EXPECT_EQ(cuda_.EventCreate(&event), 0);
  }
  ~FakeCudaTest() override {
    for (Stream* stream : streams_) {
      (void)cuda_.StreamSynchronize(stream);
      (void)cuda_.StreamDestroy(stream);
    }
    for (CudaEvent* event : events_) (void)cuda_.EventDestroy(event);
    (void)cuda_.FreeHost(host_);
    (void)cuda_.Free(device_);
  }
  std::byte* host(size_t offset = 0) { return static_cast<std::byte*>(host_) + offset; }
  std::byte* device(size_t offset = 0) { return static_cast<std::byte*>(device_) + offset; }
  int Up(int stream, size_t bytes = kBytes) {
    return cuda_.MemcpyToDeviceAsync(device_, host_, bytes, streams_[stream]);
  }
  int Down(int stream, size_t bytes = kBytes) {
    return cuda_.MemcpyToHostAsync(host(kBytes), device_, bytes, streams_[stream]);
  }
  std::string Complaints() { return cuda_.Complaints(false); }

  FakeCuda cuda_;
  void* device_ = nullptr;
  void* host_ = nullptr;
  Stream* streams_[3] = {};
  CudaEvent* events_[3] = {};
};

TEST_F(FakeCudaTest, DeviceMemoryStartsAsNaN) {
  ASSERT_EQ(Down(0), 0);
  ASSERT_EQ(cuda_.StreamSynchronize(streams_[0]), 0);
  float value;
  std::memcpy(&value, host(kBytes), sizeof(value));
  EXPECT_TRUE(std::isnan(value));
}

TEST_F(FakeCudaTest, LazyWorkRunsWhenSomeoneWaits) {
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  ASSERT_EQ(Down(0), 0);
  EXPECT_EQ(cuda_.work_done(), 0);
  EXPECT_EQ(cuda_.EventSynchronize(events_[0]), 0);
  EXPECT_EQ(cuda_.work_done(), 1);  // not what came after the event
  EXPECT_EQ(Complaints(), "");
}

TEST_F(FakeCudaTest, APollLetsWorkRun) {
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  int polled;
  while ((polled = cuda_.EventQuery(events_[0])) == kCudaNotReady) {
  }
  EXPECT_EQ(polled, 0);
  EXPECT_EQ(cuda_.work_done(), 1);
}

TEST_F(FakeCudaTest, CopiesOfTwoStreamsWithoutAnEventRace) {
  ASSERT_EQ(Up(0), 0);
  EXPECT_EQ(Down(1), kCudaLaunchFailure);
  EXPECT_THAT(Complaints(), HasSubstr("a copy to the host on stream 1 reads what a copy to the device on "
                                      "stream 0 writes, and nothing orders them"));
}

TEST_F(FakeCudaTest, AnEventBetweenThemOrdersThemAlsoThroughAThirdStream) {
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  ASSERT_EQ(cuda_.StreamWaitEvent(streams_[2], events_[0]), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[1], streams_[2]), 0);
  ASSERT_EQ(cuda_.StreamWaitEvent(streams_[1], events_[1]), 0);
  ASSERT_EQ(Down(1), 0);
  ASSERT_EQ(cuda_.StreamSynchronize(streams_[1]), 0);
  EXPECT_EQ(Complaints(), "");
  EXPECT_EQ(std::memcmp(host(), host(kBytes), kBytes), 0);
}

TEST_F(FakeCudaTest, AnEventRecordedTooEarlyOrdersNothing) {
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.StreamWaitEvent(streams_[1], events_[0]), 0);
  EXPECT_EQ(Down(1), kCudaLaunchFailure);
  EXPECT_THAT(Complaints(), HasSubstr("races"));
}

TEST_F(FakeCudaTest, AnEventRecordedAgainKeepsWhatWaitersSaw) {
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  ASSERT_EQ(cuda_.StreamWaitEvent(streams_[1], events_[0]), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[2]), 0);
  ASSERT_EQ(Down(1), 0);
  EXPECT_EQ(Complaints(), "");
}

TEST_F(FakeCudaTest, TwoReadersAndDisjointBytesDoNotRace) {
  ASSERT_EQ(Up(0, kBytes / 2), 0);
  ASSERT_EQ(cuda_.MemcpyToDeviceAsync(device(kBytes / 2), host_, kBytes / 2, streams_[1]), 0);
  EXPECT_EQ(Complaints(), "");
}

TEST_F(FakeCudaTest, TheHostMustWaitBeforeItTouchesWhatACopyUses) {
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  cuda_.EndHostAccess(cuda_.BeginHostAccess("a reader", {{host_, kBytes, false}}));
  EXPECT_EQ(Complaints(), "");
  cuda_.EndHostAccess(cuda_.BeginHostAccess("a writer", {{host(8), 8, true}}));
  EXPECT_THAT(Complaints(), HasSubstr("a writer writes what a copy to the device on stream 0 reads"));
}

TEST_F(FakeCudaTest, AfterAWaitTheHostMay) {
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  ASSERT_EQ(cuda_.EventSynchronize(events_[0]), 0);
  cuda_.EndHostAccess(cuda_.BeginHostAccess("a writer", {{host_, kBytes, true}}));
  EXPECT_EQ(Complaints(), "");
}

TEST_F(FakeCudaTest, ACopyEnqueuedUnderAHostAccessRaces) {
  const int64_t access = cuda_.BeginHostAccess("a writer", {{host_, kBytes, true}});
  EXPECT_EQ(Up(0), kCudaLaunchFailure);
  cuda_.EndHostAccess(access);
  EXPECT_THAT(Complaints(), HasSubstr("a copy to the device on stream 0 reads what a writer writes"));
}

TEST_F(FakeCudaTest, DeclaredWorkIsComparedAsCopiesAre) {
  ASSERT_EQ(Up(0), 0);
  cuda_.Declare(streams_[1], "a kernel", {{device(16), 4, true}});
  EXPECT_THAT(Complaints(), HasSubstr("a kernel on stream 1 writes what a copy to the device"));
}

TEST_F(FakeCudaTest, FreeingMemoryThatWorkMayStillUseIsMisuse) {
  void* memory;
  ASSERT_EQ(cuda_.Malloc(&memory, kBytes), 0);
  // Lazy: without a wait the memset never runs, so only the record tells.
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  cuda_.Declare(streams_[0], "a kernel", {{memory, kBytes, true}});
  EXPECT_EQ(cuda_.Free(memory), 0);
  EXPECT_THAT(Complaints(), HasSubstr("cudaFree of memory that a kernel on stream 0 may still use"));
}

TEST_F(FakeCudaTest, CopiesOutsideOfTheArenaAreRefused) {
  EXPECT_EQ(cuda_.MemcpyToDeviceAsync(device(kBytes), host_, kBytes + 1, streams_[0]), kCudaInvalidValue);
  EXPECT_THAT(Complaints(), HasSubstr("outside of the arena"));
}

TEST_F(FakeCudaTest, ACopyOfPageableMemoryIsDoneOnReturnAndCounted) {
  std::vector<std::byte> pageable(kBytes);
  ASSERT_EQ(cuda_.MemcpyToDeviceAsync(device_, pageable.data(), kBytes, streams_[0]), 0);
  EXPECT_EQ(cuda_.work_done(), 1);
  EXPECT_EQ(cuda_.pageable_copies(), 1);
}

TEST_F(FakeCudaTest, AnErrorOfWorkStays) {
  cuda_.FailWork(0, kCudaIllegalAddress);
  ASSERT_EQ(Up(0), 0);
  EXPECT_EQ(cuda_.StreamSynchronize(streams_[0]), kCudaIllegalAddress);
  EXPECT_EQ(cuda_.work_done(), 0);
  EXPECT_EQ(Up(0), kCudaIllegalAddress);
  EXPECT_EQ(cuda_.GetLastError(), kCudaIllegalAddress);
  EXPECT_EQ(cuda_.GetLastError(), kCudaIllegalAddress);
}

// So whoever hears of it may free what the work uses.
TEST(FakeCudaContextTest, WorkThatRunsHasEndedWhenACallSaysThatTheContextDied) {
  struct Work {
    std::atomic<bool> begun = false, ended = false;
  } work;
  FakeCuda cuda({.order = Order::kEager});
  Stream *busy = nullptr, *other = nullptr;
  CudaEvent* event = nullptr;
  ASSERT_EQ(cuda.StreamCreate(&busy), 0);
  ASSERT_EQ(cuda.StreamCreate(&other), 0);
  ASSERT_EQ(cuda.EventCreate(&event), 0);
  const auto body = [](void* argument) {
    Work& work = *static_cast<Work*>(argument);
    work.begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    work.ended = true;
  };
  ASSERT_EQ(cuda.LaunchHostFunc(busy, body, &work), 0);
  while (!work.begun) std::this_thread::yield();
  cuda.FailCall(0, kCudaLaunchFailure);
  EXPECT_EQ(cuda.EventRecord(event, other), kCudaLaunchFailure);
  EXPECT_TRUE(work.ended);
}

TEST_F(FakeCudaTest, AnEventThatIsNotReadyIsTheLastErrorOfTheThreadThatAsked) {
  FakeCuda cuda({.order = Order::kLazy});
  Stream* stream = nullptr;
  CudaEvent* event = nullptr;
  std::atomic<bool> go = false;
  ASSERT_EQ(cuda.StreamCreate(&stream), 0);
  ASSERT_EQ(cuda.EventCreate(&event), 0);
  const auto body = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  ASSERT_EQ(cuda.LaunchHostFunc(stream, body, &go), 0);
  ASSERT_EQ(cuda.EventRecord(event, stream), 0);
  EXPECT_EQ(cuda.EventQuery(event), kCudaNotReady);
  Thread other("other", [&] { EXPECT_EQ(cuda.GetLastError(), kCudaSuccess); });
  other.Join();
  EXPECT_EQ(cuda.GetLastError(), kCudaNotReady);
  EXPECT_EQ(cuda.GetLastError(), kCudaSuccess);
  go = true;
  EXPECT_EQ(cuda.EventSynchronize(event), 0);
  EXPECT_EQ(cuda.EventQuery(event), 0);
  EXPECT_EQ(cuda.GetLastError(), kCudaSuccess);
}

TEST_F(FakeCudaTest, AnInjectedCallFailsOnceWhenTheContextSurvivesIt) {
  cuda_.FailCall(1, kCudaMemoryAllocation, "cudaHostAlloc");
  void* memory = nullptr;
  ASSERT_EQ(cuda_.HostAlloc(&memory, kBytes), 0);
  EXPECT_EQ(cuda_.FreeHost(memory), 0);
  EXPECT_EQ(cuda_.HostAlloc(&memory, kBytes), kCudaMemoryAllocation);
  EXPECT_EQ(cuda_.GetLastError(), kCudaMemoryAllocation);
  EXPECT_EQ(cuda_.GetLastError(), kCudaSuccess);
  EXPECT_EQ(cuda_.HostAlloc(&memory, kBytes), 0);
  EXPECT_THAT(cuda_.Complaints(true), HasSubstr("2 host allocations"));
  EXPECT_EQ(cuda_.FreeHost(memory), 0);
}

class TimedFakeCudaTest : public FakeCudaTest {
 protected:
  explicit TimedFakeCudaTest(bool one_copy_engine = false)
      : FakeCudaTest(FakeCudaOptions{.order = Order::kEager,
                                     .h2d_bytes_per_second = kBytes / 0.002,
                                     .d2h_bytes_per_second = kBytes / 0.001,
                                     .one_copy_engine = one_copy_engine}) {}
  double Between(int begin, int end) {
    float milliseconds = 0;
    EXPECT_EQ(cuda_.EventElapsedTime(&milliseconds, events_[begin], events_[end]), 0);
    return milliseconds;
  }
};

TEST_F(TimedFakeCudaTest, EventsTellHowLongWorkTook) {
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  cuda_.Spend(streams_[0], 0.003);
  ASSERT_EQ(cuda_.MemsetAsync(device_, 1, kBytes, streams_[0]), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[1], streams_[0]), 0);
  float milliseconds = 0;
  EXPECT_EQ(cuda_.EventElapsedTime(&milliseconds, events_[0], events_[1]), kCudaNotReady);
  ASSERT_EQ(Down(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[2], streams_[0]), 0);
  ASSERT_EQ(cuda_.EventSynchronize(events_[2]), 0);
  EXPECT_GE(Between(0, 1), 2.999);
  EXPECT_GE(Between(1, 2), 0.999);
  EXPECT_LT(Between(2, 0), 0);
  // Another stream begins when what it waits for is done.
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  ASSERT_EQ(Up(0), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[1], streams_[0]), 0);
  ASSERT_EQ(cuda_.StreamWaitEvent(streams_[1], events_[1]), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[2], streams_[1]), 0);
  ASSERT_EQ(cuda_.EventSynchronize(events_[2]), 0);
  EXPECT_GE(Between(0, 1), 1.999);
  EXPECT_GE(Between(1, 2), 0);
  EXPECT_EQ(Complaints(), "");
}

TEST_F(TimedFakeCudaTest, AnEventThatWasNeverRecordedHasNoTime) {
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  float milliseconds = 0;
  EXPECT_EQ(cuda_.EventElapsedTime(&milliseconds, events_[0], events_[1]), kCudaInvalidValue);
  EXPECT_THAT(Complaints(), HasSubstr("never recorded"));
}

class OneEngineFakeCudaTest : public TimedFakeCudaTest {
 protected:
  OneEngineFakeCudaTest() : TimedFakeCudaTest(/*one_copy_engine=*/true) {}
};

TEST_F(OneEngineFakeCudaTest, ServesOneDirectionAfterTheOther) {
  ASSERT_EQ(cuda_.MemcpyToDeviceAsync(device(kBytes), host(), kBytes, streams_[0]), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[0], streams_[0]), 0);
  ASSERT_EQ(Down(1), 0);
  ASSERT_EQ(cuda_.EventRecord(events_[1], streams_[1]), 0);
  ASSERT_EQ(cuda_.StreamSynchronize(streams_[0]), 0);
  ASSERT_EQ(cuda_.StreamSynchronize(streams_[1]), 0);
  EXPECT_GE(Between(0, 1), 0.999);
}

TEST(FakeCudaResetTest, ADeviceInUseIsNotReset) {
  FakeCuda cuda;
  EXPECT_EQ(cuda.DeviceReset(), 0);
  void* memory = nullptr;
  ASSERT_EQ(cuda.Malloc(&memory, 4096), 0);
  EXPECT_EQ(cuda.DeviceReset(), kCudaInvalidValue);
  EXPECT_THAT(cuda.Complaints(false), HasSubstr("cudaDeviceReset of a device in use"));
}

}  // namespace
}  // namespace strata
