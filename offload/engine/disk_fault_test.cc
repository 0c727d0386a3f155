// Training on a disk that lies, fails, is slow or is full: every run ends in the states of a run on a sound
// disk or in an error that names the place, and resumes from its checkpoint to the same bits.
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/random.h"
#include "common/status.h"
#include "common/thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/bench/pseudo_values.h"
#include "offload/bench/synthetic_compute.h"
#include "offload/bench/synthetic_model.h"
#include "offload/engine/rank_engine.h"
#include "offload/io/faulty_io_engine.h"
#include "offload/plan/chunk_size.h"

namespace strata {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kCheckpointStep = 1;
constexpr int64_t kLastStep = 3;

using WrapFn = std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)>;

class Source : public StepSource {
 public:
  Source(const ModelLayout& layout, int64_t micro_batches)
      : scale_(1.0 / static_cast<double>(layout.seq * micro_batches)) {}

  absl::Status FillBatch(int64_t step, int64_t micro_batch, std::span<int32_t> tokens,
                         std::span<int32_t> targets) override {
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), 0);
    SyntheticCompute::MarkBatch(step, micro_batch, tokens.data());
    return absl::OkStatus();
  }
  double GradientScale(int64_t) override { return scale_; }
  AdamWHyper Hyper(int64_t, int) const override { return {.lr = 1e-3}; }
  bool OnStep(const StepResult& result) override {
    for (const LaneStats& lane : result.lanes) {
      for (int cause = 0; cause < kStallCauses; ++cause) stalls[cause] += lane.stall_nanos[cause];
    }
    if (!stop) return true;
    if (stopped_at == absl::InfiniteFuture()) stopped_at = absl::Now();
    return false;
  }

  std::array<int64_t, kStallCauses> stalls{};
  bool stop = false;
  absl::Time stopped_at = absl::InfiniteFuture();

 private:
  const double scale_;
};

struct Outcome {
  absl::Status status;
  std::string hash;  // when status is OK
  uint64_t checksum_errors = 0;
};

class DiskFaultTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(::testing::TempDir(), "/disk_fault_test_", getpid());
    nvme_ = folder_ + "/nvme";
    ASSERT_TRUE(MakeDirectories(nvme_).ok());
    auto layout = MakeSyntheticLayout({.parameters = 200'000, .layers = 3, .moments = moments(), .rows = 50});
    ASSERT_TRUE(layout.ok()) << layout.status();
    layout_ = std::make_unique<ModelLayout>(*std::move(layout));
    compute_ = std::make_unique<SyntheticCompute>(*layout_, SyntheticComputeOptions());
    request_.layout = layout_.get();
    request_.micro_batches = 2;
    request_.clip = true;
    request_.budget = {64 * kMiB, 64 * kMiB, 256 * kMiB};
    request_.params = request_.gradients = request_.optimizer = request_.activations = Tier::kNvme;
    request_.chunk_elements = ChunkElements(64 << 10);
    request_.recompute = Recompute::kNone;
    request_.mode = Mode::kForwardOverlap;
    request_.profile.f32 = request_.profile.bf16 = SyntheticRates();
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(folder_).ok()); }
  virtual Moments moments() const { return Moments::kF32; }

  absl::StatusOr<std::unique_ptr<RankEngine>> Create(const WrapFn& wrap, const std::string& owner = "job") {
    STRATA_ASSIGN_OR_RETURN(PlannedJob planned, PlanOrShortfall(request_));
    RankEngineOptions options{.read_depth = 8, .write_depth = 4};
    // Through the page cache: the faults are made above it, and a busy disk does not slow the test down.
    options.store = {.paths = {{nvme_}}, .owner = owner, .direct = DirectIo::kBuffered};
    options.train.clip_norm = 0.5;
    options.wrap_io_engine = wrap;
    return RankEngine::Create(*layout_, std::move(planned), *compute_, *math_, options);
  }

  absl::Status Initialize(RankEngine& engine) {
    return engine.Initialize([](const TensorInfo& tensor, int64_t element, std::span<float> out) {
      PseudoValues(std::hash<std::string>()(tensor.name), element, 0.05f, out);
      return absl::OkStatus();
    });
  }

  // From the checkpoint (from fresh states without one) to `last` and its hash.
  absl::Status Train(RankEngine& engine, bool resume, int64_t last, Source& source, std::string& hash) {
    TrainerCounters counters;
    if (resume) {
      STRATA_ASSIGN_OR_RETURN(const auto reader,
                              CheckpointReader::Open(checkpoint_.path, checkpoint_.digest));
      counters.iterations = counters.applied_steps = kCheckpointStep;
      STRATA_RETURN_IF_ERROR(engine.LoadCheckpoint(*reader, kCheckpointStep));
    } else {
      STRATA_RETURN_IF_ERROR(Initialize(engine));
    }
    STRATA_RETURN_IF_ERROR(engine.train().Run(source, last - counters.iterations, counters));
    STRATA_ASSIGN_OR_RETURN(hash, engine.StateHash(counters.iterations));
    return absl::OkStatus();
  }

  Outcome Run(const WrapFn& wrap, bool resume, int64_t last) {
    Outcome outcome;
    auto engine = Create(wrap);
    outcome.status = engine.status();
    if (!engine.ok()) return outcome;
    Source source(*layout_, request_.micro_batches);
    outcome.status = Train(**engine, resume, last, source, outcome.hash);
    outcome.checksum_errors = (*engine)->store()->counters().checksum_errors;
    EXPECT_TRUE((*engine)->Close().ok());
    return outcome;
  }

  // Makes the checkpoint and says what a run without faults ends in.
  std::string Expected() {
    auto engine = Create(nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return "";
    Source source(*layout_, request_.micro_batches);
    std::string hash;
    EXPECT_TRUE(Train(**engine, false, kCheckpointStep, source, hash).ok());
    CheckpointDescription description{.job_uid = "job", .step = kCheckpointStep};
    description.state.moments = layout_->moments;
    description.state.optimizer_step = kCheckpointStep;
    auto writer = CheckpointWriter::Create(FileOps::Real(), folder_ + "/checkpoints", description,
                                           (*engine)->Tensors());
    EXPECT_TRUE(writer.ok()) << writer.status();
    EXPECT_TRUE((*engine)->SaveTo(**writer, kCheckpointStep).ok());
    auto written = (*writer)->Commit();
    EXPECT_TRUE(written.ok()) << written.status();
    checkpoint_ = *written;
    EXPECT_TRUE((*engine)->Close().ok());
    const Outcome straight = Run(nullptr, false, kLastStep);
    EXPECT_TRUE(straight.status.ok()) << straight.status;
    return straight.hash;
  }

  WrapFn Faulty() {
    return [this](std::unique_ptr<IoEngine> base) { return MakeFaultyIoEngine(std::move(base), faults_); };
  }

  std::string folder_, nvme_;
  std::unique_ptr<ModelLayout> layout_;
  PlanRequest request_;
  std::unique_ptr<SyntheticCompute> compute_;
  const std::unique_ptr<StateOps> math_ = MakeCpuStateOps(1, BestIsa());
  WrittenCheckpoint checkpoint_;
  FaultPlan faults_;
};

// Whether the bytes of a write that lied were read before something else was written there.
struct Witness {
  Mutex mu;
  std::optional<IoRequest> lie;
  bool read = false;
};

class WitnessIoEngine : public IoEngine {
 public:
  WitnessIoEngine(std::unique_ptr<IoEngine> base, const FaultPlan& faults, Witness& witness)
      : base_(std::move(base)), faults_(faults), witness_(witness) {}

