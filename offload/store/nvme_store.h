// NvmeStore: the NVMe tier of one job (or rank), striped over one or several paths (striper.h). Versioned,
// checked, gone when the process is.
//
// Versions. Write(item, g) makes a new version; Read(item, g) returns it as long as it exists, also when a
// newer one was written (a speculative update that is redone reads the committed version again). Commit(g)
// makes the newest version of generation <= g of every item its state and frees the older ones; versions
// newer than g stay uncommitted. Rollback() frees all uncommitted ones. So a step is atomic, and step t+1 may
// read and write before Commit(t). Nothing survives the process, so nothing is ever synced.
//
// Trust. Generation and CRC-32C (over item, generation, size and the stored bytes) of every version are kept
// in RAM and checked on every read, so a flipped, torn, lost, stale or misdirected write is kDataLoss, never
// data. A read that fails the check is repeated once: if the bytes then prove right it was the transfer, not
// the disk. After any error the buffer's content is undefined.
//
// Folder: on each path <path>/strata-<owner>/, locked (flock) as long as the store is open, so a second store
// of that owner is refused and stores of other owners are independent. The file in it has no name (O_TMPFILE,
// or unlinked at once where the file system has none), so after kill -9 only an empty, unlocked folder is
// left, which the next Open on that path, or SweepStaleStores, removes; Close removes it itself. The process
// must not fork without exec.
//
// Threads: any number of threads may Read and Write at the same time, each with its own engine. The caller
// orders operations on the same item (the plan's dependencies do). Commit and Rollback come from any thread;
// they are refused while a write they would decide about is in progress.
#ifndef OFFLOAD_STORE_NVME_STORE_H_
#define OFFLOAD_STORE_NVME_STORE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "offload/io/io_engine.h"
#include "offload/io/path_probe.h"
#include "offload/io/transfer_queue.h"
#include "offload/store/latency_histogram.h"
#include "offload/store/store_folder.h"
#include "offload/store/store_layout.h"

namespace strata {

enum class DirectIo {
  kAuto,      // O_DIRECT where a probe shows that it works, else buffered; the report says why.
  kRequire,   // kFailedPrecondition with the remedy where it does not.
  kBuffered,  // Through the page cache: "read back" then proves nothing about the disk.
};

struct NvmePath {
  std::string path;  // An existing folder.
  double weight =
      1;  // IsNvmeWeight: the part of the bytes that it gets, as its speed compares with the others'.
};

// No two disks are further apart, and shares of bytes stay exact.
inline bool IsNvmeWeight(double weight) { return weight >= 1e-6 && weight <= 1e6; }
inline constexpr char kNvmeWeightText[] = "a number from 1e-6 to 1e6";

struct NvmeStoreOptions {
  std::vector<NvmePath> paths;  // 1 to kNvmePathsMax, each once.
  std::string owner;            // Job uid (and rank): 1 to 200 of [A-Za-z0-9._-], not starting with '.'.
  DirectIo direct = DirectIo::kAuto;
  size_t block_bytes = kIoBlockBytes;  // Largest single request; a multiple of 4096.
};

struct NvmePathReport {
  std::string folder;
  std::string fs_type;
  bool direct = false;
  std::string why_buffered;
  bool unnamed_file = false;  // O_TMPFILE
  uint64_t capacity_bytes = 0;
};

struct NvmeStoreReport {
  std::vector<NvmePathReport> paths;  // In the order of the options.
  uint64_t capacity_bytes = 0;        // Their sum: CapacityBytes of the layout.
  unsigned stale_folders_swept = 0;
};

struct NvmePathCounters {
  uint64_t read_bytes = 0, written_bytes = 0;
};

// Since Open. Bytes are what was asked of the kernel: stored sizes, repeats included.
struct NvmeStoreCounters {
  uint64_t read_bytes = 0, written_bytes = 0;
  std::vector<NvmePathCounters> paths;
  uint64_t reads = 0, writes = 0;  // Items, complete and correct.
  uint64_t read_errors = 0, write_errors = 0;
  uint64_t checksum_errors = 0;  // Transfers that failed the check, those healed by a repeat included.
  uint64_t retries = 0;
  uint64_t extents_peak = 0;  // Most extents in use at one time.
  int64_t read_p50_nanos = 0, read_p99_nanos = 0;
  int64_t write_p50_nanos = 0, write_p99_nanos = 0;
};

class NvmeStore {
 public:
  // Sweeps what dead processes left on the paths, locks the folders, makes the files and preallocates
  // CapacityBytes(layout) over them: all of it or nothing. kResourceExhausted names the bytes needed and
  // available on each path; kAlreadyExists: another process (or this one) has this owner's store open; else
  // the errors of ProbePath and CapacityBytes.
  static absl::StatusOr<std::unique_ptr<NvmeStore>> Open(const NvmeStoreOptions& options,
                                                         const StoreLayout& layout,
                                                         Clock& clock = Clock::Real());
  // No Read or Write is running. Removes the folders; errors of that are only visible through Close.
  ~NvmeStore();
  absl::Status Close() &&;
  NvmeStore(const NvmeStore&) = delete;
  NvmeStore& operator=(const NvmeStore&) = delete;

