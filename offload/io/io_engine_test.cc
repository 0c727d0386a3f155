// One suite for every engine, then what only io_uring and only the faulty engine do.
#include "offload/io/io_engine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/io/faulty_io_engine.h"
#include "offload/io/io_factory.h"
#include "offload/io/io_uring_engine.h"
#include "offload/io/thread_io_engine.h"
#include "offload/io/transfer_queue.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBlock = 4096;

struct FreeDeleter {
  void operator()(std::byte* data) const { free(data); }
};

// Page-aligned memory.
class Memory {
 public:
  explicit Memory(size_t size) : size_(size), data_(static_cast<std::byte*>(aligned_alloc(kBlock, size))) {
    memset(data_.get(), 0, size);
  }
  std::span<std::byte> span() { return {data_.get(), size_}; }
  std::byte* data() { return data_.get(); }
  void FillRandom(uint64_t seed) {
    const CounterRandom random(seed, 1);
    for (size_t i = 0; i < size_ / 8; ++i) {
      const uint64_t bits = random.Bits(i);
      memcpy(data_.get() + 8 * i, &bits, 8);
    }
  }
  bool operator==(const Memory& other) const {
    return size_ == other.size_ && memcmp(data_.get(), other.data_.get(), size_) == 0;
  }

 private:
  const size_t size_;
  const std::unique_ptr<std::byte, FreeDeleter> data_;
};

std::unique_ptr<IoFile> MakeFile(bool direct) {
  const std::string path = ::testing::TempDir() + "/io_engine_test_file";
  auto fd = OpenFile(path, O_RDWR | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0));
  if (!fd.ok()) return nullptr;  // Only for want of O_DIRECT.
  EXPECT_EQ(unlink(path.c_str()), 0);
  return std::make_unique<IoFile>(std::move(*fd), path, direct, kBlock);
}

struct Backend {
  const char* name;
  absl::StatusOr<std::unique_ptr<IoEngine>> (*create)(unsigned depth);
};

absl::StatusOr<std::unique_ptr<IoEngine>> Ring(unsigned depth) {
  return CreateIoUringEngine({.depth = depth});
}

class IoEngineTest : public ::testing::TestWithParam<std::tuple<Backend, bool>> {
 protected:
  void SetUp() override {
    auto engine = std::get<0>(GetParam()).create(4);
    if (absl::IsUnimplemented(engine.status()) || absl::IsPermissionDenied(engine.status())) {
      GTEST_SKIP() << engine.status();
    }
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = std::move(*engine);
    file_ = MakeFile(std::get<1>(GetParam()));
    if (file_ == nullptr) GTEST_SKIP() << "no O_DIRECT on " << ::testing::TempDir();
  }

  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<IoFile> file_;
};

TEST_P(IoEngineTest, BytesWrittenInPiecesComeBack) {
  Memory out(37 * kBlock), in(37 * kBlock);
  out.FillRandom(1);
  ASSERT_TRUE(WriteExact(*engine_, *file_, 3 * kBlock, out.span(), 2 * kBlock).ok());
  ASSERT_TRUE(ReadExact(*engine_, *file_, 3 * kBlock, in.span(), 5 * kBlock).ok());
  EXPECT_TRUE(in == out);
  EXPECT_EQ(engine_->outstanding(), 0);
}

TEST_P(IoEngineTest, RegisteredMemoryAndFilesGiveTheSameBytes) {
  Memory out(16 * kBlock), in(16 * kBlock);
  out.FillRandom(2);
  for (const absl::Status& status : {engine_->RegisterBuffer(out.span()), engine_->RegisterBuffer(in.span()),
                                     engine_->RegisterFile(*file_), engine_->RegisterFile(*file_)}) {
    if (!status.ok()) printf("%s\n", status.ToString().c_str());
  }
  ASSERT_TRUE(WriteExact(*engine_, *file_, 0, out.span(), kBlock).ok());
  ASSERT_TRUE(ReadExact(*engine_, *file_, 0, in.span(), 3 * kBlock).ok());
  EXPECT_TRUE(in == out);
  const IoEngineReport report = engine_->report();
  printf("%s: %lu bytes and %u files registered\n", report.backend.c_str(), report.registered_buffer_bytes,
         report.registered_files);
}

