#include "offload/device/cuda_device.h"

#include <cstring>
#include <vector>

#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/device/cuda_accelerator.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/fake_cufile.h"
#include "offload/exec/cause.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

std::string CauseIn(const absl::Status& status) {
  return std::string(status.GetPayload(kCausePayload).value_or(absl::Cord()));
}

const CudaStateMath kStateMath = {.scratch_bytes = 4096, .make = [](Workspace scratch) {
                                    EXPECT_NE(scratch.data, nullptr);
                                    EXPECT_EQ(scratch.bytes, 4096);
                                    return MakeCpuStateOps(1);
                                  }};

class CudaDeviceTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Device>> Make(int64_t bytes = kMiB) {
    return CreateCudaDevice(cuda_, bytes, kStateMath, NoCufile);
  }

  FakeCuda cuda_{{.memory_bytes = 4 * kMiB}};
};

TEST_F(CudaDeviceTest, HasOneArenaOfExactlyTheBudgetAndGivesEverythingBack) {
  std::vector<std::byte> host(8192);
  {
    auto device = Make();
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ((*device)->arena_bytes(), kMiB);
    EXPECT_THAT((*device)->description(), HasSubstr("Fake GPU"));
    size_t free_bytes, total;
    ASSERT_EQ(cuda_.MemGetInfo(&free_bytes, &total), 0);
    EXPECT_EQ(total - free_bytes, static_cast<size_t>(kMiB + kStateMath.scratch_bytes));
    EXPECT_TRUE((*device)->RegisterHost(host).ok());
    EXPECT_TRUE((*device)->AllocateResults(64).ok());
    EXPECT_TRUE((*device)->CreateStream().ok());
    EXPECT_TRUE((*device)->CreateEvent().ok());
  }
  EXPECT_EQ(cuda_.Complaints(/*with_leaks=*/true), "");
}

TEST_F(CudaDeviceTest, CopiesInStreamsAreOrderedByEvents) {
  std::vector<std::byte> host(8192);
  auto device = *Make();
  ASSERT_TRUE(device->RegisterHost(host).ok());
  Stream* up = *device->CreateStream();
  Stream* down = *device->CreateStream();
  const auto copied = *device->CreateEvent(), back = *device->CreateEvent();
  std::memset(host.data(), 7, 4096);
  ASSERT_TRUE(device->CopyToDevice(up, device->arena(), host.data(), 4096).ok());
  ASSERT_TRUE(device->Record(up, copied.get()).ok());
  ASSERT_TRUE(device->Wait(down, copied.get()).ok());
  ASSERT_TRUE(device->CopyToHost(down, host.data() + 4096, device->arena(), 4096).ok());
  ASSERT_TRUE(device->Record(down, back.get()).ok());
  ASSERT_TRUE(device->Synchronize(back.get()).ok());
  EXPECT_EQ(std::memcmp(host.data(), host.data() + 4096, 4096), 0);
  EXPECT_EQ(cuda_.Complaints(false), "");
  EXPECT_EQ(cuda_.pageable_copies(), 0);
}

TEST_F(CudaDeviceTest, CopiesWithoutAStreamAreDoneOnReturn) {
  auto device = *Make();
  std::vector<std::byte> in(4096, std::byte{5}), out(4096);
  ASSERT_TRUE(device->RegisterHost(in).ok());
  ASSERT_TRUE(device->CopyToDevice(nullptr, device->arena(), in.data(), 4096).ok());
  std::fill(in.begin(), in.end(), std::byte{0});
  ASSERT_TRUE(device->CopyToHost(nullptr, out.data(), device->arena(), 4096).ok());
  EXPECT_EQ(out[4095], std::byte{5});
}

TEST_F(CudaDeviceTest, EventsHaveTheTimeAtWhichTheDevicePassedThem) {
  auto device = *Make();
  Stream* stream = *device->CreateStream();
  const auto begin = *device->CreateEvent(), end = *device->CreateEvent();
  const int64_t before = Clock::Real().MonotonicNanos();
  ASSERT_TRUE(device->Record(stream, begin.get()).ok());
  cuda_.Spend(stream, 0.004);
  ASSERT_EQ(cuda_.MemsetAsync(device->arena(), 0, 4096, stream), 0);
  ASSERT_TRUE(device->Record(stream, end.get()).ok());
  const int64_t enqueued = Clock::Real().MonotonicNanos();
  ASSERT_TRUE(device->Synchronize(end.get()).ok());
  const int64_t after = Clock::Real().MonotonicNanos();
  const auto begun = device->PassedNanos(begin.get()), ended = device->PassedNanos(end.get());
  ASSERT_TRUE(begun.ok() && ended.ok()) << begun.status() << ended.status();
  // Half a millisecond: the anchor's time is read beside its recording.
  constexpr int64_t kSlack = 500'000;
  EXPECT_GE(*begun, before - kSlack);
  EXPECT_LE(*begun, enqueued + kSlack);
  EXPECT_GE(*ended - *begun, 4'000'000 - 1000);
  EXPECT_LE(*ended, after + kSlack);
}

