#include "worker/agent/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/random_hex.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr int64_t kRecordLimitBytes = 4 << 20;
constexpr absl::string_view kRecordHeader = "strata-task-record 1";

absl::StatusOr<int64_t> NextIncarnation(const std::string& path, int64_t unix_seconds) {
  int64_t last = 0;
  auto text = ReadFile(path, 64);
  if (text.ok()) {
    if (!absl::SimpleAtoi(*text, &last) || last < 0) {
      return absl::DataLossError(absl::StrCat(path,
                                              " does not hold a number: remove it if no agent has used "
                                              "this folder in the future of this machine's clock"));
    }
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  return std::max(last + 1, unix_seconds);
}

// What differs in a copy of the folder. Two folders have lock files of one inode only on two file systems, so
// the machine counts too; where it has no id (as in many containers) the inode alone has to do.
absl::StatusOr<std::string> PlaceOf(const Fd& lock) {
  struct stat info = {};
  if (fstat(lock.get(), &info) != 0) return ErrnoStatus(errno, "looking at the state folder's lock");
  const auto machine = ReadFile("/etc/machine-id", 256);
  return absl::StrCat(info.st_ino, " ",
                      machine.ok() ? absl::StripAsciiWhitespace(*machine) : absl::string_view("-"));
}

// The key of the folder at `folder`, or a new one when it has none for `place`.
absl::StatusOr<std::string> TakeIdentity(const std::string& folder, const std::string& place) {
  constexpr size_t kDigits = 32;
  const std::string path = absl::StrCat(folder, "/identity");
  const auto text = ReadFile(path, 1024);
  if (text.ok()) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::StripTrailingAsciiWhitespace(*text), absl::MaxSplits(' ', 1));
    if (parts.first.size() != kDigits ||
        !std::all_of(parts.first.begin(), parts.first.end(), absl::ascii_isxdigit)) {
      return absl::DataLossError(absl::StrCat(path,
                                              " does not hold an identity: remove it; the worker then waits "
                                              "until the lease of its old one is over"));
    }
    if (parts.second == place) return std::string(parts.first);
    // Before the key is written: what a crash leaves is a copy still.
    STRATA_RETURN_IF_ERROR(RemoveTree(absl::StrCat(folder, "/tasks")));
    STRATA_RETURN_IF_ERROR(MakeDirectories(absl::StrCat(folder, "/tasks")));
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  const std::string key = RandomHex(kDigits);
  STRATA_RETURN_IF_ERROR(WriteFileDurably(path, absl::StrCat(key, " ", place, "\n")));
  return key;
}

}  // namespace

std::string TaskKey::ToString() const { return absl::StrCat(job_uid, ".", attempt, ".", rank); }

bool IsValidJobUid(absl::string_view uid) {
  return !uid.empty() && uid.size() <= 64 && std::all_of(uid.begin(), uid.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  });
}

absl::StatusOr<std::unique_ptr<StateDir>> StateDir::Open(const std::string& path, int64_t unix_seconds) {
  STRATA_RETURN_IF_ERROR(MakeDirectories(absl::StrCat(path, "/tasks")));
  STRATA_ASSIGN_OR_RETURN(Fd lock, OpenFile(absl::StrCat(path, "/lock"), O_RDWR | O_CREAT));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, " is in use by another strata_worker: stop it, or give this one its own folder"));
    }
    return ErrnoStatus(errno, absl::StrCat("locking ", path, "/lock"));
  }
  const std::string file = absl::StrCat(path, "/incarnation");
  STRATA_ASSIGN_OR_RETURN(const int64_t incarnation, NextIncarnation(file, unix_seconds));
  STRATA_RETURN_IF_ERROR(WriteFileDurably(file, absl::StrCat(incarnation)));
  STRATA_ASSIGN_OR_RETURN(const std::string place, PlaceOf(lock));
  STRATA_ASSIGN_OR_RETURN(std::string identity, TakeIdentity(path, place));
  return std::unique_ptr<StateDir>(new StateDir(path, std::move(lock), incarnation, std::move(identity)));
}

