#include "offload/device/direct_storage.h"

#include <fcntl.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/device/fake_cuda.h"
#include "offload/device/fake_cufile.h"
#include "offload/exec/cause.h"
#include "offload/io/transfer_queue.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr size_t kArenaBytes = 64 << 10;

class DirectStorageTest : public ::testing::Test {
 protected:
  DirectStorageTest() : path_(::testing::TempDir() + "/direct_storage") {
    void* memory = nullptr;
    EXPECT_EQ(cuda_.Malloc(&memory, kArenaBytes), kCudaSuccess);
    arena_ = {static_cast<std::byte*>(memory), kArenaBytes};
    Fd fd(open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600));
    EXPECT_GE(fd.get(), 0);
    file_ = std::make_unique<IoFile>(std::move(fd), path_, /*direct=*/false, 4096);
  }
  ~DirectStorageTest() override {
    EXPECT_EQ(cuda_.Free(arena_.data()), kCudaSuccess);
    EXPECT_EQ(cuda_.Complaints(/*with_leaks=*/true), "");
  }

  // From the arena to the file and back, to another place: the first error.
  absl::Status RoundTrip() {
    STRATA_ASSIGN_OR_RETURN(const auto storage, OpenDirectStorage(cufile_, cuda_, arena_));
    STRATA_ASSIGN_OR_RETURN(const auto engine, storage->CreateEngine());
    STRATA_RETURN_IF_ERROR(engine->RegisterFile(*file_));
    for (size_t i = 0; i < 16384; ++i) arena_[i] = static_cast<std::byte>(i * 7 + i / 256);
    STRATA_RETURN_IF_ERROR(WriteExact(*engine, *file_, 8192, arena_.first(16384), 4096));
    return ReadExact(*engine, *file_, 8192, arena_.subspan(32768, 16384), 4096);
  }

  const std::string path_;
  FakeCuda cuda_;
  FakeCufile cufile_;
  std::span<std::byte> arena_;
  std::unique_ptr<IoFile> file_;
};

TEST_F(DirectStorageTest, BytesGoBetweenTheArenaAndFilesInWholeWhateverTheLibraryMovesAtOnce) {
  for (const size_t most : {SIZE_MAX, size_t{1000}}) {
    cufile_.most_at_once = most;
    std::memset(arena_.data(), 0, arena_.size());
    ASSERT_EQ(RoundTrip(), absl::OkStatus());
    EXPECT_EQ(std::memcmp(arena_.data(), arena_.data() + 32768, 16384), 0);
    EXPECT_EQ(cufile_.Complaints(), "");
  }
  EXPECT_EQ(cufile_.reads(), 4 + 4 * 5);
  EXPECT_EQ(cufile_.writes(), 4 + 4 * 5);
}

// The Nth call fails, for N = 0, 1, ... until nothing does.
TEST_F(DirectStorageTest, EachCallThatFailsIsAnErrorThatNamesItAndNothingStaysOpen) {
  int opening = 0, transfers = 0;
  for (const int code : {cufile::kIoError, cufile::kCudaDriverError, -1}) {
    for (int nth = 0;; ++nth) {
      cufile_.fail_call = cufile_.calls() + nth;
      cufile_.error = {code, 0};
      const absl::Status status = RoundTrip();
      EXPECT_EQ(cufile_.Complaints(), "") << nth;
      if (status.ok()) {
        // The driver's last call, or none.
        if (cufile_.calls() <= cufile_.fail_call) break;
        continue;
      }
      const std::string message(status.message());
      const std::string cause(status.GetPayload(kCausePayload).value_or(absl::Cord()));
      if (status.code() == absl::StatusCode::kFailedPrecondition) {
        ++opening;
        EXPECT_EQ(cause, kCauseUser);
        EXPECT_THAT(message, AllOf(HasSubstr(absl::StrCat("cuFile error ", code)),
                                   HasSubstr("take gpudirect out of memory.require")));
        continue;
      }
      ++transfers;
      EXPECT_THAT(message, HasSubstr(absl::StrCat("4096 bytes at offset ")));
      EXPECT_THAT(message, HasSubstr(path_));
      EXPECT_EQ(cause, code == cufile::kCudaDriverError ? kCauseDeviceFault : kCauseNvmeIo);
      if (code == -1) {
        EXPECT_THAT(message, HasSubstr("errno 5"));
      } else {
        EXPECT_THAT(message, HasSubstr(absl::StrCat(": cuFile error ", code)));
      }
    }
  }
  EXPECT_EQ(opening, 3 * 3);  // the driver, the arena, the file
  EXPECT_EQ(transfers, 3 * 8);
}

TEST_F(DirectStorageTest, EnginesShareTheRegistrationOfAFile) {
  const auto storage = *OpenDirectStorage(cufile_, cuda_, arena_);
  auto first = *storage->CreateEngine();
  const auto second = *storage->CreateEngine();
  ASSERT_TRUE(first->RegisterFile(*file_).ok());
  ASSERT_TRUE(first->RegisterFile(*file_).ok());
  ASSERT_TRUE(second->RegisterFile(*file_).ok());
  first.reset();
  EXPECT_TRUE(WriteExact(*second, *file_, 0, arena_.first(4096)).ok());
  EXPECT_EQ(second->report().backend, "cufile");
  EXPECT_EQ(second->report().registered_files, 1u);
}

TEST_F(DirectStorageTest, OtherFilesAndOtherMemoryAreRefused) {
  const auto storage = *OpenDirectStorage(cufile_, cuda_, arena_);
  const auto engine = *storage->CreateEngine();
  std::vector<std::byte> host(4096);
  EXPECT_EQ(WriteExact(*engine, *file_, 0, arena_.first(4096)).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(engine->RegisterFile(*file_).ok());
  EXPECT_EQ(WriteExact(*engine, *file_, 0, host).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(WriteExact(*engine, *file_, 0, arena_.first(4096)).ok());
  EXPECT_EQ(engine->RegisterBuffer(host).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(engine->RegisterBuffer(arena_).ok());
  EXPECT_EQ(cufile_.writes(), 1);
}

}  // namespace
}  // namespace strata
