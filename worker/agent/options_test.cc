#include "worker/agent/options.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace strata {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::optional<AgentOptions>> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "strata_worker");
  return ParseAgentOptions(static_cast<int>(flags.size()), flags.data());
}

TEST(AgentOptionsTest, DefaultsFollowTheStateFolder) {
  auto options = Parse({"--server=host:1", "--state-dir=relative/../state/"});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_TRUE(ResolveAgentOptions(&**options).ok());
  const std::string here = fs::current_path().string();
  EXPECT_EQ((*options)->state_dir, here + "/state");
  EXPECT_EQ((*options)->nvme_paths, std::vector<std::string>{here + "/state/nvme"});
  EXPECT_EQ((*options)->checkpoint_root, here + "/state/checkpoints");
  EXPECT_EQ((*options)->device_bytes, 0);
  EXPECT_FALSE((*options)->worker_id.empty());
}

TEST(AgentOptionsTest, ReadsSizesAndTimes) {
  auto options = Parse({"--server=a", "--state-dir=b", "--device-bytes=48MiB", "--host-bytes", "1000",
                        "--nvme-bytes=auto", "--stop-grace=0.5", "--checkpoint-grace=600"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ((*options)->device_bytes, 48 << 20);
  EXPECT_EQ((*options)->host_bytes, 1000);
  EXPECT_EQ((*options)->nvme_bytes, 0);
  EXPECT_EQ((*options)->stop_grace, absl::Milliseconds(500));
  EXPECT_EQ((*options)->checkpoint_grace, absl::Minutes(10));
}

TEST(AgentOptionsTest, TakesSeveralNvmePathsAndTheirWeights) {
  auto options = Parse({"--server=a", "--state-dir=b", "--nvme-path=/mnt/a", "--nvme-path", "/mnt/b",
                        "--nvme-weight=2", "--nvme-weight=0.5"});
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_TRUE(ResolveAgentOptions(&**options).ok());
  EXPECT_EQ((*options)->nvme_paths, (std::vector<std::string>{"/mnt/a", "/mnt/b"}));
  EXPECT_EQ((*options)->nvme_weights, (std::vector<double>{2, 0.5}));
  const struct {
    std::vector<std::string> paths;
    std::vector<double> weights;
    const char* named;
  } cases[] = {{{"/a", "/b", "/a/"}, {}, "--nvme-path: /a is given twice"},
               {std::vector<std::string>(9, "/a"), {}, "--nvme-path: given 9 times"},
               {{"/a", "/b"}, {1}, "--nvme-weight: given 1 times for 2 paths"},
               {{"/a"}, {0}, "--nvme-weight: 0 is not"},
               {{"/a"}, {-1}, "--nvme-weight: -1 is not"},
               {{"/a"}, {1e-300}, "--nvme-weight: 1e-300 is not a number from 1e-6 to 1e6"},
               {{"/a"}, {1e300}, "--nvme-weight: 1e+300 is not"}};
  for (const auto& c : cases) {
    AgentOptions bad = **options;
    bad.nvme_paths = c.paths;
    bad.nvme_weights = c.weights;
    const absl::Status status = ResolveAgentOptions(&bad);
    EXPECT_TRUE(absl::StrContains(status.message(), c.named)) << status;
  }
}

TEST(AgentOptionsTest, ErrorsNameTheFlag) {
  const struct {
    std::vector<const char*> flags;
    const char* named;
  } cases[] = {
      {{"--state-dir=b"}, "--server"},
      {{"--server=a"}, "--state-dir"},
      {{"--server=a", "--state-dir=b", "--host-bytes=3 apples"}, "--host-bytes"},
      {{"--server=a", "--state-dir=b", "--stop-grace=-1"}, "--stop-grace"},
      {{"--server=a", "--state-dir=b", "--stop-grace=nan"}, "--stop-grace"},
      {{"--server=a", "--state-dir=b", "--unknown"}, "--unknown"},
  };
  for (const auto& c : cases) {
    const auto options = Parse(c.flags);
    ASSERT_FALSE(options.ok()) << c.named;
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(options.status().message(), c.named)) << options.status();
  }
}

TEST(AgentOptionsTest, WorkerIdMustBeAName) {
  AgentOptions options;
  options.server = "a";
  options.state_dir = "b";
  options.worker_id = "a/b";
  EXPECT_TRUE(absl::StrContains(ResolveAgentOptions(&options).message(), "--worker-id"));
}

TEST(AgentOptionsTest, CheckConfigMakesNothing) {
  const fs::path folder = fs::path(::testing::TempDir()) / "check_config";
  fs::remove_all(folder);
  AgentOptions options;
  options.server = "a";
  options.state_dir = (folder / "state").string();
  options.check_config = true;
  ASSERT_TRUE(ResolveAgentOptions(&options).ok());
  EXPECT_TRUE(PreparePaths(&options).ok());
  EXPECT_FALSE(fs::exists(folder));
}

TEST(AgentOptionsTest, FileWhereAFolderShouldBeIsNamed) {
  const fs::path file = fs::path(::testing::TempDir()) / "a_file";
  std::ofstream(file) << "x";
  for (const bool check : {true, false}) {
    for (const fs::path& path : {file, file / "below"}) {
      AgentOptions options;
      options.server = "a";
      options.state_dir = (fs::path(::testing::TempDir()) / "state").string();
      options.nvme_paths = {path.string()};
      options.check_config = check;
      ASSERT_TRUE(ResolveAgentOptions(&options).ok());
      const absl::Status status = PreparePaths(&options);
      EXPECT_TRUE(absl::StrContains(status.message(), "--nvme-path")) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), file.string())) << status;
    }
  }
}

TEST(AgentOptionsTest, MissingTrainerIsNamed) {
  AgentOptions options;
  options.server = "a";
  options.state_dir = (fs::path(::testing::TempDir()) / "state").string();
  options.trainer = "/does/not/exist";
  ASSERT_TRUE(ResolveAgentOptions(&options).ok());
  EXPECT_TRUE(absl::StrContains(PreparePaths(&options).message(), "--trainer"));
}

}  // namespace
}  // namespace strata
