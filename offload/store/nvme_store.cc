// Order of events in Open, so that whatever fails or is killed leaves nothing:
//   1. check the layout and probe the paths   2. for each path: sweep what dead processes left, lock the
//   folder, make the unnamed file                          3. compare what each path has with what it
//   needs   4. preallocate
// From 2 on the space belongs to this process alone and returns to the file system when it ends, however it
// ends.
#include "offload/store/nvme_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/crc32c.h"
#include "common/status.h"
#include "offload/store/striper.h"

namespace strata {
namespace {

constexpr uint64_t kReadAttempts = 2;
constexpr size_t kZeroChunkBytes = size_t{1} << 20;

struct FreeDeleter {
  void operator()(std::byte* data) const { free(data); }
};

std::string Amount(uint64_t bytes) {
  return absl::StrCat(bytes, " bytes (", FormatBytes(static_cast<int64_t>(bytes)), ")");
}

// The checksum starts over whose bytes these are, so that bytes that are right, but of another item or of
// another generation, do not pass.
uint32_t ChecksumSeed(ItemId item, Generation generation, uint64_t size) {
  const uint64_t header[] = {static_cast<uint64_t>(item), static_cast<uint64_t>(generation), size};
  return Crc32c(header, sizeof(header));
}

// What a path has to hold, and what its file system had free when that was looked up.
struct Space {
  std::string folder;
  uint64_t need = 0, have = 0;
};

absl::Status NoSpace(std::span<const Space> paths) {
  std::vector<std::string> parts;
  for (const Space& path : paths) {
    parts.push_back(
        absl::StrCat("in ", path.folder, " needs ", Amount(path.need), ", there are ", Amount(path.have)));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the NVMe store ", absl::StrJoin(parts, "; "), ": free space, or lower memory.nvme"));
}

// Allocates blocks by writing zeros, where the file system has no fallocate (NFS). False: the disk is full.
absl::StatusOr<bool> FillWithZeros(int fd, const Space& space) {
  const std::unique_ptr<std::byte, FreeDeleter> zeros(
      static_cast<std::byte*>(aligned_alloc(kStoreBlockBytes, kZeroChunkBytes)));
  if (zeros == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("no memory to fill the file in ", space.folder));
  memset(zeros.get(), 0, kZeroChunkBytes);
  for (uint64_t offset = 0; offset < space.need;) {
    const size_t size = std::min<uint64_t>(kZeroChunkBytes, space.need - offset);
    const ssize_t written = pwrite(fd, zeros.get(), size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0 || (written < 0 && (errno == ENOSPC || errno == EDQUOT))) return false;
    if (written < 0)
      return ErrnoStatus(errno, absl::StrCat("allocating ", Amount(space.need), " in ", space.folder));
    offset += static_cast<uint64_t>(written);
  }
  return true;
}

// False: the disk is full.
absl::StatusOr<bool> Preallocate(int fd, const Space& space) {
  if (space.need == 0) return true;
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(space.need));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return true;
  if (errno == ENOSPC || errno == EDQUOT) return false;
  if (errno == EOPNOTSUPP) return FillWithZeros(fd, space);
  return ErrnoStatus(errno, absl::StrCat("preallocating ", Amount(space.need), " in ", space.folder));
}

// Compares first, or others would see a full disk for a moment. Paths on one file system share what it has.
absl::Status PreallocateAll(std::span<const std::unique_ptr<IoFile>> files, std::span<Space> spaces) {
  std::map<dev_t, uint64_t> needs;
  std::vector<dev_t> devices;
  for (size_t i = 0; i < files.size(); ++i) {
    struct statvfs fs;
    struct stat info;
    if (fstatvfs(files[i]->fd(), &fs) != 0 || fstat(files[i]->fd(), &info) != 0)
      return ErrnoStatus(errno, absl::StrCat("statvfs of ", spaces[i].folder));
    spaces[i].have = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
    devices.push_back(info.st_dev);
    needs[info.st_dev] += spaces[i].need;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (needs[devices[i]] > spaces[i].have) return NoSpace(spaces);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    STRATA_ASSIGN_OR_RETURN(const bool enough, Preallocate(files[i]->fd(), spaces[i]));
    if (!enough) return NoSpace(spaces);
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const NvmeStoreOptions& options) {
  if (options.block_bytes == 0 || options.block_bytes % kStoreBlockBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("NVMe request size ", options.block_bytes, " is not a multiple of ", kStoreBlockBytes));
  }
  if (options.paths.empty() || options.paths.size() > kNvmePathsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.paths.size(), " NVMe paths: there must be 1 to ", kNvmePathsMax));
  }
  std::set<std::pair<dev_t, ino_t>> seen;  // one folder has many spellings
  for (const NvmePath& path : options.paths) {
    if (!IsNvmeWeight(path.weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("NVMe path ", path.path, ": weight ", path.weight, " is not ", kNvmeWeightText));
    }
    struct stat info;
    if (stat(path.path.c_str(), &info) != 0) continue;  // which Open tells
    if (!seen.insert({info.st_dev, info.st_ino}).second)
      return absl::InvalidArgumentError(absl::StrCat("NVMe path ", path.path, " is given twice"));
  }
  return absl::OkStatus();
}