// The runtime's float milliseconds lose microseconds after a minute: the anchor moves along, and nobody
// waits.
TEST_F(CudaDeviceTest, TimesStayExactForAsLongAsTheDeviceRuns) {
  auto device = *Make();
  Stream* stream = *device->CreateStream();
  const auto begin = *device->CreateEvent(), end = *device->CreateEvent();
  int64_t earlier = 0;
  for (int hours = 0; hours < 40; ++hours) {
    cuda_.SkipTime(3600);
    ASSERT_TRUE(device->Record(stream, begin.get()).ok());
    cuda_.SkipTime(1e-3);
    ASSERT_TRUE(device->Record(stream, end.get()).ok());
    ASSERT_TRUE(device->Synchronize(end.get()).ok());
    // The first looks put the anchor on its way and take it: what they return may be milliseconds off.
    for (int looks = 0; looks < 2; ++looks) ASSERT_TRUE(device->PassedNanos(end.get()).ok());
    const int64_t begun = *device->PassedNanos(begin.get()), ended = *device->PassedNanos(end.get());
    EXPECT_GE(ended - begun, 999'000);
    EXPECT_GT(begun, earlier);
    earlier = ended;
  }
  EXPECT_EQ(cuda_.Complaints(false), "");
}

TEST_F(CudaDeviceTest, TooLittleMemoryIsTypedWithNeedAndHave) {
  const auto first = Make(3 * kMiB);
  ASSERT_TRUE(first.ok());
  const absl::Status full = Make(2 * kMiB).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CauseIn(full), kCauseDeviceOom);
  EXPECT_THAT(full.message(),
              HasSubstr("needs 2101248 bytes (2.00 MiB), Fake GPU has 1044480 bytes (1020 KiB) free"));
  EXPECT_THAT(full.message(), HasSubstr("lower memory.device"));
  // The arena would fit, the scratch beside it does not.
  const absl::Status scratch = Make(1044480).status();
  EXPECT_EQ(CauseIn(scratch), kCauseDeviceOom);
  EXPECT_THAT(scratch.message(), HasSubstr("needs 1048576 bytes"));
  // Another process may take it between the look and the allocation.
  cuda_.FailCall(0, kCudaMemoryAllocation, "cudaMalloc");
  EXPECT_EQ(Make(kMiB / 2).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Make(kMiB / 2).ok());
  EXPECT_EQ(Make(1000).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaDeviceTest, MemoryThatCannotBeRegisteredIsCopiedAllTheSame) {
  auto device = *Make();
  std::vector<std::byte> host(4096, std::byte{3}), out(4096);
  cuda_.FailCall(0, kCudaMemoryAllocation, "cudaHostRegister");
  const absl::Status refused = device->RegisterHost(host);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("cudaHostRegister of 4096 bytes: out of memory"));
  Stream* stream = *device->CreateStream();
  ASSERT_TRUE(device->CopyToDevice(stream, device->arena(), host.data(), 4096).ok());
  ASSERT_TRUE(device->CopyToHost(stream, out.data(), device->arena(), 4096).ok());
  EXPECT_EQ(out[17], std::byte{3});
  EXPECT_EQ(cuda_.pageable_copies(), 2);
}

TEST_F(CudaDeviceTest, ABrokenContextIsNeverTouchedAgain) {
  auto device = *Make();
  Stream* stream = *device->CreateStream();
  const auto event = *device->CreateEvent();
  std::vector<std::byte> host(4096);
  ASSERT_TRUE(device->RegisterHost(host).ok());
  cuda_.FailWork(0, kCudaIllegalAddress);
  ASSERT_TRUE(device->CopyToDevice(stream, device->arena(), host.data(), 4096).ok());
  ASSERT_TRUE(device->Record(stream, event.get()).ok());
  const absl::Status broken = device->Synchronize(event.get());
  EXPECT_EQ(broken.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(CauseIn(broken), kCauseDeviceFault);
  EXPECT_THAT(broken.message(), HasSubstr("an illegal memory access was encountered (CUDA error 700)"));
  const int64_t calls = cuda_.calls();
  EXPECT_EQ(device->CopyToHost(stream, host.data(), device->arena(), 4096), broken);
  EXPECT_EQ(device->Record(stream, event.get()), broken);
  EXPECT_EQ(device->AllocateResults(8).status(), broken);
  EXPECT_EQ(device->RegisterHost(host), broken);
  EXPECT_EQ(device->CreateStream().status(), broken);
  device.reset();
  EXPECT_EQ(cuda_.calls(), calls);
}

TEST_F(CudaDeviceTest, EveryCallThatFailsIsReportedAndNothingLeaksWhenTheContextSurvives) {
  int64_t nth = 0;
  for (bool fired = true; fired; ++nth) {
    FakeCuda cuda({.memory_bytes = 4 * kMiB});
    cuda.FailCall(nth, kCudaMemoryAllocation);
    std::vector<std::byte> host(4096);
    absl::Status status;
    int64_t calls;
    {
      auto device = CreateCudaDevice(cuda, kMiB, kStateMath, NoCufile);
      status = device.status();
      if (status.ok()) status.Update((*device)->RegisterHost(host));
      if (status.ok()) status.Update((*device)->AllocateResults(64).status());
      if (status.ok()) status.Update((*device)->CreateStream().status());
      calls = cuda.calls();
    }
    fired = cuda.failed();
    // What fails while giving back has no one to tell.
    EXPECT_EQ(status.ok(), nth >= calls) << nth;
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsUnavailable(status)) << status;
      EXPECT_EQ(cuda.Complaints(true), "") << nth;
    }
  }
  EXPECT_GT(nth, 8);
}

