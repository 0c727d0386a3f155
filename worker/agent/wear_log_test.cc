#include "worker/agent/wear_log.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace strata {
namespace {

class WearLogTest : public ::testing::Test {
 protected:
  WearLogTest() : file_(::testing::TempDir() + "/wear") { std::filesystem::remove(file_); }
  const std::string file_;
};

TEST_F(WearLogTest, AddsUpOverLivesOfTheAgent) {
  for (int64_t life = 1; life <= 3; ++life) {
    auto log = WearLog::Open(file_);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_EQ((*log)->Written("/mnt/with space\n"), (life - 1) * 100);
    (*log)->Add("/mnt/with space\n", 60);
    (*log)->Add("/mnt/with space\n", 40);
    (*log)->Add("/b", life);
    ASSERT_TRUE((*log)->Save().ok());
    (*log)->Add("/b", 1000);  // Never saved.
    EXPECT_EQ((*log)->Written("/b"), life * (life + 1) / 2 + 1000);
  }
  EXPECT_EQ((*WearLog::Open(file_))->Written("/b"), 6);
  EXPECT_EQ((*WearLog::Open(file_))->Written("/never"), 0);
}

TEST_F(WearLogTest, NothingNewIsNotWritten) {
  auto log = WearLog::Open(file_);
  ASSERT_TRUE((*log)->Save().ok());
  EXPECT_FALSE(std::filesystem::exists(file_));
}

TEST_F(WearLogTest, AFileThatIsNoneIsAnErrorNotAReset) {
  for (const char* text : {"nonsense\n", "12\n", "-5 /a\n", "5 \n"}) {
    std::ofstream(file_) << text;
    EXPECT_EQ(WearLog::Open(file_).status().code(), absl::StatusCode::kDataLoss) << text;
  }
}

}  // namespace
}  // namespace strata
