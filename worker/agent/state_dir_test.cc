#include "worker/agent/state_dir.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace strata {
namespace {

namespace fs = std::filesystem;

class StateDirTest : public ::testing::Test {
 protected:
  StateDirTest()
      : path_(
            (fs::path(::testing::TempDir()) / ::testing::UnitTest::GetInstance()->current_test_info()->name())
                .string()) {
    fs::remove_all(path_);
  }
  const std::string path_;
};

TaskRecord MakeRecord() {
  TaskRecord record;
  record.key = {"job-1_a", 3, 1};
  record.scratch = {"/nvme/with space\nand newline", "/second"};
  record.process = {4711, 123456789012};
  record.boot_id = "b-o-o-t";
  record.memory_kills = MemoryKills{"/sys/fs/cgroup/a b", 3};
  record.report = std::string("\x00\xff\n binary", 10);
  return record;
}

TEST_F(StateDirTest, IncarnationGrowsWithEveryOpen) {
  int64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    auto state = StateDir::Open(path_, 0);
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_GT((*state)->incarnation(), last);
    last = (*state)->incarnation();
  }
  // A lost folder: the clock keeps it growing. A clock that went back does not stop it.
  auto later = StateDir::Open(path_, 1000);
  EXPECT_EQ((*later)->incarnation(), 1000);
  later->reset();
  EXPECT_EQ((*StateDir::Open(path_, 5))->incarnation(), 1001);
}

TEST_F(StateDirTest, SecondOpenIsRefusedWhileTheFirstLives) {
  auto first = StateDir::Open(path_, 0);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(StateDir::Open(path_, 0).status().code(), absl::StatusCode::kFailedPrecondition);
  first->reset();
  EXPECT_TRUE(StateDir::Open(path_, 0).ok());
}