TEST(CudaAcceleratorTest, SaysWhyThereIsNone) {
  FakeCuda none({.devices = 0});
  EXPECT_THAT(CreateCudaAccelerator(none, {}, NoCufile).status().message(),
              HasSubstr("no CUDA-capable device"));
  FakeCuda old;
  old.FailCall(0, kCudaInsufficientDriver);
  const absl::Status status = CreateCudaAccelerator(old, {}, NoCufile).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("CUDA error 35"));
  EXPECT_THAT(status.message(), HasSubstr("install the NVIDIA driver"));
  FakeCuda good;
  EXPECT_EQ((*CreateCudaAccelerator(good, {}, NoCufile))->description(), "Fake GPU");
  EXPECT_EQ((*CreateCudaAccelerator(good, {}, NoCufile))->identity(), "Fake GPU, driver 1.2.3");
}

TEST(CudaAcceleratorTest, GpuDirectIsLookedForWhenAskedFor) {
  FakeCuda cuda;
  FakeCufile cufile;
  int loads = 0;
  const auto accelerator = *CreateCudaAccelerator(cuda, {}, [&]() -> absl::StatusOr<CufileApi*> {
    if (++loads == 2) return NoCufile();
    return &cufile;
  });
  EXPECT_EQ(loads, 0);
  EXPECT_EQ(accelerator->gpudirect().value_or("?"), "nvidia-fs 2.19");
  EXPECT_EQ(accelerator->gpudirect().status().message(), "no cuFile here");
}

TEST(CudaAcceleratorTest, JobsGetWhatIsFreeLessWhatStandsBesideABudget) {
  FakeCuda cuda({.memory_bytes = 300 * kMiB});
  const auto accelerator = *CreateCudaAccelerator(cuda, {.states = kStateMath}, NoCufile);
  const int64_t beside = 256 * kMiB + kStateMath.scratch_bytes;
  EXPECT_EQ(*accelerator->FreeForJobs(), 300 * kMiB - beside);
  EXPECT_EQ(AutoDeviceBudget(1000), 900);
  // Somebody else's.
  void* taken = nullptr;
  ASSERT_EQ(cuda.Malloc(&taken, 20 * kMiB), 0);
  EXPECT_EQ(*accelerator->FreeForJobs(), 280 * kMiB - beside);
  ASSERT_EQ(cuda.Malloc(&taken, 30 * kMiB), 0);
  EXPECT_EQ(*accelerator->FreeForJobs(), 0);
  cuda.FailCall(0, kCudaIllegalAddress, "cudaMemGetInfo");
  EXPECT_THAT(accelerator->FreeForJobs().status().message(),
              HasSubstr("Fake GPU does not say how much memory is free: cudaMemGetInfo: "));
}

TEST(CudaAcceleratorTest, AnAcceleratorThatWasGivenBackMakesNothing) {
  FakeCuda cuda;
  const auto accelerator = *CreateCudaAccelerator(cuda, {.states = kStateMath}, NoCufile);
  EXPECT_TRUE(accelerator->CreateDevice(kMiB).ok());
  ASSERT_TRUE(accelerator->Release().ok());
  EXPECT_TRUE(accelerator->Release().ok());
  for (const absl::Status& status :
       {accelerator->CreateDevice(kMiB).status(), accelerator->CreateOps(DType::kF32).status(),
        accelerator->FreeForJobs().status()}) {
    EXPECT_EQ(status.message(), "Fake GPU was given back by this process");
  }
  EXPECT_EQ(cuda.Complaints(/*with_leaks=*/true), "");
}

}  // namespace
}  // namespace strata
