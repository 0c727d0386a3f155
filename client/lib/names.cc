#include "client/lib/names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/random_hex.h"
#include "proto/job_spec/text.h"

namespace strata {
namespace {

bool IsId(absl::string_view text) {
  return !text.empty() && text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

// Whether `parts` are ids with the words of `pattern` between them; "" stands for any id.
bool Matches(const std::vector<absl::string_view>& parts, const std::vector<absl::string_view>& pattern) {
  if (parts.size() != pattern.size()) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (pattern[i].empty() ? !IsId(parts[i]) : parts[i] != pattern[i]) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> JobName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  if (Matches(parts, {""})) return absl::StrCat("projects/default/jobs/", text);
  if (Matches(parts, {"projects", "", "jobs", ""})) return std::string(text);
  return absl::InvalidArgumentError(
      absl::StrCat("'", PrintableExcerpt(text),
                   "' is not a job's name: write austen-ab12 or projects/default/jobs/austen-ab12"));
}

absl::StatusOr<std::string> CheckpointName(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  if (Matches(parts, {"", ""})) {
    return absl::StrCat("projects/default/jobs/", parts[0], "/checkpoints/", parts[1]);
  }
  if (Matches(parts, {"projects", "", "jobs", "", "checkpoints", ""})) return std::string(text);
  return absl::InvalidArgumentError(
      absl::StrCat("'", PrintableExcerpt(text),
                   "' is not a checkpoint's name: write austen-ab12/300, or a job's name for its latest"));
}

std::string ShortName(absl::string_view name) {
  const size_t slash = name.rfind('/');
  return std::string(slash == absl::string_view::npos ? name : name.substr(slash + 1));
}

std::string NewRequestId() { return RandomHex(32); }

}  // namespace strata
