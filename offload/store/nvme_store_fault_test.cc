// The store on a disk that fails or lies: nothing wrong is ever returned as good, and everything fails
// cleanly.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/random.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/io/faulty_io_engine.h"
#include "offload/store/nvme_store.h"
#include "offload/store/store_test_util.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kItems = 3;
constexpr uint64_t kItemBytes = 6 * 4096;
constexpr uint64_t kSteps = 2;

// One disk for all stores: making a ring anew for each of hundreds of runs would take most of the time.
struct Disk {
  FaultPlan plan;
  std::unique_ptr<IoEngine> engine = MakeFaultyIoEngine(StoreTestEngine(), plan);
};

Disk& TheDisk() {
  static Disk disk;
  return disk;
}

class FaultyStore {
 public:
  explicit FaultyStore(const std::string& name, int paths = 1, const std::vector<StoreItem>& more = {})
      : path_(StoreTestFolder(name)) {
    plan_.Disarm();
    StoreLayout layout{.items = more};
    for (uint32_t i = 0; i < kItems; ++i) layout.items.push_back({ItemId{i}, kItemBytes});
    NvmeStoreOptions options{.owner = "job", .direct = DirectIo::kBuffered, .block_bytes = 2 * 4096};
    for (int i = 0; i < paths; ++i) {
      options.paths.push_back({path_ + "/" + std::to_string(i), 1.0 + i});
      EXPECT_TRUE(MakeDirectories(options.paths.back().path).ok());
    }
    // Through the page cache: the faults are made above it, and a busy disk does not slow the test down.
    auto store = NvmeStore::Open(options, layout);
    EXPECT_TRUE(store.ok()) << store.status();
    store_ = std::move(*store);
  }

  absl::Status Write(uint32_t item, uint64_t generation) {
    StoreBuffer data(kItemBytes);
    data.Fill(item, generation);
    return store_->Write(engine_, ItemId{item}, Generation{generation}, data.span());
  }

  // kUnknown when wrong bytes were returned as good.
  absl::Status Check(uint32_t item, uint64_t generation) {
    StoreBuffer expected(kItemBytes), got(kItemBytes);
    expected.Fill(item, generation);
    absl::Status status = store_->Read(engine_, ItemId{item}, Generation{generation}, got.span());
    if (status.ok() && !(got == expected)) return absl::UnknownError("wrong bytes were returned as good");
    return status;
  }

  // Load, then steps that read all and write all; the first error ends it.
  absl::Status Train() {
    for (uint32_t i = 0; i < kItems; ++i) STRATA_RETURN_IF_ERROR(Write(i, 0));
    STRATA_RETURN_IF_ERROR(store_->Commit(Generation{0}));
    for (uint64_t step = 1; step <= kSteps; ++step) {
      for (uint32_t i = 0; i < kItems; ++i) {
        STRATA_RETURN_IF_ERROR(Check(i, step - 1));
        STRATA_RETURN_IF_ERROR(Write(i, step));
      }
      STRATA_RETURN_IF_ERROR(store_->Commit(Generation{step}));
    }
    for (uint32_t i = 0; i < kItems; ++i) STRATA_RETURN_IF_ERROR(Check(i, kSteps));
    return absl::OkStatus();
  }

  const std::string path_;
  FaultPlan& plan_ = TheDisk().plan;
  IoEngine& engine_ = *TheDisk().engine;
  std::unique_ptr<NvmeStore> store_;
};