absl::Status CheckBuffer(const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % kStoreBlockBytes == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("buffers of the NVMe store are aligned to ", kStoreBlockBytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeStore>> NvmeStore::Open(const NvmeStoreOptions& options,
                                                           const StoreLayout& layout, Clock& clock) {
  std::unique_ptr<NvmeStore> store(new NvmeStore(options, clock));
  STRATA_RETURN_IF_ERROR(store->OpenPaths(layout));
  return store;
}

absl::Status NvmeStore::OpenPaths(const StoreLayout& layout) {
  STRATA_RETURN_IF_ERROR(CheckOptions(options_));
  STRATA_ASSIGN_OR_RETURN(report_.capacity_bytes, CapacityBytes(layout));
  std::vector<PathInfo> probed;
  for (const NvmePath& path : options_.paths) {
    STRATA_ASSIGN_OR_RETURN(PathInfo info, ProbePath(path.path), "NVMe path, of a store that needs ",
                            report_.capacity_bytes, " bytes");
    probed.push_back(std::move(info));
  }
  for (size_t i = 0; i < probed.size(); ++i) STRATA_RETURN_IF_ERROR(OpenPath(options_.paths[i], probed[i]));
  std::vector<Space> spaces;
  const std::vector<uint64_t> needs = AssignExtents(layout);
  for (size_t i = 0; i < needs.size(); ++i) {
    report_.paths[i].capacity_bytes = needs[i];
    spaces.push_back({.folder = folders_[i].name(), .need = needs[i]});
  }
  return PreallocateAll(files_, spaces);
}

absl::Status NvmeStore::OpenPath(const NvmePath& path, const PathInfo& info) {
  const bool aligned = info.block_alignment <= kStoreBlockBytes;
  NvmePathReport report;
  report.fs_type = info.fs_type;
  report.direct = options_.direct != DirectIo::kBuffered && info.o_direct && aligned;
  if (!report.direct) {
    report.why_buffered = options_.direct == DirectIo::kBuffered ? "asked for" : info.o_direct_why_not;
    if (options_.direct == DirectIo::kRequire) {
      return absl::FailedPreconditionError(absl::StrCat(
          "NVMe path: ", report.why_buffered, "; use a path on a local disk, or do not require O_DIRECT"));
    }
  }
  STRATA_ASSIGN_OR_RETURN(const unsigned swept, SweepStaleStores(path.path), "NVMe path");
  report_.stale_folders_swept += swept;
  STRATA_ASSIGN_OR_RETURN(StoreFolder folder, StoreFolder::Lock(path.path, options_.owner), "NVMe path");
  STRATA_ASSIGN_OR_RETURN(StoreFolder::File file, folder.MakeUnnamedFile(report.direct ? O_DIRECT : 0));
  report.folder = folder.name();
  report.unnamed_file = file.unnamed;
  files_.push_back(std::make_unique<IoFile>(std::move(file.fd), absl::StrCat(folder.name(), "/extents"),
                                            report.direct, static_cast<uint32_t>(kStoreBlockBytes)));
  folders_.push_back(std::move(folder));
  report_.paths.push_back(std::move(report));
  return absl::OkStatus();
}

NvmeStore::NvmeStore(NvmeStoreOptions options, Clock& clock) : options_(std::move(options)), clock_(clock) {}

NvmeStore::~NvmeStore() = default;

absl::Status NvmeStore::Close() && {
  files_.clear();
  absl::Status first;
  for (StoreFolder& folder : folders_) {
    absl::Status status = folder.Remove();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

// Scratch extents first, then size class by size class, in order of offset (which makes a valid heap of
// free_).
std::vector<uint64_t> NvmeStore::AssignExtents(const StoreLayout& layout) {
  MutexLock lock(mu_);
  counts_.paths.resize(files_.size());
  std::vector<double> weights;
  for (const NvmePath& path : options_.paths) weights.push_back(path.weight);
  Striper striper(std::move(weights), options_.block_bytes);
  std::vector<uint64_t> ends(files_.size(), 0);
  const auto add_extent = [&](uint64_t size, uint32_t size_class) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    extents_.push_back({.size_class = size_class});
    for (const StripePiece& piece : striper.Next(size)) {
      ranges_.push_back({files_[piece.path].get(), ends[piece.path], piece.bytes});
      ends[piece.path] += piece.bytes;
    }
    first_ranges_.push_back(static_cast<uint32_t>(ranges_.size()));
  };
  first_ranges_ = {0};
  std::map<uint64_t, uint32_t> classes;  // Stored size -> class.
  std::vector<uint64_t> versioned;       // Items per class.
  for (const StoreItem& item : layout.items) {
    const uint64_t size = StoredBytes(item.bytes);
    const auto [entry, added] = classes.emplace(size, classes.size());
    if (added) versioned.push_back(0);
    index_.emplace(static_cast<uint32_t>(item.id), static_cast<uint32_t>(items_.size()));
    Item record{.id = item.id, .kind = item.kind, .stored_bytes = size, .size_class = entry->second};
    if (item.kind == ItemKind::kScratch) {
      record.scratch_extent = static_cast<uint32_t>(extents_.size());
      add_extent(size, entry->second);
    } else {
      ++versioned[entry->second];
      record.versions.reserve(4);
    }
    items_.push_back(std::move(record));
  }
  free_.resize(classes.size());
  for (const auto& [size, size_class] : classes) {
    const uint64_t count = ClassExtents(versioned[size_class], layout.write_ahead_items);
    for (uint64_t i = 0; i < count; ++i) {
      free_[size_class].push_back(static_cast<uint32_t>(extents_.size()));
      add_extent(size, size_class);
    }
  }
  STRATA_CHECK(std::accumulate(ends.begin(), ends.end(), uint64_t{0}) == report_.capacity_bytes);
  return ends;
}

std::span<const IoRange> NvmeStore::RangesOf(uint32_t extent) const {
  return std::span(ranges_).subspan(first_ranges_[extent], first_ranges_[extent + 1] - first_ranges_[extent]);
}

void NvmeStore::CountBytes(uint32_t extent, uint64_t times, uint64_t NvmePathCounters::*counter) {
  for (const IoRange& range : RangesOf(extent)) counts_.paths[PathOf(range)].*counter += times * range.bytes;
}

size_t NvmeStore::PathOf(const IoRange& range) const {
  const auto path =
      std::find_if(files_.begin(), files_.end(), [&](const auto& file) { return file.get() == range.file; });
  return static_cast<size_t>(path - files_.begin());
}

absl::Status NvmeStore::RegisterWith(IoEngine& engine) {
  for (const auto& file : files_) STRATA_RETURN_IF_ERROR(engine.RegisterFile(*file));
  return absl::OkStatus();
}

absl::Status NvmeStore::Read(IoEngine& engine, ItemId item, Generation generation, std::span<std::byte> out) {
  NvmeLane lane(*this, engine);
  STRATA_RETURN_IF_ERROR(lane.StartRead(item, generation, out));
  return lane.Finish();
}

absl::Status NvmeStore::Write(IoEngine& engine, ItemId item, Generation generation,
                              std::span<const std::byte> data) {
  NvmeLane lane(*this, engine);
  STRATA_RETURN_IF_ERROR(lane.StartWrite(item, generation, data));
  return lane.Finish();
}

absl::StatusOr<NvmeStore::ReadLease> NvmeStore::BeginRead(ItemId id, Generation generation, size_t size) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t index, Find(id));
  MutexLock lock(mu_);
  const Item& item = items_[index];
  if (size != item.stored_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(id, generation), ": a read of ", size, " bytes, it has ", item.stored_bytes));
  }
  const auto version =
      std::find_if(item.versions.begin(), item.versions.end(),
                   [generation](const Version& v) { return v.complete && v.generation == generation; });
  if (version == item.versions.end()) {
    std::vector<std::string> there;
    for (const Version& v : item.versions) {
      if (v.complete) there.push_back(absl::StrCat(static_cast<uint64_t>(v.generation)));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(id, generation), ": cannot be read, ",
                     there.empty() ? "nothing is there"
                                   : absl::StrCat("there are generations ", absl::StrJoin(there, ", "))));
  }
  ++extents_[version->extent].readers;
  return ReadLease{version->extent, version->crc};
}