TEST_P(IoEngineTest, PiecesAreSeenInOrderAndOnce) {
  Memory out(11 * kBlock), in(11 * kBlock);
  out.FillRandom(3);
  for (const bool writing : {true, false}) {
    Memory& memory = writing ? out : in;
    std::vector<std::byte> seen;
    const IoPieceFn collect = [&](std::span<const std::byte> piece) {
      seen.insert(seen.end(), piece.begin(), piece.end());
    };
    ASSERT_TRUE((writing ? WriteExact(*engine_, *file_, 0, memory.span(), 2 * kBlock, collect)
                         : ReadExact(*engine_, *file_, 0, memory.span(), 2 * kBlock, collect))
                    .ok());
    ASSERT_EQ(seen.size(), memory.span().size());
    EXPECT_EQ(memcmp(seen.data(), out.data(), seen.size()), 0);
  }
}

TEST_P(IoEngineTest, TheEndOfTheFileIsOutOfRange) {
  Memory memory(4 * kBlock);
  ASSERT_TRUE(WriteExact(*engine_, *file_, 0, memory.span()).ok());
  // Not on a block, so a direct read ends short inside of one.
  ASSERT_EQ(ftruncate(file_->fd(), 2 * kBlock + 1000), 0);
  const absl::Status status = ReadExact(*engine_, *file_, kBlock, memory.span().first(2 * kBlock));
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr(file_->path()));
  EXPECT_THAT(status.message(), HasSubstr("at offset 4096"));
  EXPECT_TRUE(absl::IsOutOfRange(ReadExact(*engine_, *file_, 64 * kBlock, memory.span())));
}

TEST_P(IoEngineTest, TheFirstErrorInOrderOfOffsetIsReported) {
  Memory memory(8 * kBlock);
  ASSERT_TRUE(WriteExact(*engine_, *file_, 0, memory.span().first(3 * kBlock)).ok());
  const absl::Status status = ReadExact(*engine_, *file_, 0, memory.span(), kBlock);
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("at offset 12288"));
}

TEST_P(IoEngineTest, RequestsThatCanNeverWorkAreInvalidArguments) {
  Memory memory(2 * kBlock);
  std::vector<IoRequest> requests = {
      {IoOp::kRead, nullptr, 0, memory.data(), kBlock, 1},
      {IoOp::kRead, file_.get(), 0, nullptr, kBlock, 2},
      {IoOp::kRead, file_.get(), 0, memory.data(), 0, 3},
      {IoOp::kWrite, file_.get(), UINT64_MAX - 100, memory.data(), kBlock, 4},
  };
  if (file_->direct()) {
    requests.push_back({IoOp::kRead, file_.get(), 1, memory.data(), kBlock, 5});
    requests.push_back({IoOp::kRead, file_.get(), 0, memory.data() + 1, kBlock, 6});
    requests.push_back({IoOp::kRead, file_.get(), 0, memory.data(), kBlock - 1, 7});
  }
  engine_->Submit(requests);
  std::vector<IoCompletion> completions;
  engine_->Poll(requests.size(), completions);
  EXPECT_EQ(completions.size(), requests.size());
  for (const IoCompletion& completion : completions) {
    EXPECT_TRUE(absl::IsInvalidArgument(completion.status)) << completion.token << " " << completion.status;
  }
}

TEST_P(IoEngineTest, ErrorsOfTheKernelAreTypedAndNameEverything) {
  const std::string path = ::testing::TempDir() + "/read_only";
  ASSERT_TRUE(WriteFileDurably(path, "x").ok());
  auto fd = OpenFile(path, O_RDONLY);
  ASSERT_TRUE(fd.ok());
  const IoFile read_only(std::move(*fd), path, /*direct=*/false, 1);
  Memory memory(kBlock);
  const absl::Status status = WriteExact(*engine_, read_only, 512, memory.span().first(100));
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("writing 100 bytes at offset 512 of " + path));
  EXPECT_THAT(status.message(), HasSubstr("errno 9"));
}