class NvmeStoreFault : public ::testing::TestWithParam<int> {  // of paths
 protected:
  // Fails request N for N = 0, 1, 2, ... until no fault fires any more: every request of the run was failed
  // once.
  void FailEveryRequest(FaultKind kind, const std::function<void(FaultyStore&, const absl::Status&)>& check,
                        int error = EIO) {
    uint64_t fired = 0;
    for (uint64_t nth = 0;; ++nth) {
      SCOPED_TRACE(std::string(FaultKindName(kind)) + " at request " + std::to_string(nth));
      FaultyStore store("fault", GetParam());
      store.plan_.Arm({.kind = kind, .nth = nth, .error = error, .seed = nth});
      const absl::Status status = store.Train();
      if (store.plan_.fired() == 0) {
        EXPECT_TRUE(status.ok()) << status;
        EXPECT_EQ(fired, IsReadFault(kind) ? store.plan_.reads() : store.plan_.writes())
            << "a fault never fired";
        break;
      }
      ++fired;
      check(store, status);
      // The store goes on: what failed is written and read again.
      store.plan_.Disarm();
      const uint64_t committed =
          store.store_->committed().has_value() ? static_cast<uint64_t>(*store.store_->committed()) : 0;
      ASSERT_TRUE(store.store_->Rollback().ok());
      for (uint64_t step = committed + 1; step < committed + 3; ++step) {
        for (uint32_t i = 0; i < kItems; ++i) ASSERT_TRUE(store.Write(i, step).ok());
        ASSERT_TRUE(store.store_->Commit(Generation{step}).ok());
        for (uint32_t i = 0; i < kItems; ++i) ASSERT_TRUE(store.Check(i, step).ok());
      }
      ASSERT_TRUE(std::move(*store.store_).Close().ok());
      for (int i = 0; i < GetParam(); ++i)
        ASSERT_TRUE(std::filesystem::is_empty(store.path_ + "/" + std::to_string(i)));
    }
    printf("%s: %lu requests failed in turn\n", FaultKindName(kind), fired);
    EXPECT_GE(fired, (kSteps + 1) * kItems * 3);
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, NvmeStoreFault, ::testing::Values(1, 3), ::testing::PrintToStringParamName());

TEST_P(NvmeStoreFault, EveryFailedReadIsTypedAndNamesItsPlace) {
  FailEveryRequest(FaultKind::kReadError, [](FaultyStore& store, const absl::Status& status) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("NVMe item "));
    EXPECT_THAT(status.message(), HasSubstr("at offset "));
    EXPECT_THAT(status.message(), HasSubstr(store.path_));
    EXPECT_THAT(status.message(), HasSubstr("errno 5"));
    EXPECT_EQ(store.store_->counters().read_errors, 1);
  });
}

TEST_P(NvmeStoreFault, EveryFailedWriteIsTypedAndLeavesTheCommittedState) {
  FailEveryRequest(FaultKind::kWriteError, [](FaultyStore& store, const absl::Status& status) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(" bytes at offset "));
    EXPECT_EQ(store.store_->counters().write_errors, 1);
    if (!store.store_->committed().has_value()) return;
    store.plan_.Disarm();
    EXPECT_TRUE(store.store_->Rollback().ok());
    for (uint32_t i = 0; i < kItems; ++i) {
      EXPECT_TRUE(store.Check(i, static_cast<uint64_t>(*store.store_->committed())).ok());
    }
  });
}

// A file system that allocates lazily, or a quota, can be full although the space was preallocated.
TEST_P(NvmeStoreFault, EveryWriteThatFindsTheDiskFullIsTyped) {
  FailEveryRequest(
      FaultKind::kWriteError,
      [](FaultyStore& store, const absl::Status& status) {
        EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
        EXPECT_THAT(status.message(), HasSubstr("errno 28"));
        EXPECT_THAT(status.message(), HasSubstr(store.path_));
      },
      ENOSPC);
}

TEST_P(NvmeStoreFault, EveryTransferFaultOfAReadIsHealedByTheRepeat) {
  for (const FaultKind kind : {FaultKind::kReadFlip, FaultKind::kReadShort, FaultKind::kReadMisdirected}) {
    FailEveryRequest(kind, [](FaultyStore& store, const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      EXPECT_EQ(store.store_->counters().checksum_errors, 1);
      EXPECT_EQ(store.store_->counters().retries, 1);
      EXPECT_EQ(store.store_->counters().read_errors, 0);
    });
  }
}

TEST_P(NvmeStoreFault, AFaultThatStaysIsDataLossAndNamesEverything) {
  for (const FaultKind kind : {FaultKind::kReadFlip, FaultKind::kReadShort, FaultKind::kReadMisdirected}) {
    SCOPED_TRACE(FaultKindName(kind));
    FaultyStore store("stays", GetParam());
    store.plan_.Arm({.kind = kind, .nth = 20, .count = UINT64_MAX});
    const absl::Status status = store.Train();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("NVMe item "));
    EXPECT_THAT(status.message(), HasSubstr("generation "));
    EXPECT_THAT(status.message(), HasSubstr(" bytes at offset "));
    EXPECT_THAT(status.message(), HasSubstr(store.path_));
    EXPECT_THAT(status.message(), HasSubstr("expected "));
    EXPECT_THAT(status.message(), HasSubstr("attempt 2"));
    EXPECT_EQ(store.store_->counters().checksum_errors, 2);
  }
}