TEST_F(StateDirTest, BrokenIncarnationIsAnErrorNotAReset) {
  ASSERT_TRUE(StateDir::Open(path_, 0).ok());
  std::ofstream(path_ + "/incarnation") << "12x";
  EXPECT_EQ(StateDir::Open(path_, 0).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(StateDirTest, IdentityStaysWithTheFolderAndACopyGetsItsOwn) {
  std::string first;
  {
    auto state = StateDir::Open(path_, 0);
    ASSERT_TRUE(state.ok()) << state.status();
    first = (*state)->identity();
    EXPECT_EQ(first.size(), 32u);
    EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos) << first;
    ASSERT_TRUE((*state)->Write(MakeRecord()).ok());
  }
  EXPECT_EQ((*StateDir::Open(path_, 0))->identity(), first);

  const std::string copy = path_ + ".copy";
  fs::remove_all(copy);
  fs::copy(path_, copy, fs::copy_options::recursive);
  const std::string copied = (*StateDir::Open(copy, 0))->identity();
  EXPECT_NE(copied, first);
  EXPECT_EQ((*StateDir::Open(copy, 0))->identity(), copied);
  std::vector<std::string> unreadable;
  EXPECT_TRUE((*StateDir::Open(copy, 0))->ReadAll(&unreadable)->empty()) << "its tasks are the first agent's";
  EXPECT_EQ((*StateDir::Open(path_, 0))->ReadAll(&unreadable)->size(), 1u);
  EXPECT_EQ((*StateDir::Open(path_, 0))->identity(), first);

  fs::remove_all(path_);
  EXPECT_NE((*StateDir::Open(path_, 0))->identity(), first) << "the folder was lost";
}

TEST_F(StateDirTest, AnIdentityOfAnotherMachineIsNotTaken) {
  const std::string file = path_ + "/identity";
  const std::string first = (*StateDir::Open(path_, 0))->identity();
  std::ifstream in(file);
  std::string key, inode;
  in >> key >> inode;
  ASSERT_EQ(key, first);
  std::ofstream(file) << key << " " << inode << " 0123456789abcdef0123456789abcdef\n";
  EXPECT_NE((*StateDir::Open(path_, 0))->identity(), first);
}

TEST_F(StateDirTest, BrokenIdentityIsAnErrorThatSaysWhatToDo) {
  ASSERT_TRUE(StateDir::Open(path_, 0).ok());
  for (const std::string text : {"", "12", "no identity at all", "0123456789abcdef0123456789abcdeg 1 -"}) {
    std::ofstream(path_ + "/identity") << text;
    const absl::Status status = StateDir::Open(path_, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_NE(status.message().find(path_ + "/identity"), std::string::npos) << status;
    EXPECT_NE(status.message().find("remove it"), std::string::npos) << status;
  }
}

TEST_F(StateDirTest, RecordsComeBackAsTheyWere) {
  auto state = StateDir::Open(path_, 0);
  ASSERT_TRUE(state.ok());
  const TaskRecord record = MakeRecord();
  ASSERT_TRUE((*state)->Write(record).ok());
  std::vector<std::string> unreadable;
  auto records = (*state)->ReadAll(&unreadable);
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->size(), 1u);
  EXPECT_TRUE(unreadable.empty());
  EXPECT_EQ((*records)[0].key, record.key);
  EXPECT_EQ((*records)[0].scratch, record.scratch);
  EXPECT_EQ((*records)[0].process.pid, record.process.pid);
  EXPECT_EQ((*records)[0].process.start_ticks, record.process.start_ticks);
  EXPECT_EQ((*records)[0].boot_id, record.boot_id);
  ASSERT_TRUE((*records)[0].memory_kills.has_value());
  EXPECT_EQ((*records)[0].memory_kills->group, record.memory_kills->group);
  EXPECT_EQ((*records)[0].memory_kills->count, 3);
  EXPECT_EQ((*records)[0].report, record.report);
  ASSERT_TRUE((*state)->Remove(record.key).ok());
  ASSERT_TRUE((*state)->Remove(record.key).ok());
  EXPECT_TRUE((*state)->ReadAll(&unreadable)->empty());
}

TEST_F(StateDirTest, FilesThatAreNoRecordsAreNamedOnceAndUnfinishedWritesIgnored) {
  auto state = StateDir::Open(path_, 0);
  ASSERT_TRUE(state.ok());
  std::ofstream(path_ + "/tasks/job.1.0") << "nonsense";
  std::ofstream(path_ + "/tasks/job.2.0.tmp") << "cut off";
  std::vector<std::string> unreadable;
  EXPECT_TRUE((*state)->ReadAll(&unreadable)->empty());
  EXPECT_EQ(unreadable.size(), 1u);
  EXPECT_TRUE(fs::is_empty(path_ + "/tasks"));
}

TEST(TaskRecordTest, NoCutOfARecordIsTakenForAnother) {
  const std::string text = FormatTaskRecord(MakeRecord());
  for (size_t size = 0; size + 1 < text.size(); ++size) {
    const auto record = ParseTaskRecord(text.substr(0, size));
    // Only a cut inside the last value, the report, can pass the parser; atomic writes exclude it on disk.
    if (record.ok()) {
      EXPECT_EQ(record->process.pid, 4711) << size;
    }
  }
  EXPECT_FALSE(ParseTaskRecord("").ok());
}

TEST(TaskRecordTest, ScratchMustBeAbsolute) {
  TaskRecord record = MakeRecord();
  record.scratch = {"/absolute", "relative"};
  EXPECT_FALSE(ParseTaskRecord(FormatTaskRecord(record)).ok());
}

TEST(IsValidJobUidTest, AllowsNothingThatLeavesAFolder) {
  EXPECT_TRUE(IsValidJobUid("3f2c-AB_9"));
  for (const char* bad : {"", ".", "..", "a/b", "a.b", "a b", "a\n"}) EXPECT_FALSE(IsValidJobUid(bad)) << bad;
  EXPECT_FALSE(IsValidJobUid(std::string(65, 'a')));
}

}  // namespace
}  // namespace strata