std::string FormatTaskRecord(const TaskRecord& record) {
  std::string encoded_report;
  absl::Base64Escape(record.report, &encoded_report);
  std::string scratch, kills;
  if (record.memory_kills.has_value())
    kills =
        absl::StrCat("\nkills ", record.memory_kills->count, " ", absl::CEscape(record.memory_kills->group));
  for (const std::string& folder : record.scratch)
    absl::StrAppend(&scratch, "\nscratch ", absl::CEscape(folder));
  return absl::StrCat(kRecordHeader, "\njob ", record.key.job_uid, "\nattempt ", record.key.attempt,
                      "\nrank ", record.key.rank, scratch, "\npid ", record.process.pid, "\nstart ",
                      record.process.start_ticks, "\nboot ", record.boot_id, kills, "\nreport ",
                      encoded_report, "\n");
}

absl::StatusOr<TaskRecord> ParseTaskRecord(absl::string_view text) {
  const std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  if (lines.empty() || lines[0] != kRecordHeader) return absl::DataLossError("not a task record");
  std::map<absl::string_view, absl::string_view> values;
  TaskRecord record;
  bool good = true;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(lines[i], absl::MaxSplits(' ', 1));
    values.emplace(entry.first, entry.second);
    if (entry.first != "scratch") continue;
    std::string& folder = record.scratch.emplace_back();
    good = good && absl::CUnescape(entry.second, &folder) && absl::StartsWith(folder, "/");
  }
  record.key.job_uid = std::string(values["job"]);
  record.boot_id = std::string(values["boot"]);
  if (const auto kills = values.find("kills"); kills != values.end()) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(kills->second, absl::MaxSplits(' ', 1));
    MemoryKills& read = record.memory_kills.emplace();
    good = good && absl::SimpleAtoi(parts.first, &read.count) && absl::CUnescape(parts.second, &read.group);
  }
  if (!good || record.scratch.empty() || !IsValidJobUid(record.key.job_uid) ||
      !absl::SimpleAtoi(values["attempt"], &record.key.attempt) ||
      !absl::SimpleAtoi(values["rank"], &record.key.rank) ||
      !absl::SimpleAtoi(values["pid"], &record.process.pid) || record.process.pid < 0 ||
      !absl::SimpleAtoi(values["start"], &record.process.start_ticks) ||
      !absl::Base64Unescape(values["report"], &record.report)) {
    return absl::DataLossError("a task record with a missing or bad value");
  }
  return record;
}

absl::Status StateDir::Write(const TaskRecord& record) const {
  return WriteFileDurably(absl::StrCat(path_, "/tasks/", record.key.ToString()), FormatTaskRecord(record));
}

absl::Status StateDir::Remove(const TaskKey& key) const {
  const std::string file = absl::StrCat(path_, "/tasks/", key.ToString());
  if (unlink(file.c_str()) != 0 && errno != ENOENT)
    return ErrnoStatus(errno, absl::StrCat("removing ", file));
  // Not fsynced: a record that comes back after a power loss is reported once more, which is harmless.
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TaskRecord>> StateDir::ReadAll(std::vector<std::string>* unreadable) const {
  std::vector<TaskRecord> records;
  const std::string folder = absl::StrCat(path_, "/tasks");
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder));
  for (const std::string& name : names) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (absl::EndsWith(file, ".tmp")) {
      (void)unlink(file.c_str());  // a write that a crash cut off before its rename
      continue;
    }
    auto text = ReadFile(file, kRecordLimitBytes);
    auto record = text.ok() ? ParseTaskRecord(*text) : absl::StatusOr<TaskRecord>(text.status());
    if (record.ok()) {
      records.push_back(*std::move(record));
    } else {
      unreadable->push_back(absl::StrCat(file, ": ", record.status().ToString()));
      (void)unlink(file.c_str());
    }
  }
  return records;
}

}  // namespace strata