void NvmeStore::EndRead(const ReadLease& lease, const Cost& cost, bool ok) {
  MutexLock lock(mu_);
  Extent& extent = extents_[lease.extent];
  --extent.readers;
  if (extent.readers == 0 && extent.retired) {
    extent.retired = false;
    FreeExtent(lease.extent);
  }
  CountBytes(lease.extent, cost.transfers, &NvmePathCounters::read_bytes);
  counts_.retries += cost.transfers - 1;
  counts_.checksum_errors += cost.checksum_errors;
  ++(ok ? counts_.reads : counts_.read_errors);
}

absl::StatusOr<NvmeStore::WriteLease> NvmeStore::BeginWrite(ItemId id, Generation generation, size_t size) {
  STRATA_ASSIGN_OR_RETURN(const uint32_t index, Find(id));
  MutexLock lock(mu_);
  Item& item = items_[index];
  if (size != item.stored_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(id, generation), ": a write of ", size, " bytes, it has ", item.stored_bytes));
  }
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat(Describe(id, generation), ": cannot be written, ", why));
  };
  Version* last = item.versions.empty() ? nullptr : &item.versions.back();
  const bool in_place =
      last != nullptr && (item.kind == ItemKind::kScratch || last->generation == generation);
  if (item.kind == ItemKind::kVersioned) {
    if (committed_.has_value() && generation <= *committed_) {
      return refuse(absl::StrCat("generation ", static_cast<uint64_t>(*committed_), " is committed"));
    }
    if (last != nullptr && generation < last->generation) {
      return refuse(absl::StrCat("generation ", static_cast<uint64_t>(last->generation), " exists"));
    }
  }
  if (in_place) {
    if (!last->complete) return refuse("another write of it is in progress");
    if (extents_[last->extent].readers > 0) return refuse("it is being read");
    last->complete = false;
    last->generation = generation;
  } else {
    uint32_t extent = item.scratch_extent;
    if (item.kind == ItemKind::kVersioned) {
      STRATA_ASSIGN_OR_RETURN(extent, TakeExtent(item, generation));
    }
    item.versions.push_back({.generation = generation, .extent = extent});
  }
  return WriteLease{index, item.versions.back().extent};
}

