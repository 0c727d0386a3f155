// Order of events in Open, so that whatever fails or is killed leaves nothing:
//   1. check the layout and probe the path   2. sweep what dead processes left   3. lock the folder
//   4. make the unnamed file                 5. preallocate it
// From 4 on the space belongs to this process alone and returns to the file system when it ends, however it
// ends.
#include "offload/store/nvme_store.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/check.h"
#include "common/crc32c.h"
#include "common/status.h"
#include "offload/io/path_probe.h"

namespace strata {
namespace {

constexpr int kReadAttempts = 2;
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

absl::Status NoSpace(const std::string& folder, uint64_t need, uint64_t have) {
  return absl::ResourceExhaustedError(absl::StrCat("the NVMe store in ", folder, " needs ", Amount(need),
                                                   ", there are ", Amount(have),
                                                   ": free space, or lower memory.nvme"));
}

// Allocates blocks by writing zeros, where the file system has no fallocate (NFS).
absl::Status FillWithZeros(int fd, uint64_t bytes, const std::string& folder, uint64_t have) {
  const std::unique_ptr<std::byte, FreeDeleter> zeros(
      static_cast<std::byte*>(aligned_alloc(kStoreBlockBytes, kZeroChunkBytes)));
  if (zeros == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("no memory to fill the file in ", folder));
  memset(zeros.get(), 0, kZeroChunkBytes);
  for (uint64_t offset = 0; offset < bytes;) {
    const size_t size = std::min<uint64_t>(kZeroChunkBytes, bytes - offset);
    const ssize_t written = pwrite(fd, zeros.get(), size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written == 0 || (written < 0 && (errno == ENOSPC || errno == EDQUOT)))
      return NoSpace(folder, bytes, have);
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("allocating ", Amount(bytes), " in ", folder));
    offset += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::Status Preallocate(int fd, uint64_t bytes, const std::string& folder) {
  if (bytes == 0) return absl::OkStatus();
  struct statvfs fs;
  if (fstatvfs(fd, &fs) != 0) return ErrnoStatus(errno, absl::StrCat("statvfs of ", folder));
  const uint64_t have = static_cast<uint64_t>(fs.f_bavail) * fs.f_frsize;
  if (bytes > have) return NoSpace(folder, bytes, have);  // Else others would see a full disk for a moment.
  int result;
  do {
    result = fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return absl::OkStatus();
  if (errno == ENOSPC || errno == EDQUOT) return NoSpace(folder, bytes, have);
  if (errno == EOPNOTSUPP) return FillWithZeros(fd, bytes, folder, have);
  return ErrnoStatus(errno, absl::StrCat("preallocating ", Amount(bytes), " in ", folder));
}

absl::Status CheckBuffer(const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % kStoreBlockBytes == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("buffers of the NVMe store are aligned to ", kStoreBlockBytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeStore>> NvmeStore::Open(const NvmeStoreOptions& options,
                                                           const StoreLayout& layout, Clock& clock) {
  STRATA_ASSIGN_OR_RETURN(const uint64_t capacity, CapacityBytes(layout));
  if (options.block_bytes == 0 || options.block_bytes % kStoreBlockBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("NVMe request size ", options.block_bytes, " is not a multiple of ", kStoreBlockBytes));
  }
  STRATA_ASSIGN_OR_RETURN(const PathInfo info, ProbePath(options.path), "NVMe path");
  const bool aligned = info.block_alignment <= kStoreBlockBytes;
  const bool direct = options.direct != DirectIo::kBuffered && info.o_direct && aligned;
  std::string why_buffered;
  if (!direct) {
    why_buffered = options.direct == DirectIo::kBuffered ? "asked for" : info.o_direct_why_not;
    if (options.direct == DirectIo::kRequire) {
      return absl::FailedPreconditionError(absl::StrCat(
          "NVMe path: ", why_buffered, "; use a path on a local disk, or do not require O_DIRECT"));
    }
  }
  STRATA_ASSIGN_OR_RETURN(const unsigned swept, SweepStaleStores(options.path), "NVMe path");
  STRATA_ASSIGN_OR_RETURN(StoreFolder folder, StoreFolder::Lock(options.path, options.owner), "NVMe path");
  STRATA_ASSIGN_OR_RETURN(StoreFolder::File file, folder.MakeUnnamedFile(direct ? O_DIRECT : 0));
  STRATA_RETURN_IF_ERROR(Preallocate(file.fd.get(), capacity, folder.name()));

  std::unique_ptr<NvmeStore> store(new NvmeStore(options, clock, std::move(folder)));
  store->report_ = {store->folder_.name(), info.fs_type, direct, why_buffered, file.unnamed, capacity, swept};
  store->file_ = std::make_unique<IoFile>(std::move(file.fd), absl::StrCat(store->folder_.name(), "/extents"),
                                          direct, static_cast<uint32_t>(kStoreBlockBytes));
  store->AssignExtents(layout);
  return store;
}

NvmeStore::NvmeStore(NvmeStoreOptions options, Clock& clock, StoreFolder folder)
    : options_(std::move(options)), clock_(clock), folder_(std::move(folder)) {}

NvmeStore::~NvmeStore() = default;

absl::Status NvmeStore::Close() && {
  file_.reset();
  return folder_.Remove();
}

// Scratch extents first, then size class by size class, in order of offset (which makes a valid heap of
// free_).
void NvmeStore::AssignExtents(const StoreLayout& layout) {
  MutexLock lock(mu_);
  uint64_t offset = 0;
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
      extents_.push_back({.offset = offset, .size_class = entry->second});
      offset += size;
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
      extents_.push_back({.offset = offset, .size_class = size_class});
      offset += size;
    }
  }
  STRATA_CHECK(offset == report_.capacity_bytes);
}

absl::Status NvmeStore::RegisterWith(IoEngine& engine) { return engine.RegisterFile(*file_); }

absl::Status NvmeStore::Read(IoEngine& engine, ItemId item, Generation generation, std::span<std::byte> out) {
  STRATA_RETURN_IF_ERROR(CheckBuffer(out.data()));
  const int64_t start = clock_.MonotonicNanos();
  STRATA_ASSIGN_OR_RETURN(const ReadLease lease, BeginRead(item, generation, out.size()));
  absl::Status status;
  Transfer transfer;
  for (int attempt = 1; attempt <= kReadAttempts; ++attempt) {
    uint32_t crc = ChecksumSeed(item, generation, out.size());
    status = ReadExact(
        engine, *file_, lease.offset, out, options_.block_bytes,
        [&crc](std::span<const std::byte> piece) { crc = Crc32c(piece.data(), piece.size(), crc); });
    transfer.bytes += out.size();
    transfer.retries += attempt > 1;
    if (!status.ok() || crc == lease.crc) break;
    ++transfer.checksum_errors;
    status = absl::DataLossError(absl::StrCat(
        "checksum of ", out.size(), " bytes at offset ", lease.offset, " of ", file_->path(), ": expected ",
        absl::Hex(lease.crc, absl::kZeroPad8), ", found ", absl::Hex(crc, absl::kZeroPad8), ", attempt ",
        attempt, "; the disk returned other bytes than were written"));
  }
  if (status.ok()) read_latency_.Record(clock_.MonotonicNanos() - start);
  EndRead(lease, transfer, status.ok());
  return Annotate(status, status.ok() ? "" : Describe(item, generation));
}

absl::Status NvmeStore::Write(IoEngine& engine, ItemId item, Generation generation,
                              std::span<const std::byte> data) {
  STRATA_RETURN_IF_ERROR(CheckBuffer(data.data()));
  const int64_t start = clock_.MonotonicNanos();
  STRATA_ASSIGN_OR_RETURN(const WriteLease lease, BeginWrite(item, generation, data.size()));
  uint32_t crc = ChecksumSeed(item, generation, data.size());
  const absl::Status status =
      WriteExact(engine, *file_, lease.offset, data, options_.block_bytes,
                 [&crc](std::span<const std::byte> piece) { crc = Crc32c(piece.data(), piece.size(), crc); });
  if (status.ok()) write_latency_.Record(clock_.MonotonicNanos() - start);
  EndWrite(lease, generation, data.size(), crc, status.ok());
  return Annotate(status, status.ok() ? "" : Describe(item, generation));
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
  Extent& extent = extents_[version->extent];
  ++extent.readers;
  return ReadLease{version->extent, version->crc, extent.offset};
}

void NvmeStore::EndRead(const ReadLease& lease, const Transfer& transfer, bool ok) {
  MutexLock lock(mu_);
  Extent& extent = extents_[lease.extent];
  --extent.readers;
  if (extent.readers == 0 && extent.retired) {
    extent.retired = false;
    FreeExtent(lease.extent);
  }
  counts_.read_bytes += transfer.bytes;
  counts_.retries += transfer.retries;
  counts_.checksum_errors += transfer.checksum_errors;
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
  return WriteLease{index, extents_[item.versions.back().extent].offset};
}

void NvmeStore::EndWrite(const WriteLease& lease, Generation generation, size_t size, uint32_t crc, bool ok) {
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
  counts_.written_bytes += size;
  ++(ok ? counts_.writes : counts_.write_errors);
}

absl::Status NvmeStore::Commit(Generation generation) {
  MutexLock lock(mu_);
  const auto number = static_cast<uint64_t>(generation);
  if (committed_.has_value() && generation <= *committed_) {
    return absl::FailedPreconditionError(absl::StrCat("commit of generation ", number, " in ", folder_.name(),
                                                      ": generation ", static_cast<uint64_t>(*committed_),
                                                      " is committed already"));
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
      absl::StrCat("NVMe item ", static_cast<uint32_t>(id), " is not in the layout of ", folder_.name()));
}

std::string NvmeStore::Describe(ItemId item, Generation generation) const {
  return absl::StrCat("NVMe item ", static_cast<uint32_t>(item), " generation ",
                      static_cast<uint64_t>(generation), " in ", folder_.name());
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
  result.read_p50_nanos = read_latency_.QuantileNanos(0.5);
  result.read_p99_nanos = read_latency_.QuantileNanos(0.99);
  result.write_p50_nanos = write_latency_.QuantileNanos(0.5);
  result.write_p99_nanos = write_latency_.QuantileNanos(0.99);
  return result;
}

}  // namespace strata
