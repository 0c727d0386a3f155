#include "server/service/names.h"

#include <openssl/sha.h>

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/service/errors.h"

namespace strata::server {
namespace {

constexpr size_t kProjectMax = 50;
constexpr size_t kJobIdMax = 63;

bool IsIdCharacter(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

}  // namespace

bool IsId(absl::string_view id, size_t size_max) {
  if (id.empty() || id.size() > size_max || !IsIdCharacter(id.front()) || !IsIdCharacter(id.back()))
    return false;
  for (const char c : id) {
    if (!IsIdCharacter(c) && c != '-') return false;
  }
  return true;
}

absl::StatusOr<std::string> ParseParent(absl::string_view parent) {
  if (parent.empty()) return std::string("projects/default");
  const std::vector<absl::string_view> parts = absl::StrSplit(parent.substr(0, 200), '/');
  if (parent.size() > 200 || parts.size() != 2 || parts[0] != "projects" || !IsId(parts[1], kProjectMax)) {
    return InvalidField("parent",
                        "must be projects/{project}, the project of [a-z0-9-], at most 50 characters");
  }
  return std::string(parent);
}

absl::StatusOr<std::string> ParseJobName(absl::string_view name) {
  if (IsId(name, kJobIdMax)) return absl::StrCat("projects/default/jobs/", name);
  const std::vector<absl::string_view> parts = absl::StrSplit(name.substr(0, 200), '/');
  if (name.size() > 200 || parts.size() != 4 || parts[0] != "projects" || parts[2] != "jobs" ||
      !IsId(parts[1], kProjectMax) || !IsId(parts[3], kJobIdMax)) {
    return InvalidField("name", "must be projects/{project}/jobs/{job}, both of [a-z0-9-]");
  }
  return std::string(name);
}

absl::StatusOr<CheckpointName> ParseCheckpointName(absl::string_view name) {
  const size_t at = name.substr(0, 300).find("/checkpoints/");
  CheckpointName result;
  if (name.size() <= 300 && at != absl::string_view::npos &&
      absl::SimpleAtoi(name.substr(at + 13), &result.step) && result.step >= 0) {
    if (absl::StatusOr<std::string> job = ParseJobName(name.substr(0, at)); job.ok()) {
      result.job = *std::move(job);
      return result;
    }
  }
  return InvalidField("name", "must be projects/{project}/jobs/{job}/checkpoints/{step}");
}

std::string MakeCheckpointName(absl::string_view job, int64_t step) {
  return absl::StrCat(job, "/checkpoints/", step);
}

std::string MakePageToken(absl::string_view list, int64_t cursor) {
  const std::string body = absl::StrCat(cursor, ".", absl::BytesToHexString(Sha256(list).substr(0, 4)));
  return absl::WebSafeBase64Escape(body);
}

absl::StatusOr<int64_t> ParsePageToken(absl::string_view list, absl::string_view token, int64_t first) {
  if (token.empty()) return first;
  std::string body;
  int64_t cursor = 0;
  if (token.size() <= 100 && absl::WebSafeBase64Unescape(token, &body)) {
    const size_t dot = body.find('.');
    if (dot != std::string::npos && absl::SimpleAtoi(body.substr(0, dot), &cursor) &&
        MakePageToken(list, cursor) == token) {
      return cursor;
    }
  }
  return InvalidField("page_token", "must be the next_page_token of the same list, unchanged");
}

absl::StatusOr<int32_t> PageSize(int32_t wanted, int32_t standard, int32_t max) {
  if (wanted < 0) return InvalidField("page_size", absl::StrCat("must be 0 to ", max));
  return wanted == 0 ? standard : std::min(wanted, max);
}

std::string Sha256(absl::string_view data) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

}  // namespace strata::server