  void Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      MutexLock lock(witness_.mu);  // so that a new fault is this request's
      const uint64_t before = faults_.fired();
      base_->Submit({&request, 1});
      std::optional<IoRequest>& lie = witness_.lie;
      if (faults_.fired() != before) {
        if (request.op == IoOp::kWrite) lie = request;
      } else if (lie.has_value() && request.offset < lie->offset + lie->size &&
                 lie->offset < request.offset + request.size) {
        if (request.op == IoOp::kRead) witness_.read = true;
        if (request.op == IoOp::kWrite) lie.reset();
      }
    }
  }
  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    base_->Poll(min_completions, out);
  }
  size_t outstanding() const override { return base_->outstanding(); }
  unsigned depth() const override { return base_->depth(); }
  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return base_->RegisterBuffer(memory); }
  absl::Status RegisterFile(const IoFile& file) override { return base_->RegisterFile(file); }
  IoEngineReport report() const override { return base_->report(); }

 private:
  const std::unique_ptr<IoEngine> base_;
  const FaultPlan& faults_;
  Witness& witness_;
};

class LyingDiskTest : public DiskFaultTest {
 protected:
  // Draws lies until `wanted` of them were detected.
  void Check(std::span<const FaultKind> lies, int wanted) {
    const std::string expected = Expected();
    ASSERT_FALSE(HasFailure());
    faults_.Arm({.nth = ~uint64_t{0}});
    ASSERT_EQ(Run(Faulty(), true, kLastStep).hash, expected);
    const uint64_t reads = faults_.reads(), writes = faults_.writes();
    printf("a run has %d reads and %d writes\n", static_cast<int>(reads), static_cast<int>(writes));
    constexpr uint64_t kSeed = 17;
    const CounterRandom random(kSeed, 0);
    int detected = 0;
    for (uint64_t i = 0; detected < wanted && i < 4 * static_cast<uint64_t>(wanted); ++i) {
      Fault fault{.kind = lies[i % lies.size()], .seed = i};
      fault.nth = random.Below(i, IsReadFault(fault.kind) ? reads : writes);
      // A read's lie that is not told twice is healed by the second read; one that stays is an error.
      if (IsReadFault(fault.kind) && i / lies.size() % 2 == 0) fault.count = 1000;
      SCOPED_TRACE(absl::StrCat(FaultKindName(fault.kind), " ", fault.nth, ", seed ", kSeed, ", draw ", i));
      detected += CheckOne(fault, expected) ? 1 : 0;
      if (HasFatalFailure()) return;
    }
    for (const FaultKind kind : lies) {
      const Tally& tally = tallies_[kind];
      printf("%s: %d errors, %d healed by a second read; harmless: %d never read, %d with the right bytes\n",
             FaultKindName(kind), tally.errors, tally.healed, tally.unread, tally.same);
      EXPECT_GT(tally.errors, 0) << FaultKindName(kind);
    }
    printf("%d of %d detected\n", detected, wanted);
    EXPECT_EQ(detected, wanted);
  }

 private:
  struct Tally {
    int errors = 0, healed = 0, unread = 0, same = 0;
  };

  // True: the lie was detected. False: it was never told or did no harm.
  bool CheckOne(const Fault& fault, const std::string& expected) {
    Tally& tally = tallies_[fault.kind];
    Witness witness;
    faults_.Arm(fault);
    const Outcome outcome = Run(
        [&](std::unique_ptr<IoEngine> base) {
          return std::make_unique<WitnessIoEngine>(MakeFaultyIoEngine(std::move(base), faults_), faults_,
                                                   witness);
        },
        true, kLastStep);
    if (faults_.fired() == 0) return false;
    if (outcome.status.ok()) {
      EXPECT_EQ(outcome.hash, expected) << "wrong bytes were used";
      if (outcome.checksum_errors > 0) {
        ++tally.healed;
        return true;
      }
      ++(IsReadFault(fault.kind) || witness.read ? tally.same : tally.unread);
      // A lost or torn write may leave what was there and was the same; a flipped bit is never right.
      EXPECT_FALSE(witness.read && fault.kind == FaultKind::kWriteFlip) << "wrong bytes passed for good";
      EXPECT_NE(fault.kind, FaultKind::kReadFlip) << "wrong bytes passed for good";
      return false;
    }
    ++tally.errors;
    // What a misdirected write has hit is not known to the witness.
    EXPECT_TRUE(witness.read || IsReadFault(fault.kind) || fault.kind == FaultKind::kWriteMisdirected);
    EXPECT_TRUE(absl::IsDataLoss(outcome.status)) << outcome.status;
    // By the store: SyntheticCompute would have used the bytes already.
    EXPECT_THAT(std::string(outcome.status.message()),
                AllOf(HasSubstr(nvme_), HasSubstr("checksum of"), HasSubstr("at offset ")));
    const Outcome again = Run(nullptr, true, kLastStep);
    EXPECT_TRUE(again.status.ok()) << again.status;
    EXPECT_EQ(again.hash, expected);
    return true;
  }

