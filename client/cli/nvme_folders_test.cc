#include "client/cli/nvme_folders.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace strata {
namespace {

// A new folder of this name for a test.
std::string Scratch(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/nvme_folders_" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

bool Exists(const std::string& path) { return std::filesystem::exists(path); }

TEST(NvmeFoldersTest, MakesWhatIsMissingAndRemovesThat) {
  const std::string scratch = Scratch("new");
  const std::string there = scratch + "/there", path = there + "/a/b";
  ASSERT_EQ(mkdir(there.c_str(), 0700), 0);
  NvmeFolders folders;
  folders.Make(path);
  EXPECT_TRUE(Exists(path));
  folders.RemoveEmpty();
  EXPECT_FALSE(Exists(there + "/a"));
  EXPECT_TRUE(Exists(there));
  folders.RemoveEmpty();
}

TEST(NvmeFoldersTest, WhatHoldsSomethingStays) {
  const std::string scratch = Scratch("holds");
  NvmeFolders folders;
  folders.Make(scratch + "/a/b");
  std::ofstream(scratch + "/a/file") << "mine";
  folders.RemoveEmpty();
  EXPECT_TRUE(Exists(scratch + "/a/file"));
  EXPECT_FALSE(Exists(scratch + "/a/b"));
}

TEST(NvmeFoldersTest, AFolderThatCannotBeMadeIsLeftToTheStore) {
  const std::string scratch = Scratch("blocked");
  std::ofstream(scratch + "/file") << "no folder";
  NvmeFolders folders;
  folders.Make(scratch + "/file/below");
  folders.RemoveEmpty();
  EXPECT_TRUE(Exists(scratch + "/file"));
}

// A store opens its path at some time between Make and RemoveEmpty: it must be there for as long, however
// many processes make and remove it beside.
TEST(NvmeFoldersTest, ProcessesThatShareAFolderDoNotTakeItFromEachOther) {
  const std::string scratch = Scratch("shared");
  const std::string path = scratch + "/shared/nvme";
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      int lost = 0;
      for (int round = 0; round < 500; ++round) {
        NvmeFolders folders;
        folders.Make(path);
        lost += !StoreFolder::Lock(path, "store-" + std::to_string(getpid())).ok();
        folders.RemoveEmpty();
      }
      _exit(lost == 0 ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "a path was gone between Make and RemoveEmpty";
  }
}

}  // namespace
}  // namespace strata