TEST_P(IoEngineTest, PollReturnsWhatIsThereAndNeverWaitsForNothing) {
  std::vector<IoCompletion> completions;
  engine_->Poll(5, completions);
  EXPECT_TRUE(completions.empty());
  Memory memory(16 * kBlock);
  std::vector<IoRequest> requests;
  for (uint64_t i = 0; i < 16; ++i) {
    requests.push_back({IoOp::kWrite, file_.get(), i * kBlock, memory.data() + i * kBlock, kBlock, i});
  }
  engine_->Submit(requests);
  EXPECT_EQ(engine_->outstanding(), 16);
  engine_->Poll(1, completions);
  EXPECT_GE(completions.size(), 1);
  engine_->Poll(100, completions);
  EXPECT_EQ(completions.size(), 16);
  EXPECT_EQ(engine_->outstanding(), 0);
  std::vector<bool> seen(16);
  for (const IoCompletion& completion : completions) {
    EXPECT_TRUE(completion.status.ok()) << completion.status;
    EXPECT_FALSE(seen[completion.token]);
    seen[completion.token] = true;
  }
}

TEST_P(IoEngineTest, DestructorWaitsForOperationsThatOwnOurMemory) {
  Memory zeros(256 * kBlock);
  ASSERT_TRUE(WriteExact(*engine_, *file_, 0, zeros.span()).ok());
  void* mapping = mmap(nullptr, 256 * kBlock, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapping, MAP_FAILED);
  auto* memory = static_cast<std::byte*>(mapping);
  std::vector<IoRequest> requests;
  for (uint64_t i = 0; i < 256; ++i) {
    requests.push_back({IoOp::kRead, file_.get(), i * kBlock, memory + i * kBlock, kBlock, i});
  }
  engine_->Submit(requests);
  engine_.reset();
  // No byte may arrive any more.
  memset(memory, 0x5A, 256 * kBlock);
  auto other = std::get<0>(GetParam()).create(1);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(ReadExact(**other, *file_, 0, zeros.span()).ok());
  for (size_t i = 0; i < 256 * kBlock; ++i) ASSERT_EQ(memory[i], std::byte{0x5A});
  munmap(mapping, 256 * kBlock);
}

INSTANTIATE_TEST_SUITE_P(
    AllEngines, IoEngineTest,
    ::testing::Combine(::testing::Values(Backend{"IoUring", &Ring},
                                         Backend{"Threads",
                                                 [](unsigned depth) { return CreateThreadIoEngine(depth); }}),
                       ::testing::Bool()),
    [](const auto& info) {
      return std::string(std::get<0>(info.param).name) + (std::get<1>(info.param) ? "Direct" : "Buffered");
    });

class IoUringEngineTest : public ::testing::Test {
 protected:
  void Create(std::function<int32_t(int32_t)> hook) {
    auto engine = CreateIoUringEngine({.depth = 4, .result_hook = std::move(hook)});
    if (absl::IsUnimplemented(engine.status()) || absl::IsPermissionDenied(engine.status())) {
      GTEST_SKIP() << engine.status();
    }
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = std::move(*engine);
    file_ = MakeFile(/*direct=*/false);
  }

  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<IoFile> file_;
};

TEST_F(IoUringEngineTest, ShortCompletionsAndInterruptionsAreContinued) {
  const uint64_t seed = 7;
  const CounterRandom random(seed, 2);
  uint64_t draws = 0;
  uint64_t changed = 0;
  Create([&](int32_t result) -> int32_t {
    switch (random.Below(draws++, 4)) {
      case 0:
        ++changed;
        return -EINTR;
      case 1:
        ++changed;
        return -EAGAIN;
      case 2:
        ++changed;
        return result > 1 ? 1 + static_cast<int32_t>(random.Below(draws, result)) : result;
      default:
        return result;
    }
  });
  if (engine_ == nullptr) return;
  Memory out(9 * kBlock), in(9 * kBlock);
  out.FillRandom(seed);
  ASSERT_TRUE(WriteExact(*engine_, *file_, 0, out.span(), 2 * kBlock).ok());
  ASSERT_TRUE(ReadExact(*engine_, *file_, 0, in.span(), 3 * kBlock).ok());
  EXPECT_TRUE(in == out) << "seed " << seed;
  EXPECT_GT(changed, 0);
}