  std::map<FaultKind, Tally> tallies_;
};

TEST_F(LyingDiskTest, EveryLieOfAReadIsDetectedAndTheCheckpointGivesTheSameStates) {
  Check(std::array{FaultKind::kReadFlip, FaultKind::kReadShort, FaultKind::kReadMisdirected}, 80);
}

TEST_F(LyingDiskTest, EveryWriteOfWrongBytesIsDetectedAndTheCheckpointGivesTheSameStates) {
  Check(std::array{FaultKind::kWriteFlip, FaultKind::kWriteTorn}, 60);
}

TEST_F(LyingDiskTest, EveryWriteThatGoesAstrayIsDetectedAndTheCheckpointGivesTheSameStates) {
  Check(std::array{FaultKind::kWriteLost, FaultKind::kWriteMisdirected}, 60);
}

class EightBitLyingDiskTest : public LyingDiskTest {
  Moments moments() const override { return Moments::kCode8; }
};

TEST_F(EightBitLyingDiskTest, EveryLieIsDetectedAndTheCheckpointGivesTheSameStates) {
  Check(std::array{FaultKind::kReadFlip, FaultKind::kReadShort, FaultKind::kReadMisdirected,
                   FaultKind::kWriteFlip, FaultKind::kWriteTorn, FaultKind::kWriteLost,
                   FaultKind::kWriteMisdirected},
        60);
}

TEST_F(DiskFaultTest, AnErrorOfAnyReadOrWriteEndsTheRunAndSaysWhere) {
  const std::string sound = Run(nullptr, false, 1).hash;
  for (const FaultKind kind : {FaultKind::kReadError, FaultKind::kWriteError}) {
    uint64_t n = 0;
    for (;; ++n) {
      faults_.Arm({.kind = kind, .nth = n});
      const Outcome outcome = Run(Faulty(), false, 1);
      if (faults_.fired() == 0) {
        EXPECT_EQ(outcome.hash, sound);
        break;
      }
      ASSERT_TRUE(absl::IsDataLoss(outcome.status))
          << FaultKindName(kind) << " " << n << ": " << outcome.status;
      ASSERT_THAT(std::string(outcome.status.message()),
                  AllOf(HasSubstr(nvme_), HasSubstr("at offset "), HasSubstr("errno 5")));
    }
    printf("%s: all %d end the run\n", FaultKindName(kind), static_cast<int>(n));
    EXPECT_GT(n, 20u);
  }
}

// What engines of a slow disk have seen.
struct SlowDisk {
  absl::Duration delay;
  std::atomic<int> engines = 0, engines_undrained = 0;
  std::atomic<int64_t> submitted = 0, completed = 0;
};

// Completions arrive `delay` after the base's.
class SlowIoEngine : public IoEngine {
 public:
  SlowIoEngine(std::unique_ptr<IoEngine> base, SlowDisk& disk) : base_(std::move(base)), disk_(disk) {
    ++disk_.engines;
  }
  ~SlowIoEngine() override {
    if (outstanding() > 0) ++disk_.engines_undrained;
    --disk_.engines;
  }
  void Submit(std::span<const IoRequest> requests) override {
    disk_.submitted += static_cast<int64_t>(requests.size());
    base_->Submit(requests);
  }
  void Poll(size_t min_completions, std::vector<IoCompletion>& out) override {
    std::vector<IoCompletion> arrived;
    base_->Poll(min_completions > held_.size() ? min_completions - held_.size() : 0, arrived);
    const absl::Time due = absl::Now() + disk_.delay;
    for (IoCompletion& completion : arrived) held_.push_back({due, std::move(completion)});
    for (size_t n = 0; !held_.empty() && (n < min_completions || held_.front().due <= absl::Now()); ++n) {
      absl::SleepFor(held_.front().due - absl::Now());
      out.push_back(std::move(held_.front().completion));
      held_.pop_front();
      ++disk_.completed;
    }
  }
  size_t outstanding() const override { return base_->outstanding() + held_.size(); }
  unsigned depth() const override { return base_->depth(); }
  absl::Status RegisterBuffer(std::span<std::byte> memory) override { return base_->RegisterBuffer(memory); }
  absl::Status RegisterFile(const IoFile& file) override { return base_->RegisterFile(file); }
  IoEngineReport report() const override { return base_->report(); }