void NvmeStore::EndWrite(const WriteLease& lease, Generation generation, uint32_t crc, bool ok) {
  MutexLock lock(mu_);
  Item& item = items_[lease.item];
  const auto version = std::find_if(item.versions.begin(), item.versions.end(),
                                    [generation](const Version& v) { return v.generation == generation; });
  STRATA_CHECK(version != item.versions.end() && !version->complete);  // Commit and Rollback leave it alone.
  if (ok) {
    version->crc = crc;
    version->complete = true;
  } else {
    if (item.kind == ItemKind::kVersioned) FreeExtent(version->extent);
    item.versions.erase(version);
  }
  CountBytes(lease.extent, 1, &NvmePathCounters::written_bytes);
  ++(ok ? counts_.writes : counts_.write_errors);
}

absl::Status NvmeStore::Commit(Generation generation) {
  MutexLock lock(mu_);
  const auto number = static_cast<uint64_t>(generation);
  if (committed_.has_value() && generation <= *committed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("commit of generation ", number, " in ", folders_[0].name(), ": generation ",
                     static_cast<uint64_t>(*committed_), " is committed already"));
  }
  for (const Item& item : items_) {
    if (item.kind != ItemKind::kVersioned) continue;
    for (const Version& version : item.versions) {
      if (version.generation > generation || version.complete) continue;
      return absl::FailedPreconditionError(absl::StrCat("commit of generation ", number, ": ",
                                                        Describe(item.id, version.generation),
                                                        " is still being written"));
    }
  }
  for (Item& item : items_) {
    if (item.kind != ItemKind::kVersioned) continue;
    // Versions are in order of generation: the last one not newer stays, those before it go.
    size_t state = 0;
    while (state < item.versions.size() && item.versions[state].generation <= generation) ++state;
    if (state == 0) continue;
    for (size_t i = 0; i + 1 < state; ++i) RetireExtent(item.versions[i].extent);
    item.versions.erase(item.versions.begin(), item.versions.begin() + static_cast<ptrdiff_t>(state - 1));
    item.versions.front().committed = true;
  }
  committed_ = generation;
  return absl::OkStatus();
}

