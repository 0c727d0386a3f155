#include "offload/device/cuda_plugin.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/device/cuda_plugin_abi.h"

namespace strata {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CudaPluginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(::testing::TempDir()) / ("plugin_" + std::to_string(getpid()) + "_" +
                                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::remove_all(folder_);
    unsetenv("STRATA_FAKE_CUDA");
  }
  // The fake plugin, with something wrong.
  absl::StatusOr<std::unique_ptr<Accelerator>> Open(const char* wrong) {
    fs::copy_file("offload/device/libfake_cuda_plugin.so", folder_ / kCudaPluginFile,
                  fs::copy_options::overwrite_existing);
    setenv("STRATA_FAKE_CUDA", wrong, 1);
    return OpenCudaPlugin(folder_.string());
  }
  absl::StatusOr<std::unique_ptr<Accelerator>> OpenFile(const std::string& content) {
    std::ofstream(folder_ / kCudaPluginFile) << content;
    return OpenCudaPlugin(folder_.string());
  }
  void ExpectNoGpu(const absl::StatusOr<std::unique_ptr<Accelerator>>& opened, const std::string& why) {
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition) << opened.status();
    EXPECT_THAT(opened.status().message(), HasSubstr("no GPU: "));
    EXPECT_THAT(opened.status().message(), HasSubstr(why));
    EXPECT_THAT(opened.status().message(), Not(HasSubstr("\n")));
  }

  fs::path folder_;
};

TEST_F(CudaPluginTest, AMissingLibraryIsNamed) {
  ExpectNoGpu(OpenCudaPlugin(folder_.string()), (folder_ / kCudaPluginFile).string() + " is not there");
}

TEST_F(CudaPluginTest, AFileThatIsNoLibraryDoesNotLoad) {
  ExpectNoGpu(OpenFile("not an ELF file"), "does not load");
}

TEST_F(CudaPluginTest, ALibraryWithoutTheSymbolIsNotOurs) {
  fs::copy_file("offload/device/libnot_a_plugin.so", folder_ / kCudaPluginFile);
  ExpectNoGpu(OpenCudaPlugin(folder_.string()), "has no symbol strata_cuda_plugin");
}

TEST_F(CudaPluginTest, WhatIsNoFileIsNotOpened) {
  ASSERT_EQ(mkfifo((folder_ / kCudaPluginFile).c_str(), 0600), 0);
  ExpectNoGpu(OpenCudaPlugin(folder_.string()), "is not a file");
}

TEST_F(CudaPluginTest, ASymbolThatGivesNothingIsNotOurs) { ExpectNoGpu(Open("null"), "gives no table"); }

TEST_F(CudaPluginTest, AnotherAbiIsRefused) {
  ExpectNoGpu(Open("abi"), absl::StrCat("is of another build: ABI ", kCudaPluginAbi + 1));
}

TEST_F(CudaPluginTest, WithoutADriverTheReasonIsTheRuntimes) {
  ExpectNoGpu(Open("driver"), "no CUDA-capable device is detected");
}

TEST_F(CudaPluginTest, AMissingLibraryOfThePluginIsNamed) {
  ExpectNoGpu(Open("kernels"), "libcublasLt.so.13 is not there");
}

TEST_F(CudaPluginTest, AGoodOneHasADeviceAndItsMath) {
  const auto opened = Open("");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ((*opened)->description(), "Fake GPU");
  const auto device = (*opened)->CreateDevice(1 << 20);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->arena_bytes(), 1 << 20);
  const auto ops = (*opened)->CreateOps(DType::kF32);
  ASSERT_TRUE(ops.ok()) << ops.status();
  EXPECT_EQ((*ops)->compute_dtype(), DType::kF32);
}

TEST_F(CudaPluginTest, ChoicesAreToldToTheProgramsLog) {
  static std::vector<std::string> lines;
  lines.clear();
  fs::copy_file("offload/device/libfake_cuda_plugin.so", folder_ / kCudaPluginFile);
  const auto opened =
      OpenCudaPlugin(folder_.string(), [](const std::string& line) { lines.push_back(line); });
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE((*opened)->CreateOps(DType::kF32).ok());
  EXPECT_THAT(lines, ::testing::ElementsAre("the CPU's math in every shape"));
}

TEST(ProgramFolderTest, IsWhereThisTestIs) {
  EXPECT_TRUE(fs::exists(fs::path(ProgramFolder()) / "cuda_plugin_test"));
}

}  // namespace
}  // namespace strata
