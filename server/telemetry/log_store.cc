#include "server/telemetry/log_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/fd.h"
#include "common/status.h"

namespace strata::server {
namespace {

constexpr int64_t kSegmentBytes = int64_t{1} << 20;
constexpr int64_t kTailBytes = int64_t{4} << 20;
constexpr int64_t kOffsetMax = int64_t{1} << 60;
constexpr int64_t kSegmentsMax = 4096;  // per job: a sender of holes cannot fill the disk with inodes
constexpr size_t kStreamsMax = 1024;    // per job
constexpr size_t kOpenFilesMax = 64;    // of one batch
constexpr size_t kJobsCached = 512;

std::string SegmentName(int64_t offset) { return absl::StrFormat("%020d.log", offset); }

bool ParseSegmentName(const std::string& name, int64_t* offset) {
  return name.size() == 24 && name.compare(20, 4, ".log") == 0 &&
         absl::SimpleAtoi(name.substr(0, 20), offset);
}

bool ParseStreamName(const std::string& name, LogStreamId* id) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  if (parts.size() != 3) return false;
  id->stream = parts[2];
  return absl::SimpleAtoi(parts[0], &id->attempt) && absl::SimpleAtoi(parts[1], &id->rank);
}

absl::Status CheckId(const LogStreamId& id, int64_t offset) {
  if (id.stream != "stdout" && id.stream != "stderr") {
    return absl::InvalidArgumentError("log stream: must be stdout or stderr");
  }
  if (id.attempt < 1 || id.rank < 0 || offset < 0 || offset > kOffsetMax) {
    return absl::InvalidArgumentError(absl::StrCat("log position: attempt ", id.attempt, ", rank ", id.rank,
                                                   ", offset ", offset, " cannot be"));
  }
  return absl::OkStatus();
}

// Uids are made by the coordinator; this only keeps a damaged one from naming another folder.
bool IsPlainName(const std::string& uid) {
  return !uid.empty() && uid.size() <= 100 && uid.find('/') == std::string::npos && uid[0] != '.';
}

// Makes what was written durable and closes the files; the first error.
absl::Status SyncAll(std::map<std::string, int>& dirty) {
  absl::Status status;
  for (const auto& [path, raw] : dirty) {
    const Fd fd(raw);
    if (fdatasync(fd.get()) != 0 && status.ok())
      status = ErrnoStatus(errno, absl::StrCat("fdatasync ", path));
  }
  dirty.clear();
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogStore>> LogStore::Open(const std::string& root, int64_t quota_bytes) {
  STRATA_RETURN_IF_ERROR(MakeDirectories(root));
  return std::unique_ptr<LogStore>(new LogStore(root, quota_bytes));
}

std::string LogStore::StreamFolder(const std::string& uid, const LogStreamId& id) const {
  return absl::StrCat(root_, "/", uid, "/", id.attempt, ".", id.rank, ".", id.stream);
}

absl::StatusOr<LogStore::JobLogs*> LogStore::Load(const std::string& uid) {
  if (!IsPlainName(uid)) return absl::InvalidArgumentError("not a job uid");
  if (const auto found = jobs_.find(uid); found != jobs_.end()) return &found->second;
  if (jobs_.size() >= kJobsCached) jobs_.clear();
  JobLogs logs;
  std::error_code error;
  const std::string folder = absl::StrCat(root_, "/", uid);
  for (std::filesystem::directory_iterator stream(folder, error), end; !error && stream != end;
       stream.increment(error)) {
    LogStreamId id;
    if (!ParseStreamName(stream->path().filename().string(), &id)) continue;
    Segments& segments = logs.streams[id];
    std::error_code inner;
    for (std::filesystem::directory_iterator file(stream->path(), inner); !inner && file != end;
         file.increment(inner)) {
      int64_t offset = 0;
      if (!ParseSegmentName(file->path().filename().string(), &offset)) continue;
      std::error_code size_error;
      const int64_t size = static_cast<int64_t>(file->file_size(size_error));
      if (size_error) continue;
      segments[offset] = size;
      logs.bytes += size;
      ++logs.segments;
    }
    if (inner) return ErrnoStatus(inner.value(), absl::StrCat("listing ", stream->path().string()));
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return ErrnoStatus(error.value(), absl::StrCat("listing ", folder));
  }
  return &(jobs_[uid] = std::move(logs));
}

absl::Status LogStore::Append(const std::string& uid, const std::vector<LogPiece>& pieces) {
  for (const LogPiece& piece : pieces) {
    STRATA_RETURN_IF_ERROR(CheckId(piece.id, piece.offset));
  }
  MutexLock lock(mu_);
  STRATA_ASSIGN_OR_RETURN(JobLogs * logs, Load(uid));
  std::map<std::string, int> dirty;  // path -> fd
  absl::Status status;
  for (const LogPiece& piece : pieces) {
    status = AppendPiece(uid, *logs, piece, dirty);
    if (!status.ok()) break;
  }
  const absl::Status synced = SyncAll(dirty);
  if (status.ok()) status = synced;
  // After an error the files are the truth again.
  if (!status.ok()) {
    jobs_.erase(uid);
    return status;
  }
  EnforceQuota(uid, *logs);
  return absl::OkStatus();
}

absl::Status LogStore::AppendPiece(const std::string& uid, JobLogs& logs, const LogPiece& piece,
                                   std::map<std::string, int>& dirty) {
  if (logs.streams.count(piece.id) == 0 && logs.streams.size() >= kStreamsMax) return absl::OkStatus();
  Segments& segments = logs.streams[piece.id];
  const int64_t end = segments.empty() ? 0 : segments.rbegin()->first + segments.rbegin()->second;
  const int64_t piece_end = piece.offset + static_cast<int64_t>(piece.data.size());
  if (piece_end <= end) return absl::OkStatus();
  int64_t offset = std::max(piece.offset, end);
  absl::string_view data = absl::string_view(piece.data).substr(offset - piece.offset);
  const std::string folder = StreamFolder(uid, piece.id);
  while (!data.empty()) {
    const bool fresh = segments.empty() || offset > segments.rbegin()->first + segments.rbegin()->second ||
                       segments.rbegin()->second >= kSegmentBytes;
    const int64_t start = fresh ? offset : segments.rbegin()->first;
    const int64_t used = fresh ? 0 : segments.rbegin()->second;
    const absl::string_view part = data.substr(0, kSegmentBytes - used);
    const std::string path = absl::StrCat(folder, "/", SegmentName(start));
    if (dirty.count(path) == 0) {
      if (dirty.size() >= kOpenFilesMax) STRATA_RETURN_IF_ERROR(SyncAll(dirty));
      if (fresh) STRATA_RETURN_IF_ERROR(MakeDirectories(folder));
      STRATA_ASSIGN_OR_RETURN(Fd fd, OpenFile(path, O_WRONLY | O_CREAT));
      dirty[path] = fd.Release();
    }
    const int fd = dirty[path];
    size_t written = 0;
    while (written < part.size()) {
      const ssize_t n = pwrite(fd, part.data() + written, part.size() - written, used + written);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        const int error = n < 0 ? errno : EIO;
        // Bytes that were not acknowledged may stay or go; both are fine for who resends them.
        return ErrnoStatus(error, absl::StrCat("writing ", path, " at ", used + written));
      }
      written += n;
    }
    if (fresh) {
      ++logs.segments;
      STRATA_RETURN_IF_ERROR(SyncDirectory(folder));
    }
    segments[start] = used + static_cast<int64_t>(part.size());
    logs.bytes += static_cast<int64_t>(part.size());
    offset += static_cast<int64_t>(part.size());
    data.remove_prefix(part.size());
  }
  return absl::OkStatus();
}

void LogStore::EnforceQuota(const std::string& uid, JobLogs& logs) {
  while (logs.bytes > quota_bytes_ || logs.segments > kSegmentsMax) {
    // The oldest attempt's earliest bytes first; the newest segment of a stream stays, since it says where
    // the stream ends. Streams are in the order of their attempts.
    const LogStreamId* oldest = nullptr;
    int64_t earliest = 0;
    for (const auto& [id, segments] : logs.streams) {
      if (segments.size() < 2) continue;
      if (oldest != nullptr && (id.attempt > oldest->attempt || segments.begin()->first >= earliest))
        continue;
      oldest = &id;
      earliest = segments.begin()->first;
    }
    if (oldest == nullptr) return;
    Segments& segments = logs.streams[*oldest];
    const auto victim = segments.begin();
    (void)unlink(absl::StrCat(StreamFolder(uid, *oldest), "/", SegmentName(victim->first)).c_str());
    logs.bytes -= victim->second;
    --logs.segments;
    segments.erase(victim);
  }
}

absl::StatusOr<std::vector<LogStreamInfo>> LogStore::Streams(const std::string& uid) {
  MutexLock lock(mu_);
  STRATA_ASSIGN_OR_RETURN(JobLogs * logs, Load(uid));
  std::vector<LogStreamInfo> infos;
  for (const auto& [id, segments] : logs->streams) {
    if (segments.empty()) continue;
    infos.push_back({id, segments.begin()->first, segments.rbegin()->first + segments.rbegin()->second});
  }
  return infos;
}

absl::StatusOr<LogPiece> LogStore::Read(const std::string& uid, const LogStreamId& id, int64_t offset,
                                        int64_t limit) {
  STRATA_RETURN_IF_ERROR(CheckId(id, offset));
  MutexLock lock(mu_);
  return ReadLocked(uid, id, offset, limit);
}

absl::StatusOr<LogPiece> LogStore::ReadLocked(const std::string& uid, const LogStreamId& id, int64_t offset,
                                              int64_t limit) {
  STRATA_ASSIGN_OR_RETURN(JobLogs * logs, Load(uid));
  LogPiece piece{id, offset, ""};
  const auto stream = logs->streams.find(id);
  if (stream == logs->streams.end()) return piece;
  const Segments& segments = stream->second;
  auto segment = segments.upper_bound(offset);
  if (segment != segments.begin()) {
    const auto before = std::prev(segment);
    if (offset < before->first + before->second) segment = before;
  }
  if (segment == segments.end()) return piece;
  piece.offset = std::max(offset, segment->first);
  const int64_t within = piece.offset - segment->first;
  const std::string path = absl::StrCat(StreamFolder(uid, id), "/", SegmentName(segment->first));
  STRATA_ASSIGN_OR_RETURN(const Fd fd, OpenFile(path, O_RDONLY));
  piece.data.resize(std::min(limit, segment->second - within));
  size_t got = 0;
  while (got < piece.data.size()) {
    const ssize_t n = pread(fd.get(), piece.data.data() + got, piece.data.size() - got, within + got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path, " at ", within + got));
    if (n == 0)
      return absl::DataLossError(absl::StrCat(path, ": ends at ", within + got, ", which is too early"));
    got += n;
  }
  return piece;
}

