#include "worker/agent/wear_log.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/fd.h"
#include "common/status.h"

namespace strata {
namespace {

constexpr int64_t kFileLimitBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<WearLog>> WearLog::Open(const std::string& file) {
  std::unique_ptr<WearLog> log(new WearLog(file));
  const absl::StatusOr<std::string> text = ReadFile(file, kFileLimitBytes);
  if (absl::IsNotFound(text.status())) return log;
  if (!text.ok()) return text.status();
  MutexLock lock(log->mu_);
  for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> entry =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    int64_t bytes;
    std::string path;
    if (!absl::SimpleAtoi(entry.first, &bytes) || bytes < 0 || !absl::CUnescape(entry.second, &path) ||
        path.empty())
      return absl::DataLossError(
          absl::StrCat(file, " has a line that is not \"BYTES PATH\": mend it, or remove it"));
    log->written_[path] = bytes;
  }
  return log;
}

void WearLog::Add(const std::string& path, int64_t bytes) {
  if (bytes <= 0) return;
  MutexLock lock(mu_);
  written_[path] += bytes;
  changed_ = true;
}

int64_t WearLog::Written(const std::string& path) const {
  MutexLock lock(mu_);
  const auto entry = written_.find(path);
  return entry == written_.end() ? 0 : entry->second;
}

absl::Status WearLog::Save() {
  std::string text;
  {
    MutexLock lock(mu_);
    if (!std::exchange(changed_, false)) return absl::OkStatus();
    for (const auto& [path, bytes] : written_) absl::StrAppend(&text, bytes, " ", absl::CEscape(path), "\n");
  }
  absl::Status status = WriteFileDurably(file_, text);
  if (!status.ok()) {
    MutexLock lock(mu_);
    changed_ = true;
  }
  return status;
}

}  // namespace strata