// Two hundred silent faults at random places: each either shows as kDataLoss or did no harm to what is read;
// wrong bytes never come back as good, and each is noticed by the checksum before that data is used.
TEST_P(NvmeStoreFault, TwoHundredRandomSilentFaultsAreAllDetected) {
  constexpr FaultKind kKinds[] = {
      FaultKind::kReadFlip,  FaultKind::kReadShort, FaultKind::kReadMisdirected, FaultKind::kWriteFlip,
      FaultKind::kWriteTorn, FaultKind::kWriteLost, FaultKind::kWriteMisdirected};
  const uint64_t seed = std::random_device{}();
  printf("seed %lu\n", seed);
  const CounterRandom random(seed, 0);
  FaultyStore clean("clean", GetParam());
  clean.plan_.Arm({.kind = FaultKind::kReadError, .nth = UINT64_MAX});
  ASSERT_TRUE(clean.Train().ok());
  const uint64_t requests = clean.plan_.writes();
  ASSERT_EQ(clean.plan_.reads(), requests);
  int failed = 0, healed = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const FaultKind kind = kKinds[random.Below(2 * i, std::size(kKinds))];
    const uint64_t nth = random.Below(2 * i + 1, requests);
    SCOPED_TRACE("seed " + std::to_string(seed) + " injection " + std::to_string(i) + ": " +
                 FaultKindName(kind) + " at request " + std::to_string(nth));
    FaultyStore store("random", GetParam());
    store.plan_.Arm({.kind = kind, .nth = nth, .seed = i});
    const absl::Status status = store.Train();
    ASSERT_EQ(store.plan_.fired(), 1);
    ASSERT_GE(store.store_->counters().checksum_errors, 1) << "not noticed: " << status;
    if (IsReadFault(kind)) {
      ASSERT_TRUE(status.ok()) << status;
      ++healed;
    } else {
      ASSERT_TRUE(absl::IsDataLoss(status)) << status;
      ++failed;
    }
  }
  printf("200 faults: %d healed by a repeat, %d reported as data loss, 0 unnoticed\n", healed, failed);
}

// What is overwritten in place - gradients and activations on NVMe - has no older version that could be
// confused with it but its own: each silent fault of each of its writes shows at the next read.
TEST_P(NvmeStoreFault, EverySilentFaultOfAScratchWriteIsDetected) {
  constexpr ItemId kGradient{kItems}, kNeighbour{kItems + 1};
  constexpr uint64_t kWrites = 4;
  uint64_t detected = 0;
  for (const FaultKind kind :
       {FaultKind::kWriteFlip, FaultKind::kWriteTorn, FaultKind::kWriteLost, FaultKind::kWriteMisdirected}) {
    for (uint64_t nth = 0;; ++nth) {
      SCOPED_TRACE(std::string(FaultKindName(kind)) + " at request " + std::to_string(nth));
      FaultyStore store(
          "scratch", GetParam(),
          {{kGradient, kItemBytes, ItemKind::kScratch}, {kNeighbour, kItemBytes, ItemKind::kScratch}});
      store.plan_.Arm({.kind = kind, .nth = nth, .seed = nth});
      absl::Status status;
      for (uint64_t n = 0; n < kWrites && status.ok(); ++n) {
        for (const ItemId item : {kGradient, kNeighbour}) {
          ASSERT_TRUE(store.Write(static_cast<uint32_t>(item), (uint64_t{7} << 20) + n).ok());
        }
        for (const ItemId item : {kGradient, kNeighbour}) {
          if (status.ok()) status = store.Check(static_cast<uint32_t>(item), (uint64_t{7} << 20) + n);
        }
      }
      if (store.plan_.fired() == 0) {
        ASSERT_TRUE(status.ok()) << status;
        break;
      }
      ASSERT_TRUE(absl::IsDataLoss(status)) << status;
      ++detected;
    }
  }
  EXPECT_GE(detected, 4 * kWrites * 2 * 3);
}

}  // namespace
}  // namespace strata