absl::StatusOr<int64_t> LogStore::TailOffset(const std::string& uid, const LogStreamId& id, int64_t lines) {
  MutexLock lock(mu_);
  STRATA_ASSIGN_OR_RETURN(JobLogs * logs, Load(uid));
  const auto stream = logs->streams.find(id);
  if (stream == logs->streams.end() || stream->second.empty()) return 0;
  const Segments& segments = stream->second;
  const int64_t begin = segments.begin()->first;
  const int64_t end = segments.rbegin()->first + segments.rbegin()->second;
  int64_t newlines = 0;
  constexpr int64_t kBlock = 64 << 10;
  for (int64_t high = end; high > begin && end - high < kTailBytes;) {
    const int64_t low = std::max(begin, high - kBlock);
    int64_t at = low;
    std::string block;
    int64_t block_start = -1;
    while (at < high) {
      STRATA_ASSIGN_OR_RETURN(const LogPiece piece, ReadLocked(uid, id, at, high - at));
      if (piece.data.empty() || piece.offset >= high) break;
      if (block_start < 0 || piece.offset != at) {
        block.clear();  // a gap inside: lines are counted behind it
        block_start = piece.offset;
      }
      block += piece.data;
      at = piece.offset + static_cast<int64_t>(piece.data.size());
    }
    for (int64_t i = static_cast<int64_t>(block.size()) - 1; i >= 0; --i) {
      if (block[i] != '\n') continue;
      // A newline at the very end closes the last line and begins none.
      if (block_start + i + 1 == end) continue;
      if (++newlines == lines) return block_start + i + 1;
    }
    high = low;
  }
  return std::max(begin, end - kTailBytes);
}

}  // namespace strata::server
