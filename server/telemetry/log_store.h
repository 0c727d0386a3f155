// LogStore: what trainers print, in segment files, one folder per job and one per output stream:
//
//   {root}/{job uid}/{attempt}.{rank}.{stdout|stderr}/{offset of its first byte, 20 digits}.log
//
// A segment is full at 1 MiB. Bytes are placed by their offset in the stream: what is there already is not
// written again, and a hole between segments is told to readers as a gap. Beyond the quota of a job its
// oldest segments go. The file system is the only record, so a restart needs no repair: a segment's length is
// what it holds, and bytes after the last acknowledged one are the same bytes the worker will send again.
#ifndef SERVER_TELEMETRY_LOG_STORE_H_
#define SERVER_TELEMETRY_LOG_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"

namespace strata::server {

struct LogStreamId {
  int32_t attempt = 0;
  int32_t rank = 0;
  std::string stream;  // stdout or stderr
  auto operator<=>(const LogStreamId&) const = default;
};

struct LogPiece {
  LogStreamId id;
  int64_t offset = 0;
  std::string data;
};

struct LogStreamInfo {
  LogStreamId id;
  int64_t begin = 0;  // first offset kept
  int64_t end = 0;    // one past the last
};

// Thread-safe; disk I/O happens under its own lock and no other.
class LogStore {
 public:
  static absl::StatusOr<std::unique_ptr<LogStore>> Open(const std::string& root, int64_t quota_bytes);

  // Durable on return. kInvalidArgument for a stream name, number or offset that cannot be.
  absl::Status Append(const std::string& uid, const std::vector<LogPiece>& pieces);
  absl::StatusOr<std::vector<LogStreamInfo>> Streams(const std::string& uid);
  // Up to `limit` bytes from the first kept byte at or after `offset`: piece.offset > offset is a gap. Empty
  // data at the end of the stream.
  absl::StatusOr<LogPiece> Read(const std::string& uid, const LogStreamId& id, int64_t offset, int64_t limit);
  // Where the last `lines` lines of the stream begin, looking back 4 MiB at most.
  absl::StatusOr<int64_t> TailOffset(const std::string& uid, const LogStreamId& id, int64_t lines);

 private:
  using Segments = std::map<int64_t, int64_t>;  // offset -> bytes
  struct JobLogs {
    std::map<LogStreamId, Segments> streams;
    int64_t bytes = 0;
    int64_t segments = 0;
  };

  LogStore(std::string root, int64_t quota_bytes) : root_(std::move(root)), quota_bytes_(quota_bytes) {}
  absl::StatusOr<JobLogs*> Load(const std::string& uid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AppendPiece(const std::string& uid, JobLogs& logs, const LogPiece& piece,
                           std::map<std::string, int>& dirty) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EnforceQuota(const std::string& uid, JobLogs& logs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<LogPiece> ReadLocked(const std::string& uid, const LogStreamId& id, int64_t offset,
                                      int64_t limit) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string StreamFolder(const std::string& uid, const LogStreamId& id) const;

  const std::string root_;
  const int64_t quota_bytes_;
  Mutex mu_;
  std::map<std::string, JobLogs> jobs_ ABSL_GUARDED_BY(mu_);  // a cache of the folders
};

}  // namespace strata::server

#endif  // SERVER_TELEMETRY_LOG_STORE_H_