  // Registers the files with a lane's engine (optional, see IoEngine::RegisterFile).
  absl::Status RegisterWith(IoEngine& engine);

  // Fills `out` (exactly stored_bytes(item), aligned to 4096) with the complete version `generation` of
  // `item`; kFailedPrecondition, before any I/O, when there is none: never written, failed, overwritten
  // (scratch), freed by a commit or a rollback. kDataLoss: the bytes are wrong (names folder, offset, item,
  // expected and actual checksum).
  absl::Status Read(IoEngine& engine, ItemId item, Generation generation, std::span<std::byte> out);

  // Writes `data` (exactly stored_bytes(item), aligned to 4096; padding is stored and checked like the rest)
  // as version `generation`. Never waits for an extent: if the layout's promise is broken and none is free,
  // kInternal. Versioned items: a generation older than the newest version, or already committed, is
  // kFailedPrecondition; the same uncommitted generation again overwrites it in place. A failed write leaves
  // no version of that generation.
  absl::Status Write(IoEngine& engine, ItemId item, Generation generation, std::span<const std::byte> data);

  // kFailedPrecondition when `generation` is not newer than the last commit or a write of a generation <= it
  // is in progress; then nothing changed. Constant time per item, no I/O.
  absl::Status Commit(Generation generation);
  // kFailedPrecondition while a write of a versioned item is in progress.
  absl::Status Rollback();

  // kNotFound for an item that is not in the layout.
  absl::StatusOr<uint64_t> stored_bytes(ItemId item) const;
  // The newest generation that Read can return; nullopt when there is none (or no such item).
  std::optional<Generation> newest(ItemId item) const;
  std::optional<Generation> committed() const;  // The last commit.

  const NvmeStoreReport& report() const { return report_; }
  NvmeStoreCounters counters() const;

 private:
  friend class NvmeLane;
  struct Extent {
    uint32_t size_class;
    uint32_t readers = 0;
    bool retired = false;  // Freed by the last reader.
  };
  struct Version {
    Generation generation;
    uint32_t extent;
    uint32_t crc = 0;
    bool complete = false;  // False while being written: then it does not exist for readers.
    bool committed = false;
  };
  struct Item {
    ItemId id;
    ItemKind kind;
    uint64_t stored_bytes;
    uint32_t size_class;
    uint32_t scratch_extent = 0;
    std::vector<Version> versions;  // Oldest first; scratch items have at most one.
  };
  // What a transfer needs while the lock is not held.
  struct ReadLease {
    uint32_t extent;
    uint32_t crc;
  };
  struct WriteLease {
    uint32_t item;
    uint32_t extent;
  };
  // What a read cost.
  struct Cost {
    uint64_t transfers = 0, checksum_errors = 0;
  };

