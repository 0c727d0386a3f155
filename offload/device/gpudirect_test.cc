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

TEST(GpuDirectTest, AMachineThatHasItSaysWhatCouldCarryIt) {
  FakeCufile fake;
  EXPECT_EQ(DescribeGpuDirect(fake), "nvidia-fs 2.19 could carry it");
  EXPECT_EQ(fake.open, 0);
  fake.properties = {.features = 1u << cufile::kP2pSupported};
  EXPECT_EQ(DescribeGpuDirect(fake), "the kernel's peer-to-peer DMA could carry it");
}

TEST(GpuDirectTest, WhatIsMissingHasARemedy) {
  FakeCufile fake;
  fake.properties.status = 0;
  EXPECT_THAT(DescribeGpuDirect(fake),
              AllOf(HasSubstr("nvidia-fs 2.19 has no support for NVMe"), HasSubstr("gdscheck -p shows")));
  // The library's compatibility mode: it answers, and goes through host memory.
  fake.properties.nvfs_major = fake.properties.nvfs_minor = 0;
  EXPECT_THAT(DescribeGpuDirect(fake), HasSubstr("nvidia-fs is not loaded: modprobe nvidia-fs"));
  EXPECT_EQ(fake.open, 0);
}

TEST(GpuDirectTest, EachCallThatFailsIsNamedWithItsNumberAndNothingStaysOpen) {
  std::vector<std::string> calls;
  for (int nth = 0;; ++nth) {
    FakeCufile fake;
    fake.fail_call = nth;
    const std::string said = DescribeGpuDirect(fake);
    EXPECT_EQ(fake.open, 0) << nth;
    if (fake.calls <= nth) break;
    EXPECT_THAT(said, HasSubstr("cuFile error 5010, nvidia-fs is not loaded, or does not answer; gdscheck"));
    calls.push_back(said.substr(0, said.find(':')));
  }
  EXPECT_THAT(calls, ElementsAre("cuFileDriverOpen", "cuFileDriverGetProperties", "cuFileDriverClose"));
}

TEST(GpuDirectTest, CodesAreExplained) {
  FakeCufile fake;
  fake.fail_call = 0;
  const auto said = [&](int code) {
    fake.calls = 0;
    fake.error = {code, 100};
    return DescribeGpuDirect(fake);
  };
  EXPECT_THAT(said(cufile::kCudaDriverError), HasSubstr("5011, the CUDA driver failed with CUDA error 100"));
  EXPECT_THAT(said(cufile::kVersionMismatch), HasSubstr("5004, the library and nvidia-fs"));
  EXPECT_THAT(said(cufile::kPlatformNotSupported), HasSubstr("5007, the platform"));
  EXPECT_THAT(said(cufile::kDeviceNotSupported), HasSubstr("5009, the GPU"));
  EXPECT_THAT(said(cufile::kPermissionDenied), HasSubstr("5025, permission denied"));
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
