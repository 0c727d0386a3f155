#include "offload/store/nvme_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "common/checked.h"
#include "common/random.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/store/store_test_util.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr ItemId kA{1}, kB{2}, kC{3}, kScratch{7};
constexpr size_t kBytes = 3 * 4096;

Generation Gen(uint64_t number) { return Generation{number}; }

StoreLayout SmallLayout() {
  return {.items = {{kA, kBytes}, {kB, kBytes - 5}, {kC, 5 * 4096}, {kScratch, kBytes, ItemKind::kScratch}}};
}

// Every behaviour with O_DIRECT, where the test's folder has it, and through the page cache; on one path and
// striped over three of uneven weights.
class NvmeStoreTest : public ::testing::TestWithParam<std::tuple<DirectIo, int>> {
 protected:
  void SetUp() override {
    const std::string folder = StoreTestFolder("test");
    const double weights[] = {2, 0.7, 1};
    for (int i = 0; i < std::get<1>(GetParam()); ++i) {
      paths_.push_back({folder + "/" + std::to_string(i), weights[i]});
      ASSERT_TRUE(MakeDirectories(paths_.back().path).ok());
    }
    engine_ = StoreTestEngine();
    if (const absl::Status status = Open(SmallLayout()); absl::IsFailedPrecondition(status)) {
      GTEST_SKIP() << "no O_DIRECT here: " << status;
    }
  }

  absl::Status Open(const StoreLayout& layout) {
    store_.reset();
    auto store = NvmeStore::Open(
        {.paths = paths_, .owner = "job", .direct = direct(), .block_bytes = 2 * 4096}, layout);
    if (!store.ok()) return store.status();
    store_ = std::move(*store);
    return absl::OkStatus();
  }

  static DirectIo direct() { return std::get<0>(GetParam()); }

  size_t Size(ItemId item) { return *store_->stored_bytes(item); }

  absl::Status Write(ItemId item, uint64_t generation, uint64_t salt) {
    StoreBuffer data(Size(item));
    data.Fill(static_cast<uint64_t>(item), salt);
    return store_->Write(*engine_, item, Gen(generation), data.span());
  }

  // Reads and compares; an error of the store, or kUnknown for wrong bytes.
  absl::Status Check(ItemId item, uint64_t generation, uint64_t salt) {
    StoreBuffer expected(Size(item)), got(Size(item));
    expected.Fill(static_cast<uint64_t>(item), salt);
    absl::Status status = store_->Read(*engine_, item, Gen(generation), got.span());
    if (status.ok() && !(got == expected)) return absl::UnknownError("wrong bytes were returned as good");
    return status;
  }

  std::vector<NvmePath> paths_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<NvmeStore> store_;
};

std::string SettingName(const ::testing::TestParamInfo<std::tuple<DirectIo, int>>& info) {
  return std::string(std::get<0>(info.param) == DirectIo::kRequire ? "Direct" : "Buffered") +
         (std::get<1>(info.param) == 1 ? "OnePath" : "ThreePaths");
}

INSTANTIATE_TEST_SUITE_P(Modes, NvmeStoreTest,
                         ::testing::Combine(::testing::Values(DirectIo::kRequire, DirectIo::kBuffered),
                                            ::testing::Values(1, 3)),
                         SettingName);

// What only several paths can show.
class StripedNvmeStoreTest : public NvmeStoreTest {};

INSTANTIATE_TEST_SUITE_P(Modes, StripedNvmeStoreTest,
                         ::testing::Combine(::testing::Values(DirectIo::kRequire, DirectIo::kBuffered),
                                            ::testing::Values(3)),
                         SettingName);

#define EXPECT_OK(expr)                                     \
  do {                                                      \
    const absl::Status expect_ok_status = (expr);           \
    EXPECT_TRUE(expect_ok_status.ok()) << expect_ok_status; \
  } while (false)

