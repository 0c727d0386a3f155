#include "offload/io/path_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/io/path_speed.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/path_probe_" + name;
  EXPECT_TRUE(RemoveTree(path).ok());
  EXPECT_TRUE(MakeDirectories(path).ok());
  return path;
}

TEST(ProbePath, FindsWhatAFolderCanDoAndLeavesNothing) {
  const std::string path = Folder("good");
  auto info = ProbePath(path);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->path, path);
  EXPECT_TRUE(info->writable);
  EXPECT_GT(info->free_bytes, 0);
  EXPECT_GE(info->total_bytes, info->free_bytes);
  EXPECT_FALSE(info->fs_type.empty());
  EXPECT_EQ(info->o_direct, info->o_direct_why_not.empty());
  EXPECT_EQ(info->o_direct, info->block_alignment >= 512);
  EXPECT_TRUE(std::filesystem::is_empty(path));
  printf("%s: O_DIRECT %d (alignment %u) O_TMPFILE %d\n", info->fs_type.c_str(), info->o_direct,
         info->block_alignment, info->o_tmpfile);
}

TEST(ProbePath, MissingFolderIsNotFoundWithARemedy) {
  const std::string path = Folder("missing") + "/nothing";
  const absl::Status status = ProbePath(path).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(path));
  EXPECT_THAT(status.message(), HasSubstr("create the folder"));
}

TEST(ProbePath, AFileIsNoFolder) {
  const std::string path = Folder("file") + "/file";
  ASSERT_TRUE(OpenFile(path, O_CREAT | O_RDWR).ok());
  const absl::Status status = ProbePath(path).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("is not a folder"));
}

TEST(ProbePath, UnwritableFolderIsPermissionDeniedWithARemedy) {
  std::string path = Folder("unwritable");
  ASSERT_EQ(chmod(path.c_str(), 0500), 0);
  if (access(path.c_str(), W_OK) == 0) path = "/proc";  // Root may write anywhere but here.
  const absl::Status status = ProbePath(path).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(path));
  EXPECT_THAT(status.message(), HasSubstr("choose another folder"));
}

TEST(MeasurePathSpeed, MeasuresBothDirectionsAndLeavesNothing) {
  const std::string path = Folder("speed");
  const auto speed = MeasurePathSpeed(path, uint64_t{3} << 20);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->read_bytes_per_second, 0);
  EXPECT_GT(speed->write_bytes_per_second, 0);
  EXPECT_LT(speed->RoundTripBytesPerSecond(),
            std::min(speed->read_bytes_per_second, speed->write_bytes_per_second));
  EXPECT_TRUE(std::filesystem::is_empty(path));
  EXPECT_TRUE(absl::IsNotFound(MeasurePathSpeed(path + "/missing").status()));
}

}  // namespace
}  // namespace strata