 private:
  struct Held {
    absl::Time due;
    IoCompletion completion;
  };
  const std::unique_ptr<IoEngine> base_;
  SlowDisk& disk_;
  std::deque<Held> held_;
};

WrapFn Slow(SlowDisk& disk) {
  return [&disk](std::unique_ptr<IoEngine> base) {
    return std::make_unique<SlowIoEngine>(std::move(base), disk);
  };
}

TEST_F(DiskFaultTest, ASlowDiskShowsInTheStallsAndAStopDoesNotWaitForAllSteps) {
  request_.prefetch_depth = 1;
  constexpr int kReadStall = static_cast<int>(StallCause::kRead);
  constexpr int kWriteStall = static_cast<int>(StallCause::kWrite);
  std::array<int64_t, kStallCauses> stalls[2];
  std::string hashes[2];
  SlowDisk disks[2] = {{.delay = absl::ZeroDuration()}, {.delay = absl::Milliseconds(4)}};
  for (int slow = 0; slow < 2; ++slow) {
    auto engine = Create(Slow(disks[slow]));
    ASSERT_TRUE(engine.ok()) << engine.status();
    Source source(*layout_, request_.micro_batches);
    ASSERT_TRUE(Train(**engine, false, 2, source, hashes[slow]).ok());
    stalls[slow] = source.stalls;
    printf("delay %s: wait_read %.1f ms, wait_write %.1f ms\n",
           absl::FormatDuration(disks[slow].delay).c_str(),
           static_cast<double>(source.stalls[kReadStall]) / 1e6,
           static_cast<double>(source.stalls[kWriteStall]) / 1e6);
  }
  EXPECT_EQ(hashes[0], hashes[1]);
  EXPECT_GT(stalls[1][kReadStall], stalls[0][kReadStall] + absl::ToInt64Nanoseconds(disks[1].delay));
  EXPECT_GT(stalls[1][kWriteStall], stalls[0][kWriteStall] + absl::ToInt64Nanoseconds(disks[1].delay));

  SlowDisk disk{.delay = absl::Milliseconds(4)};
  auto engine = Create(Slow(disk));
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE(Initialize(**engine).ok());
  Source source(*layout_, request_.micro_batches);
  source.stop = true;
  TrainerCounters counters;
  ASSERT_TRUE((*engine)->train().Run(source, 1000, counters).ok());
  EXPECT_LE(counters.iterations, 2);
  const absl::Duration took = absl::Now() - source.stopped_at;
  printf("stopped %s after it was asked for\n", absl::FormatDuration(took).c_str());
  EXPECT_LT(took, absl::Seconds(2));
}

TEST_F(DiskFaultTest, ACancelledRunEndsInTheMiddleOfAStepAndWaitsForWhatIsInFlight) {
  SlowDisk disk{.delay = absl::Milliseconds(4)};
  auto engine = Create(Slow(disk));
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE(Initialize(**engine).ok());
  const int64_t before = disk.submitted;
  Source source(*layout_, request_.micro_batches);
  TrainerCounters counters;
  absl::Time asked;
  Thread canceller("canceller", [&] {
    while (disk.submitted < before + 3) absl::SleepFor(absl::Milliseconds(1));  // the first step is under way
    asked = absl::Now();
    (*engine)->train().Cancel();
  });
  const absl::Status status = (*engine)->train().Run(source, 1000, counters);
  const absl::Duration took = absl::Now() - asked;
  canceller.Join();
  printf("cancelled %s after it was asked for\n", absl::FormatDuration(took).c_str());
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(counters.iterations, 0) << "a step ends later";
  EXPECT_EQ(disk.submitted, disk.completed) << "memory that was lent is back";
  EXPECT_TRUE(absl::IsCancelled((*engine)->train().Run(source, 1, counters))) << "the states are lost";
  EXPECT_TRUE((*engine)->Close().ok());
  EXPECT_EQ(disk.engines_undrained, 0);
}