TEST_P(NvmeStoreTest, StepsMayOverlapAndEachReadsWhatTheLastWrote) {
  for (const ItemId item : {kA, kB, kC}) EXPECT_OK(Write(item, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  for (uint64_t step = 1; step < 6; ++step) {
    for (const ItemId item : {kA, kB, kC}) {
      EXPECT_OK(Check(item, step - 1, step - 1));
      EXPECT_OK(Write(item, step, step));
    }
    // Only now the step before this one is committed: three versions of everything are alive.
    if (step > 1) EXPECT_OK(store_->Commit(Gen(step - 1)));
  }
  EXPECT_EQ(store_->counters().extents_peak, 9);
  EXPECT_EQ(store_->committed(), Gen(4));
  EXPECT_EQ(store_->newest(kB), Gen(5));
}

TEST_P(NvmeStoreTest, RollbackReturnsToTheCommit) {
  for (const ItemId item : {kA, kB, kC}) EXPECT_OK(Write(item, 10, 0));
  EXPECT_OK(store_->Commit(Gen(10)));
  for (int round = 0; round < 4; ++round) {
    EXPECT_OK(Write(kA, 11, 1));
    EXPECT_OK(Write(kA, 12, 2));
    EXPECT_OK(Write(kB, 11, 3));
    EXPECT_OK(store_->Rollback());
    EXPECT_OK(Check(kA, 10, 0));
    EXPECT_OK(Check(kB, 10, 0));
    EXPECT_OK(Check(kC, 10, 0));
  }
}

TEST_P(NvmeStoreTest, ItemsNotWrittenInAStepKeepTheirGeneration) {
  EXPECT_OK(Write(kA, 0, 0));
  EXPECT_OK(Write(kB, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  EXPECT_OK(Write(kA, 1, 1));
  EXPECT_OK(store_->Commit(Gen(1)));
  EXPECT_OK(Check(kA, 1, 1));
  EXPECT_OK(Check(kB, 0, 0));
}

TEST_P(NvmeStoreTest, AGenerationThatIsNotThereIsRefusedBeforeAnyIo) {
  StoreBuffer buffer(Size(kA));
  const absl::Status nothing = store_->Read(*engine_, kA, Gen(0), buffer.span());
  EXPECT_TRUE(absl::IsFailedPrecondition(nothing)) << nothing;
  EXPECT_THAT(nothing.message(), HasSubstr("nothing is there"));
  EXPECT_OK(Write(kA, 1, 1));
  EXPECT_OK(Write(kA, 3, 3));
  for (const uint64_t generation : {0, 2, 4}) {
    const absl::Status status = Check(kA, generation, 0);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("NVMe item 1 generation " + std::to_string(generation)));
    EXPECT_THAT(status.message(), HasSubstr("there are generations 1, 3"));
  }
  EXPECT_EQ(store_->counters().read_bytes, 0);
}

// Mode speculative: a step writes its update, finds that it was wrong, and makes it again from the state.
TEST_P(NvmeStoreTest, TheCommittedVersionIsReadAgainAfterTheNextOneWasWritten) {
  StoreLayout layout = SmallLayout();
  layout.write_ahead_items = 0;
  EXPECT_OK(Open(layout));
  for (const ItemId item : {kA, kB, kC}) EXPECT_OK(Write(item, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  for (uint64_t step = 1; step < 5; ++step) {
    for (const ItemId item : {kA, kB, kC}) {
      EXPECT_OK(Check(item, step - 1, step - 1));
      EXPECT_OK(Write(item, step, 1000 + step));
    }
    for (const ItemId item : {kA, kB, kC}) {
      EXPECT_OK(Check(item, step - 1, step - 1));
      EXPECT_OK(Write(item, step, step));
      EXPECT_OK(Check(item, step, step));
      EXPECT_OK(Check(item, step - 1, step - 1));
    }
    EXPECT_OK(store_->Commit(Gen(step)));
    EXPECT_TRUE(absl::IsFailedPrecondition(Check(kA, step - 1, step - 1)));
  }
  EXPECT_EQ(store_->counters().extents_peak, 6);
}

TEST_P(NvmeStoreTest, WritesOfThePastAreRefused) {
  EXPECT_OK(Write(kA, 3, 0));
  EXPECT_TRUE(absl::IsFailedPrecondition(Write(kA, 2, 0)));
  EXPECT_OK(store_->Commit(Gen(5)));
  for (const uint64_t generation : {3, 4, 5})
    EXPECT_TRUE(absl::IsFailedPrecondition(Write(kA, generation, 0)));
  EXPECT_TRUE(absl::IsFailedPrecondition(store_->Commit(Gen(5))));
  EXPECT_OK(Write(kA, 6, 1));
  EXPECT_OK(Check(kA, 6, 1));
}

TEST_P(NvmeStoreTest, TheSameUncommittedGenerationIsOverwritten) {
  EXPECT_OK(Write(kA, 1, 0));
  for (uint64_t salt = 1; salt < 8; ++salt) {
    EXPECT_OK(Write(kA, 1, salt));
    EXPECT_OK(Check(kA, 1, salt));
  }
  EXPECT_EQ(store_->counters().extents_peak, 1);
}

TEST_P(NvmeStoreTest, ScratchIgnoresCommitAndRollback) {
  EXPECT_OK(Write(kScratch, 100, 0));
  EXPECT_OK(store_->Commit(Gen(1)));
  EXPECT_OK(store_->Rollback());
  EXPECT_OK(Check(kScratch, 100, 0));
  EXPECT_OK(Write(kScratch, 5, 1));  // Any generation, also an older one.
  EXPECT_OK(Check(kScratch, 5, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(Check(kScratch, 100, 0)));
}

// Gradients and activations: written several times in a step, each time under a number that no other write
// has.
TEST_P(NvmeStoreTest, ScratchIsWrittenManyTimesInAStep) {
  constexpr uint64_t kStepStride = uint64_t{1} << 20;
  EXPECT_OK(Write(kA, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  for (uint64_t step = 1; step < 4; ++step) {
    EXPECT_OK(Write(kA, step, step));
    for (uint64_t n = 0; n < 5; ++n) {
      const uint64_t generation = step * kStepStride + n;
      EXPECT_OK(Write(kScratch, generation, generation));
      EXPECT_OK(Check(kScratch, generation, generation));
      EXPECT_OK(Check(kScratch, generation, generation));
      EXPECT_TRUE(absl::IsFailedPrecondition(Check(kScratch, generation - 1, generation - 1)));
    }
    if (step == 2) {
      EXPECT_OK(store_->Rollback());
      EXPECT_OK(Check(kScratch, step * kStepStride + 4, step * kStepStride + 4));
      EXPECT_OK(Write(kA, step, step));
    }
    EXPECT_OK(store_->Commit(Gen(step)));
  }
  EXPECT_EQ(store_->counters().extents_peak, 2);  // Of the versioned item.
}

TEST_P(NvmeStoreTest, WritingFurtherAheadThanPromisedIsInternal) {
  StoreLayout layout = SmallLayout();
  layout.write_ahead_items = 1;
  EXPECT_OK(Open(layout));
  EXPECT_EQ(store_->report().capacity_bytes, *CapacityBytes(layout));
  for (const ItemId item : {kA, kB, kC}) EXPECT_OK(Write(item, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  for (const ItemId item : {kA, kB, kC}) EXPECT_OK(Write(item, 1, 1));
  EXPECT_OK(Write(kA, 2, 2));
  const absl::Status status = Write(kB, 2, 2);  // kA and kB have one stored size.
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("write_ahead_items"));
  EXPECT_OK(store_->Commit(Gen(1)));
  EXPECT_OK(Write(kB, 2, 2));
  EXPECT_OK(Check(kB, 2, 2));
}

TEST_P(NvmeStoreTest, WrongBuffersAndItemsAreRefused) {
  StoreBuffer buffer(16 * 4096);
  const auto part = [&](size_t offset, size_t size) { return buffer.span().subspan(offset, size); };
  EXPECT_OK(Write(kA, 0, 0));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Read(*engine_, kA, Gen(0), part(0, kBytes - 4096))));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Read(*engine_, kA, Gen(0), part(512, kBytes))));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Write(*engine_, kB, Gen(0), part(0, kBytes - 5))));
  EXPECT_TRUE(absl::IsInvalidArgument(store_->Write(*engine_, kB, Gen(0), part(1, kBytes))));
  EXPECT_TRUE(absl::IsNotFound(store_->Read(*engine_, ItemId{99}, Gen(0), part(0, kBytes))));
  EXPECT_TRUE(absl::IsNotFound(store_->stored_bytes(ItemId{99}).status()));
  EXPECT_EQ(store_->newest(ItemId{99}), std::nullopt);
}

TEST_P(NvmeStoreTest, CountsWhatTheKernelSaw) {
  EXPECT_OK(Write(kA, 0, 0));
  EXPECT_OK(Write(kC, 0, 0));
  EXPECT_OK(Check(kA, 0, 0));
  const NvmeStoreCounters counters = store_->counters();
  EXPECT_EQ(counters.written_bytes, kBytes + 5 * 4096);
  EXPECT_EQ(counters.writes, 2);
  EXPECT_EQ(counters.read_bytes, kBytes);
  EXPECT_EQ(counters.reads, 1);
  EXPECT_EQ(counters.checksum_errors + counters.retries + counters.read_errors + counters.write_errors, 0);
  EXPECT_GT(counters.read_p50_nanos, 0);
  EXPECT_LE(counters.write_p50_nanos, counters.write_p99_nanos);
}

TEST_P(NvmeStoreTest, RegisteredFileGivesTheSameBytes) {
  if (const absl::Status status = store_->RegisterWith(*engine_); !status.ok())
    printf("%s\n", status.ToString().c_str());
  EXPECT_OK(Write(kA, 0, 4));
  EXPECT_OK(Check(kA, 0, 4));
}

TEST_P(NvmeStoreTest, CloseRemovesTheFolders) {
  EXPECT_OK(Write(kA, 0, 0));
  for (const NvmePathReport& path : store_->report().paths) EXPECT_TRUE(std::filesystem::exists(path.folder));
  EXPECT_OK(std::move(*store_).Close());
  store_.reset();
  for (const NvmePath& path : paths_) EXPECT_TRUE(std::filesystem::is_empty(path.path));
}

TEST_P(NvmeStoreTest, SecondStoreOfOneOwnerIsRefusedAndOthersAreIndependent) {
  EXPECT_OK(Write(kA, 0, 0));
  const absl::Status second = NvmeStore::Open({.paths = paths_, .owner = "job"}, SmallLayout()).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  auto other = NvmeStore::Open({.paths = paths_, .owner = "other", .direct = direct()}, SmallLayout());
  ASSERT_TRUE(other.ok()) << other.status();
  StoreBuffer data(Size(kA));
  data.Fill(1, 77);
  EXPECT_OK((*other)->Write(*engine_, kA, Gen(0), data.span()));
  EXPECT_OK(Check(kA, 0, 0));
  EXPECT_OK(std::move(**other).Close());
  EXPECT_OK(Check(kA, 0, 0));
}

TEST_P(NvmeStoreTest, SeveralTransfersOfALaneAreInFlightAndEachIsChecked) {
  for (const ItemId item : {kA, kB, kC}) EXPECT_OK(Write(item, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  StoreBuffer a(Size(kA)), b(Size(kB)), c(Size(kC)), fresh(Size(kA)), expected(Size(kC));
  fresh.Fill(1, 1);
  NvmeLane lane(*store_, *engine_);
  EXPECT_OK(lane.StartRead(kC, Gen(0), c.span()));
  EXPECT_OK(lane.StartWrite(kA, Gen(1), fresh.span()));
  EXPECT_OK(lane.StartRead(kA, Gen(0), a.span()));
  EXPECT_TRUE(absl::IsFailedPrecondition(lane.StartRead(kB, Gen(1), b.span())));  // Not there: not in flight.
  EXPECT_EQ(lane.in_flight(), 3);
  while (!lane.Advance()) {
  }
  EXPECT_OK(lane.Finish());
  expected.Fill(3, 0);
  EXPECT_TRUE(c == expected);
  EXPECT_OK(lane.Finish());
  EXPECT_OK(lane.Finish());
  EXPECT_EQ(lane.in_flight(), 0);
  StoreBuffer old(Size(kA));
  old.Fill(1, 0);
  EXPECT_TRUE(a == old);
  // A lane that is dropped in the middle has ended everything.
  {
    NvmeLane dropped(*store_, *engine_);
    EXPECT_OK(dropped.StartRead(kA, Gen(1), a.span()));
    EXPECT_OK(dropped.StartWrite(kB, Gen(1), b.span()));
  }
  EXPECT_EQ(engine_->outstanding(), 0);
  EXPECT_OK(store_->Commit(Gen(1)));
  EXPECT_OK(Check(kA, 1, 1));
}

TEST_P(StripedNvmeStoreTest, EachPathGetsItsShareOfTheBytes) {
  StoreLayout layout;
  for (uint32_t i = 0; i < 40; ++i) layout.items.push_back({ItemId{i}, (1 + i % 7) * 8192 + i});
  EXPECT_OK(Open(layout));
  const NvmeStoreReport& report = store_->report();
  double total_weight = 0;
  for (const NvmePath& path : paths_) total_weight += path.weight;
  uint64_t sum = 0;
  for (size_t i = 0; i < paths_.size(); ++i) {
    sum += report.paths[i].capacity_bytes;
    const double share = paths_[i].weight / total_weight * static_cast<double>(report.capacity_bytes);
    EXPECT_NEAR(static_cast<double>(report.paths[i].capacity_bytes), share, 8192) << i;
  }
  EXPECT_EQ(sum, report.capacity_bytes);
  EXPECT_EQ(sum, *CapacityBytes(layout));
  for (uint32_t i = 0; i < 40; ++i) EXPECT_OK(Write(ItemId{i}, 0, i));
  for (uint32_t i = 0; i < 40; ++i) EXPECT_OK(Check(ItemId{i}, 0, i));
  const NvmeStoreCounters counters = store_->counters();
  EXPECT_EQ(
      counters.paths[0].written_bytes + counters.paths[1].written_bytes + counters.paths[2].written_bytes,
      counters.written_bytes);
  for (const NvmePathCounters& path : counters.paths) {
    EXPECT_GT(path.written_bytes, 0);
    EXPECT_EQ(path.written_bytes, path.read_bytes);
  }
}

// The store against a model in memory: random writes, reads, commits and rollbacks.
TEST_P(NvmeStoreTest, BehavesLikeItsModel) {
  const uint64_t seed = std::random_device{}();
  printf("seed %lu\n", seed);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const CounterRandom random(seed, 0);
  uint64_t draws = 0;
  const auto below = [&](uint64_t bound) { return random.Below(draws++, bound); };

  std::map<ItemId, std::map<uint64_t, uint64_t>> model;  // Item -> generation -> salt.
  uint64_t step = 0;                                     // Being written.
  uint64_t committed = 0;
  const ItemId items[] = {kA, kB, kC};
  for (const ItemId item : items) {
    EXPECT_OK(Write(item, 0, 0));
    model[item] = {{0, 0}};
  }
  EXPECT_OK(store_->Commit(Gen(0)));
  for (int i = 0; i < 1500; ++i) {
    const ItemId item = items[below(3)];
    switch (below(8)) {
      case 0:  // The next step begins, at most two ahead of the commit.
        if (step < committed + 2) ++step;
        break;
      case 1: {
        if (committed == step) break;
        committed += 1 + below(step - committed);
        ASSERT_TRUE(store_->Commit(Gen(committed)).ok());
        for (auto& [unused, versions] : model)
          versions.erase(versions.begin(), std::prev(versions.upper_bound(committed)));
        break;
      }
      case 2:
        if (below(4) > 0) break;
        ASSERT_TRUE(store_->Rollback().ok());
        for (auto& [unused, versions] : model)
          versions.erase(versions.upper_bound(committed), versions.end());
        step = committed;
        break;
      case 3:
      case 4: {
        const uint64_t salt = 1 + below(1'000'000);
        const bool legal = step > committed;
        const absl::Status status = Write(item, step, salt);
        ASSERT_EQ(status.ok(), legal) << status;
        if (legal) model[item][step] = salt;
        break;
      }
      default: {
        for (const auto& [generation, salt] : model[item])
          ASSERT_TRUE(Check(item, generation, salt).ok()) << i;
        ASSERT_EQ(store_->newest(item), Gen(model[item].rbegin()->first));
      }
    }
  }
}

// Lane threads with their own engines beside a control thread; each lane owns some items, as a plan orders
// them.
TEST_P(NvmeStoreTest, LanesRunAtTheSameTime) {
  constexpr uint32_t kLanes = 3, kItemsPerLane = 4, kSteps = 12;
  StoreLayout layout;
  for (uint32_t i = 0; i < kLanes * kItemsPerLane; ++i) layout.items.push_back({ItemId{i}, 5 * 4096});
  EXPECT_OK(Open(layout));
  for (uint32_t i = 0; i < kLanes * kItemsPerLane; ++i) EXPECT_OK(Write(ItemId{i}, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  std::atomic<uint32_t> failures{0};
  std::atomic<uint64_t> finished[kSteps + 1] = {};
  std::atomic<uint64_t> committed{0};
  std::vector<Thread> threads;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    threads.emplace_back("lane", [&, lane] {
      const std::unique_ptr<IoEngine> engine = StoreTestEngine();
      StoreBuffer buffer(5 * 4096), expected(5 * 4096);
      for (uint64_t step = 1; step <= kSteps; ++step) {
        // Step t + 1 may begin before the commit of t, not before that of t - 1.
        for (uint64_t seen = committed.load(); step > seen + 2; seen = committed.load()) committed.wait(seen);
        for (uint32_t i = lane * kItemsPerLane; i < (lane + 1) * kItemsPerLane; ++i) {
          expected.Fill(i, step - 1);
          const absl::Status read = store_->Read(*engine, ItemId{i}, Gen(step - 1), buffer.span());
          buffer == expected ? void() : void(++failures);
          expected.Fill(i, step);
          const absl::Status written = store_->Write(*engine, ItemId{i}, Gen(step), expected.span());
          if (!read.ok() || !written.ok()) {
            ADD_FAILURE() << read << " " << written;
            ++failures;
          }
        }
        ++finished[step];
        finished[step].notify_all();
      }
    });
  }
  for (uint64_t step = 1; step <= kSteps; ++step) {
    for (uint64_t seen = finished[step].load(); seen < kLanes; seen = finished[step].load())
      finished[step].wait(seen);
    EXPECT_OK(store_->Commit(Gen(step)));
    committed = step;
    committed.notify_all();
  }
  for (Thread& thread : threads) thread.Join();
  EXPECT_EQ(failures, 0);
}

// A write held in the kernel's hands (here: in an engine that waits) is protected from commit and rollback.
TEST_P(NvmeStoreTest, CommitAndRollbackWaitForNoOneAndRefuseInstead) {
  class Gate : public IoEngine {
   public:
    explicit Gate(std::function<void()> inside) : base_(StoreTestEngine()), inside_(std::move(inside)) {}
    void Submit(std::span<const IoRequest> requests) override {
      inside_();
      base_->Submit(requests);
    }
    void Poll(size_t min, std::vector<IoCompletion>& out) override { base_->Poll(min, out); }
    size_t outstanding() const override { return base_->outstanding(); }
    unsigned depth() const override { return base_->depth(); }
    absl::Status RegisterBuffer(std::span<std::byte> memory) override {
      return base_->RegisterBuffer(memory);
    }
    absl::Status RegisterFile(const IoFile& file) override { return base_->RegisterFile(file); }
    IoEngineReport report() const override { return base_->report(); }

   private:
    const std::unique_ptr<IoEngine> base_;
    const std::function<void()> inside_;
  };
  EXPECT_OK(Write(kA, 0, 0));
  EXPECT_OK(store_->Commit(Gen(0)));
  EXPECT_OK(Write(kB, 1, 0));
  StoreBuffer data(Size(kA));
  data.Fill(1, 2);
  Gate during_write([&] {
    EXPECT_TRUE(absl::IsFailedPrecondition(store_->Commit(Gen(2))));
    EXPECT_TRUE(absl::IsFailedPrecondition(store_->Rollback()));
    EXPECT_TRUE(absl::IsFailedPrecondition(Write(kA, 2, 9)));  // A second write of the same version.
    EXPECT_OK(Check(kA, 0, 0));                                // What is being written does not exist yet.
    EXPECT_OK(store_->Commit(Gen(1)));
  });
  EXPECT_OK(store_->Write(during_write, kA, Gen(2), data.span()));
  EXPECT_OK(store_->Commit(Gen(2)));
  // A read keeps its extent although the version goes.
  StoreBuffer got(Size(kA));
  Gate during_read([&] {
    EXPECT_OK(Write(kA, 3, 3));
    EXPECT_OK(store_->Commit(Gen(3)));
    for (uint64_t generation = 4; generation < 12; ++generation) {
      EXPECT_OK(Write(kA, generation, generation));
      EXPECT_OK(store_->Commit(Gen(generation)));
    }
  });
  EXPECT_OK(store_->Read(during_read, kA, Gen(2), got.span()));
  EXPECT_TRUE(got == data);
  EXPECT_OK(Check(kA, 11, 11));
}

TEST(NvmeStore, MoreThanTheDiskHasIsRefusedWithBothNumbers) {
  const std::string path = StoreTestFolder("full");
  struct statvfs fs;
  ASSERT_EQ(statvfs(path.c_str(), &fs), 0);
  const uint64_t size = RoundUp<uint64_t>(fs.f_bavail * fs.f_frsize, 4096);
  const absl::Status status =
      NvmeStore::Open({.paths = {{path}}, .owner = "job"}, {.items = {{kA, size}}}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("needs " + std::to_string(3 * size) + " bytes"));
  EXPECT_THAT(status.message(), HasSubstr("there are "));
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(NvmeStore, OpeningSeveralPathsIsAllOrNothing) {
  const std::string first = StoreTestFolder("all_1"), second = StoreTestFolder("all_2");
  const auto open = [&](const std::string& last, const StoreLayout& layout) {
    return NvmeStore::Open({.paths = {{first}, {second, 3}, {last}}, .owner = "job"}, layout).status();
  };
  const std::string third = StoreTestFolder("all_3");
  const absl::Status missing = open(third + "/missing", SmallLayout());
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  for (const std::string& again : {first, first + "/", first + "/../" + first.substr(first.rfind('/') + 1)}) {
    const absl::Status twice = open(again, SmallLayout());
    EXPECT_TRUE(absl::IsInvalidArgument(twice)) << twice;
    EXPECT_THAT(twice.message(), HasSubstr(again + " is given twice"));
  }
  {  // The last path is in use: those before it are free again.
    auto other = NvmeStore::Open({.paths = {{third}}, .owner = "job"}, SmallLayout());
    ASSERT_TRUE(other.ok()) << other.status();
    const absl::Status used = open(third, SmallLayout());
    EXPECT_TRUE(absl::IsAlreadyExists(used)) << used;
    EXPECT_THAT(used.message(), HasSubstr(third));
  }
  struct statvfs fs;
  ASSERT_EQ(statvfs(first.c_str(), &fs), 0);
  // Each share alone would fit; the paths are on one disk.
  const uint64_t size = RoundUp<uint64_t>(fs.f_bavail * fs.f_frsize / 2, 4096);
  const absl::Status full = open(third, {.items = {{kA, size}}});
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  for (const std::string& path : {first, second, third}) {
    EXPECT_THAT(full.message(), HasSubstr("in " + path + "/strata-job needs "));
    EXPECT_TRUE(std::filesystem::is_empty(path)) << path;
  }
  auto store = NvmeStore::Open({.paths = {{first}, {second, 3}, {third}}, .owner = "job"}, SmallLayout());
  EXPECT_TRUE(store.ok()) << store.status();
}

TEST(NvmeStore, FileSizeLimitIsAnErrorThatLeavesNothing) {
  const std::string path = StoreTestFolder("limit");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 20, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status =
      NvmeStore::Open({.paths = {{path}}, .owner = "job"}, {.items = {{kA, 1 << 20}}}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("preallocating 3145728 bytes"));
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(NvmeStore, BadOptionsAreRefused) {
  const std::string path = StoreTestFolder("options");
  const auto open = [&](NvmeStoreOptions options) {
    return NvmeStore::Open(options, SmallLayout()).status();
  };
  EXPECT_TRUE(absl::IsNotFound(open({.paths = {{path + "/missing"}}, .owner = "job"})));
  EXPECT_TRUE(absl::IsInvalidArgument(open({.owner = "job"})));
  EXPECT_TRUE(absl::IsInvalidArgument(open({.paths = std::vector<NvmePath>(9, {path}), .owner = "job"})));
  EXPECT_TRUE(absl::IsInvalidArgument(open({.paths = {{path, 0}}, .owner = "job"})));
  EXPECT_TRUE(absl::IsInvalidArgument(open({.paths = {{path, -1}}, .owner = "job"})));
  EXPECT_TRUE(absl::IsInvalidArgument(open({.paths = {{path}}, .owner = "a/b"})));
  EXPECT_TRUE(absl::IsInvalidArgument(open({.paths = {{path}}, .owner = "job", .block_bytes = 0})));
  EXPECT_TRUE(absl::IsInvalidArgument(open({.paths = {{path}}, .owner = "job", .block_bytes = 5000})));
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(NvmeStore, AnEmptyLayoutIsAnEmptyStore) {
  auto store = NvmeStore::Open({.paths = {{StoreTestFolder("empty")}}, .owner = "job"}, {});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->report().capacity_bytes, 0);
  EXPECT_OK((*store)->Commit(Gen(0)));
}

constexpr char kChildPath[] = "STRATA_STORE_TEST_CHILD_PATH";
constexpr char kChildSignal[] = "STRATA_STORE_TEST_CHILD_SIGNAL";

// Not a test of its own: what the killed process below does.
TEST(NvmeStoreChild, HoldsAStoreOpen) {
  const char* path = getenv(kChildPath);
  const char* signal_fd = getenv(kChildSignal);
  if (path == nullptr || signal_fd == nullptr) return;
  auto store = NvmeStore::Open({.paths = {{path}}, .owner = "job"}, SmallLayout());
  if (!store.ok()) _exit(1);
  const std::unique_ptr<IoEngine> engine = StoreTestEngine();
  (void)(*store)->RegisterWith(*engine);
  StoreBuffer data(kBytes);
  if (!(*store)->Write(*engine, kA, Gen(0), data.span()).ok()) _exit(2);
  if (write(atoi(signal_fd), "R", 1) != 1) _exit(3);
  while (true) pause();
}

TEST(NvmeStore, KilledProcessLeavesNothing) {
  const std::string path = StoreTestFolder("killed");
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv(kChildPath, path.c_str(), 1);
    setenv(kChildSignal, std::to_string(dup(ready[1])).c_str(), 1);  // The copy survives exec.
    execl("/proc/self/exe", "nvme_store_test", "--gtest_filter=NvmeStoreChild.*", nullptr);
    _exit(9);
  }
  close(ready[1]);
  char sign = 0;
  ASSERT_EQ(read(ready[0], &sign, 1), 1) << "the child ended early";
  close(ready[0]);
  // Alive: its folder is locked, and a sweep spares it.
  EXPECT_TRUE(
      absl::IsAlreadyExists(NvmeStore::Open({.paths = {{path}}, .owner = "job"}, SmallLayout()).status()));
  EXPECT_EQ(*SweepStaleStores(path), 0);
  EXPECT_TRUE(std::filesystem::exists(path + "/strata-job"));
  ASSERT_EQ(kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    EXPECT_TRUE(entry.is_directory()) << entry.path() << " was left behind";
  }
  // The next store of any owner on the path sweeps it.
  auto next = NvmeStore::Open({.paths = {{path}}, .owner = "other"}, SmallLayout());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->report().stale_folders_swept, 1);
  EXPECT_OK(std::move(**next).Close());
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

}  // namespace
}  // namespace strata