TEST_F(IoUringEngineTest, AFileThatNeverMovesIsAnErrorNotALoop) {
  Create([](int32_t) { return -EAGAIN; });
  if (engine_ == nullptr) return;
  Memory memory(kBlock);
  const absl::Status status = WriteExact(*engine_, *file_, 0, memory.span());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(IoUringEngineTest, ErrorsKeepTheirErrno) {
  int32_t error = EIO;
  Create([&](int32_t) { return -error; });
  if (engine_ == nullptr) return;
  Memory memory(kBlock);
  EXPECT_TRUE(absl::IsDataLoss(WriteExact(*engine_, *file_, 0, memory.span())));
  error = ENOSPC;
  const absl::Status status = WriteExact(*engine_, *file_, 0, memory.span());
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

TEST(IoFactory, ChoosesAndExplains) {
  EXPECT_TRUE(absl::IsInvalidArgument(ParseIoBackend("fast").status()));
  EXPECT_EQ(*ParseIoBackend("io_uring"), IoBackend::kIoUring);
  auto engine = CreateIoEngine({.backend = *ParseIoBackend("threads"), .depth = 64});
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->report().backend, "threads");
  EXPECT_EQ((*engine)->depth(), 16);
  engine = CreateIoEngine({});
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->report().backend == "threads", !(*engine)->report().why_not_io_uring.empty());
  EXPECT_TRUE(absl::IsInvalidArgument(CreateIoEngine({.depth = 0}).status()));
}

TEST(FaultyIoEngine, EveryKindFiresOnceAndDoesWhatItsNameSays) {
  constexpr FaultKind kKinds[] = {
      FaultKind::kReadError, FaultKind::kWriteError,      FaultKind::kReadFlip,
      FaultKind::kReadShort, FaultKind::kReadMisdirected, FaultKind::kWriteFlip,
      FaultKind::kWriteTorn, FaultKind::kWriteLost,       FaultKind::kWriteMisdirected};
  for (const FaultKind kind : kKinds) {
    SCOPED_TRACE(FaultKindName(kind));
    FaultPlan plan;
    auto base = CreateThreadIoEngine(2);
    ASSERT_TRUE(base.ok());
    const std::unique_ptr<IoEngine> engine = MakeFaultyIoEngine(std::move(*base), plan);
    const std::unique_ptr<IoFile> file = MakeFile(/*direct=*/false);
    Memory old(8 * kBlock), fresh(8 * kBlock), read(8 * kBlock);
    old.FillRandom(10);
    fresh.FillRandom(11);
    ASSERT_TRUE(WriteExact(*engine, *file, 0, old.span(), 2 * kBlock).ok());
    plan.Arm({.kind = kind, .nth = 1, .seed = 5});
    const absl::Status wrote = WriteExact(*engine, *file, 0, fresh.span(), 2 * kBlock);
    const absl::Status got = ReadExact(*engine, *file, 0, read.span(), 2 * kBlock);
    EXPECT_EQ(plan.fired(), 1);
    EXPECT_EQ(plan.reads(), 4);
    EXPECT_EQ(plan.writes(), 4);
    EXPECT_EQ(wrote.ok(), kind != FaultKind::kWriteError) << wrote;
    EXPECT_EQ(got.ok(), kind != FaultKind::kReadError) << got;
    EXPECT_FALSE(read == fresh);
    plan.Disarm();
    ASSERT_TRUE(ReadExact(*engine, *file, 0, read.span(), 2 * kBlock).ok());
    EXPECT_EQ(read == fresh, IsReadFault(kind));
  }
}

}  // namespace
}  // namespace strata