absl::Status NvmeStore::Rollback() {
  MutexLock lock(mu_);
  for (const Item& item : items_) {
    if (item.kind != ItemKind::kVersioned) continue;
    for (const Version& version : item.versions) {
      if (version.complete) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("rollback: ", Describe(item.id, version.generation), " is still being written"));
    }
  }
  for (Item& item : items_) {
    if (item.kind != ItemKind::kVersioned) continue;
    while (!item.versions.empty() && !item.versions.back().committed) {
      RetireExtent(item.versions.back().extent);
      item.versions.pop_back();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> NvmeStore::TakeExtent(const Item& item, Generation generation) {
  std::vector<uint32_t>& free = free_[item.size_class];
  if (free.empty()) {
    return absl::InternalError(absl::StrCat(
        Describe(item.id, generation), ": no free extent of ", item.stored_bytes,
        " bytes; the step wrote further ahead of the commit than StoreLayout::write_ahead_items allows"));
  }
  std::pop_heap(free.begin(), free.end(), std::greater<>());
  const uint32_t extent = free.back();
  free.pop_back();
  ++extents_used_;
  counts_.extents_peak = std::max(counts_.extents_peak, extents_used_);
  return extent;
}

void NvmeStore::FreeExtent(uint32_t extent) {
  std::vector<uint32_t>& free = free_[extents_[extent].size_class];
  free.push_back(extent);
  std::push_heap(free.begin(), free.end(), std::greater<>());
  --extents_used_;
}

void NvmeStore::RetireExtent(uint32_t extent) {
  if (extents_[extent].readers > 0) {
    extents_[extent].retired = true;
  } else {
    FreeExtent(extent);
  }
}

const NvmeStore::Version* NvmeStore::Newest(const Item& item) {
  for (auto version = item.versions.rbegin(); version != item.versions.rend(); ++version) {
    if (version->complete) return &*version;
  }
  return nullptr;
}

absl::StatusOr<uint32_t> NvmeStore::Find(ItemId id) const {
  const auto it = index_.find(static_cast<uint32_t>(id));
  if (it != index_.end()) return it->second;
  return absl::NotFoundError(
      absl::StrCat("NVMe item ", static_cast<uint32_t>(id), " is not in the layout of ", folders_[0].name()));
}

std::string NvmeStore::Describe(ItemId item, Generation generation) const {
  return absl::StrCat("NVMe item ", static_cast<uint32_t>(item), " generation ",
                      static_cast<uint64_t>(generation), " in ", folders_[0].name());
}

absl::StatusOr<uint64_t> NvmeStore::stored_bytes(ItemId item) const {
  STRATA_ASSIGN_OR_RETURN(const uint32_t index, Find(item));
  MutexLock lock(mu_);
  return items_[index].stored_bytes;
}

std::optional<Generation> NvmeStore::newest(ItemId item) const {
  const absl::StatusOr<uint32_t> index = Find(item);
  if (!index.ok()) return std::nullopt;
  MutexLock lock(mu_);
  const Version* version = Newest(items_[*index]);
  return version == nullptr ? std::nullopt : std::optional<Generation>(version->generation);
}

std::optional<Generation> NvmeStore::committed() const {
  MutexLock lock(mu_);
  return committed_;
}

NvmeStoreCounters NvmeStore::counters() const {
  NvmeStoreCounters result;
  {
    MutexLock lock(mu_);
    result = counts_;
  }
  for (const NvmePathCounters& path : result.paths) {
    result.read_bytes += path.read_bytes;
    result.written_bytes += path.written_bytes;
  }
  result.read_p50_nanos = read_latency_.QuantileNanos(0.5);
  result.read_p99_nanos = read_latency_.QuantileNanos(0.99);
  result.write_p50_nanos = write_latency_.QuantileNanos(0.5);
  result.write_p99_nanos = write_latency_.QuantileNanos(0.99);
  return result;
}

NvmeLane::NvmeLane(NvmeStore& store, IoEngine& engine, MemoryChecksum* checksum)
    : store_(store),
      checksum_(checksum),
      queue_(engine, store.options_.block_bytes),
      path_bytes_(store.files_.size()) {}

NvmeLane::~NvmeLane() {
  while (!transfers_.empty()) (void)Finish();
}

absl::Status NvmeLane::StartRead(ItemId item, Generation generation, std::span<std::byte> out) {
  STRATA_RETURN_IF_ERROR(CheckBuffer(out.data()));
  STRATA_ASSIGN_OR_RETURN(const NvmeStore::ReadLease lease, store_.BeginRead(item, generation, out.size()));
  Submit(transfers_.emplace_back(Transfer{.op = IoOp::kRead,
                                          .item = item,
                                          .generation = generation,
                                          .data = out,
                                          .read = lease,
                                          .start_nanos = store_.clock_.MonotonicNanos()}),
         lease.extent);
  return absl::OkStatus();
}

absl::Status NvmeLane::StartWrite(ItemId item, Generation generation, std::span<const std::byte> data) {
  STRATA_RETURN_IF_ERROR(CheckBuffer(data.data()));
  STRATA_ASSIGN_OR_RETURN(const NvmeStore::WriteLease lease,
                          store_.BeginWrite(item, generation, data.size()));
  // The queue has one kind of memory for both directions, and does not store through that of a write.
  Submit(transfers_.emplace_back(Transfer{.op = IoOp::kWrite,
                                          .item = item,
                                          .generation = generation,
                                          .data = {const_cast<std::byte*>(data.data()), data.size()},
                                          .write = lease,
                                          .start_nanos = store_.clock_.MonotonicNanos()}),
         lease.extent);
  return absl::OkStatus();
}

void NvmeLane::Submit(Transfer& transfer, uint32_t extent) {
  transfer.crc = ChecksumSeed(transfer.item, transfer.generation, transfer.data.size());
  IoPieceFn on_piece;
  if (checksum_ == nullptr) {
    on_piece = [&transfer](std::span<const std::byte> piece) {
      transfer.crc = Crc32c(piece.data(), piece.size(), transfer.crc);
    };
  }
  transfer.id = queue_.Start(transfer.op, store_.RangesOf(extent), transfer.data.data(), std::move(on_piece));
}

absl::Status NvmeLane::FinishTransfer(Transfer& transfer) {
  STRATA_RETURN_IF_ERROR(queue_.Finish(transfer.id));
  if (checksum_ == nullptr) return absl::OkStatus();
  STRATA_ASSIGN_OR_RETURN(transfer.crc, checksum_->Crc32c(transfer.data, transfer.crc));
  return absl::OkStatus();
}

absl::Status NvmeLane::Finish() {
  Transfer& transfer = transfers_.front();
  const absl::Status status = transfer.op == IoOp::kRead ? FinishRead(transfer) : FinishWrite(transfer);
  const std::string what = status.ok() ? "" : store_.Describe(transfer.item, transfer.generation);
  if (status.ok()) {
    const uint32_t extent = transfer.op == IoOp::kRead ? transfer.read.extent : transfer.write.extent;
    for (const IoRange& range : store_.RangesOf(extent))
      path_bytes_[store_.PathOf(range)] += static_cast<int64_t>(range.bytes);
  }
  transfers_.pop_front();
  return Annotate(status, what);
}

void NvmeLane::TakePathBytes(std::vector<int64_t>& bytes) {
  bytes.resize(path_bytes_.size());
  for (size_t path = 0; path < path_bytes_.size(); ++path) bytes[path] += std::exchange(path_bytes_[path], 0);
}

absl::Status NvmeLane::FinishRead(Transfer& transfer) {
  NvmeStore::Cost cost;
  absl::Status status;
  while (true) {
    status = FinishTransfer(transfer);
    ++cost.transfers;
    if (!status.ok() || transfer.crc == transfer.read.crc) break;
    ++cost.checksum_errors;
    std::vector<std::string> places;
    const IoFile* last = nullptr;
    for (const IoRange& range : store_.RangesOf(transfer.read.extent)) {
      if (places.size() == store_.files_.size() || range.file == last) continue;
      last = range.file;
      places.push_back(absl::StrCat("offset ", range.offset, " of ", range.file->path()));
    }
    status = absl::DataLossError(absl::StrCat(
        "checksum of ", transfer.data.size(), " bytes at ", absl::StrJoin(places, " and "), ": expected ",
        absl::Hex(transfer.read.crc, absl::kZeroPad8), ", found ", absl::Hex(transfer.crc, absl::kZeroPad8),
        ", attempt ", cost.transfers, "; the disk returned other bytes than were written"));
    if (cost.transfers == kReadAttempts) break;
    Submit(transfer, transfer.read.extent);
  }
  if (status.ok()) store_.read_latency_.Record(store_.clock_.MonotonicNanos() - transfer.start_nanos);
  store_.EndRead(transfer.read, cost, status.ok());
  return status;
}

absl::Status NvmeLane::FinishWrite(Transfer& transfer) {
  const absl::Status status = FinishTransfer(transfer);
  if (status.ok()) store_.write_latency_.Record(store_.clock_.MonotonicNanos() - transfer.start_nanos);
  store_.EndWrite(transfer.write, transfer.generation, transfer.crc, status.ok());
  return status;
}

}  // namespace strata