TEST_F(DiskFaultTest, ARunThatFailsWaitsForWhatIsInFlightBeforeMemoryIsFreed) {
  for (const uint64_t nth : {30, 60, 90}) {
    SlowDisk disk{.delay = absl::Milliseconds(4)};
    // The fault is below the delay: it arrives when others are in flight.
    const WrapFn slow = Slow(disk);
    faults_.Arm({.kind = FaultKind::kReadError, .nth = nth});
    auto engine = Create(
        [&](std::unique_ptr<IoEngine> base) { return slow(MakeFaultyIoEngine(std::move(base), faults_)); });
    ASSERT_TRUE(engine.ok()) << engine.status();
    Source source(*layout_, request_.micro_batches);
    std::string hash;
    EXPECT_TRUE(absl::IsDataLoss(Train(**engine, false, 3, source, hash)));
    EXPECT_EQ(faults_.fired(), 1u);
    // Run has returned: nothing may touch lent memory any more, although that memory still exists.
    EXPECT_EQ(disk.submitted, disk.completed);
    EXPECT_GT(disk.engines, 0);
    EXPECT_TRUE((*engine)->Close().ok());
    EXPECT_EQ(disk.engines, 0) << "engines go before the arenas, which the RankEngine still holds";
    EXPECT_EQ(disk.engines_undrained, 0);
  }
}

int64_t FreeBytes(const std::string& folder) {
  struct statvfs info;
  EXPECT_EQ(statvfs(folder.c_str(), &info), 0);
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

TEST_F(DiskFaultTest, ADiskThatOthersFillDoesNotHarmAJobAndRefusesTheNext) {
  const std::string sound = Run(nullptr, false, kLastStep).hash;
  // A mount of our own, gone with this process.
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", nvme_.c_str(), "tmpfs", 0, "size=48m") != 0) {
    GTEST_SKIP() << "no file system can be mounted here: " << strerror(errno);
  }
  {
    auto engine = Create(nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_GT(FreeBytes(nvme_), 0);
    EXPECT_NE(system(absl::StrCat("head -c 100M /dev/zero > '", nvme_, "/others' 2> /dev/null").c_str()), 0);
    ASSERT_EQ(FreeBytes(nvme_), 0);
    Source source(*layout_, request_.micro_batches);
    std::string hash;
    const absl::Status trained = Train(**engine, false, kLastStep, source, hash);
    EXPECT_TRUE(trained.ok()) << trained;
    EXPECT_EQ(hash, sound);
    EXPECT_EQ(FreeBytes(nvme_), 0);

    const std::string need = absl::StrCat((*engine)->store()->report().capacity_bytes);
    for (int i = 0; i < 2; ++i) {
      const std::string have = absl::StrCat(FreeBytes(nvme_));
      const auto next = Create(nullptr, "next");
      EXPECT_TRUE(absl::IsResourceExhausted(next.status())) << next.status();
      const std::string message(next.status().message());
      EXPECT_THAT(message, AllOf(HasSubstr(nvme_), HasSubstr(need), HasSubstr(have)));
      printf("refused: %s\n", message.c_str());
      // Now with some space, but too little.
      EXPECT_EQ(system(absl::StrCat("truncate -s -1M '", nvme_, "/others'").c_str()), 0);
      EXPECT_GT(FreeBytes(nvme_), 0);
    }
    EXPECT_TRUE((*engine)->Close().ok());
  }
  // A ring gives up its files a little after it is closed.
  EXPECT_EQ(umount2(nvme_.c_str(), MNT_DETACH), 0) << strerror(errno);
}

}  // namespace
}  // namespace strata
