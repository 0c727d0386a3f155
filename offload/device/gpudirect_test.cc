#include "offload/device/gpudirect.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/device/cufile_library.h"
#include "offload/device/fake_cufile.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string WhyNot(FakeCufile& fake) {
  const auto way = CheckGpuDirect(fake);
  EXPECT_EQ(way.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(fake.Complaints(), "");
  return std::string(way.status().message());
}

TEST(GpuDirectTest, AMachineThatHasItSaysWhatCarriesIt) {
  FakeCufile fake;
  EXPECT_EQ(CheckGpuDirect(fake).value_or("?"), "nvidia-fs 2.19");
  EXPECT_EQ(fake.Complaints(), "");
  fake.properties = {.features = 1u << cufile::kP2pSupported};
  EXPECT_EQ(CheckGpuDirect(fake).value_or("?"), "the kernel's peer-to-peer DMA");
}

TEST(GpuDirectTest, WhatIsMissingHasARemedy) {
  FakeCufile fake;
  fake.properties.status = 0;
  EXPECT_THAT(WhyNot(fake),
              AllOf(HasSubstr("nvidia-fs 2.19 has no support for NVMe"), HasSubstr("gdscheck -p shows")));
  // The library's compatibility mode: it answers, and goes through host memory.
  fake.properties.nvfs_major = fake.properties.nvfs_minor = 0;
  EXPECT_THAT(WhyNot(fake), HasSubstr("nvidia-fs is not loaded: modprobe nvidia-fs"));
}

TEST(GpuDirectTest, EachCallThatFailsIsNamedWithItsNumberAndNothingStaysOpen) {
  std::vector<std::string> calls;
  for (int nth = 0;; ++nth) {
    FakeCufile fake;
    fake.fail_call = nth;
    if (CheckGpuDirect(fake).ok()) {
      EXPECT_LE(fake.calls(), nth);
      break;
    }
    fake.fail_call += fake.calls();
    const std::string said = WhyNot(fake);
    EXPECT_THAT(said, HasSubstr("cuFile error 5010, nvidia-fs is not loaded, or does not answer; gdscheck"));
    calls.push_back(said.substr(0, said.find(':')));
  }
  EXPECT_THAT(calls, ElementsAre("cuFileDriverOpen", "cuFileDriverGetProperties", "cuFileDriverClose"));
}

TEST(GpuDirectTest, CodesAreExplained) {
  const auto said = [](int code) { return CufileErrorText("cuFileRead", {code, 100}); };
  EXPECT_EQ(said(cufile::kCudaDriverError),
            "cuFileRead: cuFile error 5011, the CUDA driver failed with CUDA error 100");
  EXPECT_THAT(said(cufile::kVersionMismatch), HasSubstr("5004, the library and nvidia-fs"));
  EXPECT_THAT(said(cufile::kPlatformNotSupported), HasSubstr("5007, the platform"));
  EXPECT_THAT(said(cufile::kFileNotSupported), HasSubstr("5008, the file system"));
  EXPECT_THAT(said(cufile::kDeviceNotSupported), HasSubstr("5009, the GPU"));
  EXPECT_THAT(said(cufile::kNotDirect), HasSubstr("5020, the file is not open for O_DIRECT"));
  EXPECT_THAT(said(cufile::kPermissionDenied), HasSubstr("5025, permission denied"));
  EXPECT_THAT(said(cufile::kPinningFailed), HasSubstr("5036, the GPU's memory cannot be mapped"));
  EXPECT_THAT(said(cufile::kIoError), HasSubstr("5044, the drive"));
  EXPECT_THAT(said(5099), HasSubstr("5099, see cufile.h"));
}

TEST(LoadCufileTest, AMissingLibraryIsNamedWithTheRemedy) {
  const absl::Status missing = LoadCufile("libnot_cufile.so.0").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(missing.message(), HasSubstr("install GPUDirect Storage (nvidia-gds)"));
  EXPECT_THAT(LoadCufile("libm.so.6").status().message(), HasSubstr("has no cuFileDriverOpen"));
}

}  // namespace
}  // namespace strata
