#include "proto/job_spec/violation.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace strata {

void SourceMap::Add(const std::string& field, Position position) { positions_.emplace(field, position); }

SourceMap::Position SourceMap::Find(const std::string& field) const {
  std::string path = field;
  while (true) {
    const auto found = positions_.find(path);
    if (found != positions_.end()) return found->second;
    const size_t end = path.find_last_of(".[");
    if (path.empty()) return {};
    path.resize(end == std::string::npos ? 0 : end);
  }
}

void SourceMap::Locate(std::vector<FieldViolation>& violations) const {
  for (FieldViolation& violation : violations) {
    if (violation.line > 0) continue;
    const Position position = Find(violation.field);
    violation.line = position.line;
    violation.column = position.column;
  }
}

FieldViolation ViolationOf(absl::string_view message) {
  const size_t colon = std::min(message.find(": "), message.size());
  const absl::string_view field = message.substr(0, colon);
  const bool is_path = colon < message.size() && !field.empty() && absl::ascii_isalpha(field[0]) &&
                       std::all_of(field.begin(), field.end(), [](char c) {
                         return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '[' || c == ']';
                       });
  if (!is_path) return {.description = std::string(message)};
  return {.field = std::string(field), .description = std::string(message.substr(colon + 2))};
}

std::string FormatViolations(const std::string& file, const std::vector<FieldViolation>& violations) {
  std::string text;
  for (const FieldViolation& violation : violations) {
    std::string place = file;
    if (violation.line > 0) {
      absl::StrAppend(&place, place.empty() ? "line " : ":", violation.line, ":", violation.column);
    }
    for (const std::string& part : {place, violation.field}) {
      if (!part.empty()) absl::StrAppend(&text, part, ": ");
    }
    absl::StrAppend(&text, violation.description, "\n");
  }
  return text;
}

}  // namespace strata
