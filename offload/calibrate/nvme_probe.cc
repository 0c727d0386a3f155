#include "offload/calibrate/nvme_probe.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/status.h"
#include "common/thread.h"
#include "offload/io/io_factory.h"

namespace strata {
namespace {

constexpr int kLanes = 2;  // each way
constexpr int kWindow = 4;
constexpr uint64_t kBuffers = 2 * kLanes * kWindow;
constexpr uint64_t kItemMostBytes = uint64_t{6} << 20;
constexpr uint32_t kItems = 20;
constexpr uint64_t kWriteAheadItems = 0;
// A lane's items in flight are never the same twice.
static_assert(kItems / kLanes > kWindow);

constexpr double kPrepareSeconds = 0.15;  // of each of two passes
constexpr double kSlice = 0.2;

uint64_t ItemBytes(uint64_t arena_bytes) {
  return std::min(kItemMostBytes, arena_bytes / kBuffers / 4096 * 4096);
}

double Now() { return static_cast<double>(Clock::Real().MonotonicNanos()) * 1e-9; }

double ThreadCpuSeconds() {
  rusage usage;
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Speed {
  double bytes_per_second = 0;
  double cores = 0;
};

class Probe {
 public:
  Probe(PinnedArena& arena, NvmeStore& store) : store_(store), item_bytes_(ItemBytes(arena.size())) {
    for (int i = 0; i < 2 * kLanes; ++i) {
      Lane& lane = (i < kLanes ? readers_ : writers_)[i % kLanes];
      lane.index = static_cast<uint32_t>(i % kLanes);
      lane.op = i < kLanes ? IoOp::kRead : IoOp::kWrite;
      lane.memory = arena.span().subspan(i * kWindow * item_bytes_, kWindow * item_bytes_);
    }
  }

  absl::Status Run(PinnedArena& arena, MachineProfile* profile) {
    for (Lanes* lanes : {&readers_, &writers_}) {
      for (Lane& lane : *lanes) {
        STRATA_ASSIGN_OR_RETURN(lane.engine, CreateIoEngine({}));
        (void)lane.engine->RegisterBuffer(arena.span());  // optional, as in a run
        (void)store_.RegisterWith(*lane.engine);
      }
    }
    STRATA_RETURN_IF_ERROR(Prepare());
    STRATA_ASSIGN_OR_RETURN(const Speed write, Drive({&writers_}));
    STRATA_ASSIGN_OR_RETURN(const Speed read, Drive({&readers_}));
    STRATA_ASSIGN_OR_RETURN(const Speed mixed, Drive({&readers_, &writers_}));
    profile->nvme_write_bytes_per_second = write.bytes_per_second;
    profile->nvme_read_bytes_per_second = read.bytes_per_second;
    profile->nvme_mixed_bytes_per_second = mixed.bytes_per_second;
    profile->nvme_cores = std::max(0.01, (write.cores + read.cores) / 2);
    return absl::OkStatus();
  }

 private:
  struct Lane {
    uint32_t index = 0;
    IoOp op = IoOp::kRead;
    std::span<std::byte> memory;
    std::unique_ptr<IoEngine> engine;
  };
  using Lanes = std::array<Lane, kLanes>;

  // Preallocated blocks become written ones: both versions of every item, on a slow disk of only a few.
  absl::Status Prepare() {
    Lane& lane = writers_[0];
    const auto write = [&](uint32_t i, Generation generation) {
      return store_.Write(*lane.engine, ItemId{i}, generation, lane.memory.first(item_bytes_));
    };
    double begin = Now();
    for (; items_ < kItems && (items_ < kLanes || Now() - begin < kPrepareSeconds); ++items_)
      STRATA_RETURN_IF_ERROR(write(items_, Generation{0}));
    STRATA_RETURN_IF_ERROR(store_.Commit(Generation{0}));
    begin = Now();
    for (uint32_t i = 0; i < items_ && Now() - begin < kPrepareSeconds; ++i)
      STRATA_RETURN_IF_ERROR(write(i, Generation{1}));
    return absl::OkStatus();
  }

  // Both directions, or one, for a slice of time: the sum of what their lanes move.
  absl::StatusOr<Speed> Drive(const std::vector<Lanes*>& directions) {
    std::vector<absl::StatusOr<Speed>> speeds(directions.size() * kLanes, Speed());
    std::vector<Thread> threads;
    size_t at = 0;
    for (Lanes* lanes : directions) {
      for (Lane& lane : *lanes) {
        absl::StatusOr<Speed>* speed = &speeds[at++];
        threads.emplace_back("calibrate", [this, &lane, speed] { *speed = DriveLane(lane); });
      }
    }
    for (Thread& thread : threads) thread.Join();
    Speed sum;
    for (const absl::StatusOr<Speed>& speed : speeds) {
      STRATA_RETURN_IF_ERROR(speed.status());
      sum.bytes_per_second += speed->bytes_per_second;
      sum.cores += speed->cores;
    }
    return sum;
  }

  // From the end of the first operation to the end of the last one in the slice: the lane is full meanwhile.
  absl::StatusOr<Speed> DriveLane(Lane& lane) {
    const uint32_t mine = (items_ - lane.index + kLanes - 1) / kLanes;
    const uint32_t window = std::min<uint32_t>(kWindow, mine);
    NvmeLane transfers(store_, *lane.engine);
    uint32_t started = 0, ended = 0;
    const double begin = Now();
    double full = 0, cpu = 0;
    do {
      while (started < ended + window) {
        const ItemId item{lane.index + kLanes * (started % mine)};
        const std::span<std::byte> memory =
            lane.memory.subspan(started++ % window * item_bytes_, item_bytes_);
        STRATA_RETURN_IF_ERROR(lane.op == IoOp::kRead ? transfers.StartRead(item, Generation{0}, memory)
                                                      : transfers.StartWrite(item, Generation{1}, memory));
      }
      STRATA_RETURN_IF_ERROR(transfers.Finish());
      if (ended++ == 0) {
        full = Now();
        cpu = ThreadCpuSeconds();
      }
    } while (ended < 2 || Now() - begin < kSlice);
    const double seconds = Now() - full;
    return Speed{static_cast<double>((ended - 1) * item_bytes_) / seconds,
                 (ThreadCpuSeconds() - cpu) / seconds};
  }

  NvmeStore& store_;
  const uint64_t item_bytes_;
  Lanes readers_, writers_;
  uint32_t items_ = 0;  // written
};

}  // namespace

int64_t NvmeProbeFileBytes(int64_t arena_bytes) {
  return static_cast<int64_t>(ClassExtents(kItems, kWriteAheadItems) *
                              ItemBytes(static_cast<uint64_t>(arena_bytes)));
}

absl::Status ProbeNvme(const std::vector<NvmePath>& paths, PinnedArena& arena, MachineProfile* profile) {
  StoreLayout layout;
  for (uint32_t i = 0; i < kItems; ++i) layout.items.push_back({ItemId{i}, ItemBytes(arena.size())});
  layout.write_ahead_items = kWriteAheadItems;
  STRATA_ASSIGN_OR_RETURN(auto store, NvmeStore::Open({.paths = paths,
                                                       .owner = absl::StrCat("calibrate-", getpid()),
                                                       .direct = DirectIo::kAuto},
                                                      layout));
  STRATA_RETURN_IF_ERROR(Probe(arena, *store).Run(arena, profile));
  return std::move(*store).Close();
}

}  // namespace strata