  NvmeStore(NvmeStoreOptions options, Clock& clock);
  absl::Status OpenPaths(const StoreLayout& layout);
  absl::Status OpenPath(const NvmePath& path, const PathInfo& info);
  // Returns the bytes that each path has to hold.
  std::vector<uint64_t> AssignExtents(const StoreLayout& layout);
  std::span<const IoRange> RangesOf(uint32_t extent) const;
  size_t PathOf(const IoRange& range) const;
  void CountBytes(uint32_t extent, uint64_t times, uint64_t NvmePathCounters::*counter)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begin finds or takes the extent and protects it; End makes the result known.
  absl::StatusOr<ReadLease> BeginRead(ItemId id, Generation generation, size_t size) ABSL_LOCKS_EXCLUDED(mu_);
  void EndRead(const ReadLease& lease, const Cost& cost, bool ok) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<WriteLease> BeginWrite(ItemId id, Generation generation, size_t size)
      ABSL_LOCKS_EXCLUDED(mu_);
  void EndWrite(const WriteLease& lease, Generation generation, uint32_t crc, bool ok)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<uint32_t> TakeExtent(const Item& item, Generation generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeExtent(uint32_t extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees it now, or when its last reader is done.
  void RetireExtent(uint32_t extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static const Version* Newest(const Item& item);  // Complete; nullptr when there is none.
  absl::StatusOr<uint32_t> Find(ItemId id) const;
  std::string Describe(ItemId item, Generation generation) const;

  const NvmeStoreOptions options_;
  Clock& clock_;
  // By path. All of it is fixed after Open.
  std::vector<StoreFolder> folders_;
  std::vector<std::unique_ptr<IoFile>> files_;
  NvmeStoreReport report_;
  std::vector<IoRange> ranges_;                    // Extent by extent, in order of its bytes.
  std::vector<uint32_t> first_ranges_;             // By extent, and where the last one ends.
  absl::flat_hash_map<uint32_t, uint32_t> index_;  // ItemId -> position in items_.

  mutable Mutex mu_;  // Never held during I/O.
  std::vector<Item> items_ ABSL_GUARDED_BY(mu_);
  std::vector<Extent> extents_ ABSL_GUARDED_BY(mu_);
  // Per size class, a heap with the lowest on top: what is written in a row lies in a row, and is read so in
  // the next step.
  std::vector<std::vector<uint32_t>> free_ ABSL_GUARDED_BY(mu_);
  std::optional<Generation> committed_ ABSL_GUARDED_BY(mu_);
  uint64_t extents_used_ ABSL_GUARDED_BY(mu_) = 0;
  NvmeStoreCounters counts_ ABSL_GUARDED_BY(mu_);

  LatencyHistogram read_latency_;
  LatencyHistogram write_latency_;
};

// The checksum of memory that the host does not read.
class MemoryChecksum {
 public:
  virtual ~MemoryChecksum() = default;
  // As Crc32c of common/crc32c.h, for memory that nothing writes meanwhile. Blocks.
  virtual absl::StatusOr<uint32_t> Crc32c(std::span<const std::byte> memory, uint32_t crc) = 0;
};

// A thread's reads and writes of a store, several in flight at a time on the thread's engine, finished in the
// order in which they were started. Read and Write of the store are the case of one.
class NvmeLane {
 public:
  // Nothing else uses the engine. Without `checksum` the memory of transfers is the host's. All outlive the
  // lane.
  NvmeLane(NvmeStore& store, IoEngine& engine, MemoryChecksum* checksum = nullptr);
  // Drains; what was in flight and was not finished has failed.
  ~NvmeLane();
  NvmeLane(const NvmeLane&) = delete;
  NvmeLane& operator=(const NvmeLane&) = delete;

  // As NvmeStore::Read and Write, whose checks before any I/O they make; the memory is lent until its Finish.
  absl::Status StartRead(ItemId item, Generation generation, std::span<std::byte> out);
  absl::Status StartWrite(ItemId item, Generation generation, std::span<const std::byte> data);

  size_t in_flight() const { return transfers_.size(); }
  // Does a bit of Finish's work, or waits for a request; true when Finish will not wait, but for a
  // MemoryChecksum. in_flight() > 0.
  bool Advance() { return queue_.Advance(transfers_.front().id); }
  // Waits for the oldest and returns its result. in_flight() > 0.
  absl::Status Finish();
  // Adds the bytes on each path, in the order of the options, of transfers that have succeeded since the last
  // call. A repeated read counts once.
  void TakePathBytes(std::vector<int64_t>& bytes);

 private:
  struct Transfer {
    IoOp op;
    ItemId item;
    Generation generation;
    std::span<std::byte> data;
    NvmeStore::ReadLease read;
    NvmeStore::WriteLease write;
    int64_t start_nanos;
    TransferQueue::Id id;
    uint32_t crc;  // of the bytes that Finish has seen
  };

  // Begins (or repeats) the transfer itself.
  void Submit(Transfer& transfer, uint32_t extent);
  // Ends it; `crc` is complete then.
  absl::Status FinishTransfer(Transfer& transfer);
  absl::Status FinishRead(Transfer& transfer);
  absl::Status FinishWrite(Transfer& transfer);

  NvmeStore& store_;
  MemoryChecksum* const checksum_;
  TransferQueue queue_;
  std::deque<Transfer> transfers_;  // Its elements do not move: the queue's callbacks point into them.
  std::vector<int64_t> path_bytes_;
};

}  // namespace strata

#endif  // OFFLOAD_STORE_NVME_STORE_H_
