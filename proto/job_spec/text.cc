#include "proto/job_spec/text.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "proto/strata/v1/spec.pb.h"

namespace strata {
namespace {

constexpr size_t kExcerptMax = 40;
constexpr size_t kMatchMax = 64;

std::string EnumPrefix(const google::protobuf::EnumDescriptor& type) {
  const std::string& zero = type.FindValueByNumber(0)->name();
  const absl::string_view suffix = "UNSPECIFIED";
  return absl::EndsWith(zero, suffix) ? zero.substr(0, zero.size() - suffix.size()) : "";
}

// Optimal string alignment distance: edits plus swaps of neighbours.
size_t Distance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// Bytes of the UTF-8 character at the front of `text` (not empty); 0 if it is malformed: overlong forms,
// surrogates and values above U+10FFFF included.
size_t CharacterSize(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t size = lead >= 0xC2 && lead < 0xE0   ? 2
                      : lead >= 0xE0 && lead < 0xF0 ? 3
                      : lead >= 0xF0 && lead < 0xF5 ? 4
                                                    : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) >= 0xA0) ||
      (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) >= 0x90)) {
    return 0;
  }
  return size;
}

}  // namespace

std::string EnumText(const google::protobuf::EnumValueDescriptor& value) {
  if (value.options().HasExtension(v1::text)) return value.options().GetExtension(v1::text);
  const std::string prefix = EnumPrefix(*value.type());
  const absl::string_view name = value.name();
  const absl::string_view bare = absl::StartsWith(name, prefix) ? name.substr(prefix.size()) : name;
  return absl::StrReplaceAll(absl::AsciiStrToLower(bare), {{"_", "-"}});
}

std::vector<std::string> EnumTexts(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> texts;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() != 0) texts.push_back(EnumText(*type.value(i)));
  }
  return texts;
}

std::string ClosestMatch(absl::string_view word, const std::vector<std::string>& candidates) {
  if (word.size() > kMatchMax) return "";
  const std::string folded = absl::StrReplaceAll(absl::AsciiStrToLower(word), {{"-", "_"}});
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(folded, absl::StrReplaceAll(candidate, {{"-", "_"}}));
    // A word that shares nothing with the candidate is no typo of it.
    if (distance < best_distance && distance < candidate.size()) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

int64_t NearestDivisor(int64_t number, int64_t near) {
  int64_t best = 1;
  for (int64_t d = 1; d <= number / d; ++d) {
    if (number % d != 0) continue;
    for (const int64_t candidate : {d, number / d}) {
      const int64_t gap = std::abs(candidate - near), best_gap = std::abs(best - near);
      if (gap < best_gap || (gap == best_gap && candidate < best)) best = candidate;
    }
  }
  return best;
}

std::optional<size_t> FindBadText(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t size = CharacterSize(text.substr(at));
    const char c = text[at];
    const bool control = (absl::ascii_iscntrl(c) && c != '\t' && c != '\n' && c != '\r');
    if (size == 0 || control) return at;
    at += size;
  }
  return std::nullopt;
}

std::string Printable(absl::string_view text, Newlines newlines) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = CharacterSize(text.substr(at));
    const absl::string_view character = text.substr(at, std::max<size_t>(1, size));
    at += character.size();
    // The second range of control characters, C2 80 to C2 9F, starts sequences as ESC does.
    const bool control =
        size == 0 || absl::ascii_iscntrl(static_cast<unsigned char>(character[0])) ||
        (size == 2 && character[0] == '\xC2' && static_cast<unsigned char>(character[1]) < 0xA0);
    if (newlines == Newlines::kKept && (character == "\n" || character == "\t")) {
      absl::StrAppend(&out, character);
    } else if (newlines == Newlines::kKept && character == "\r") {
      if (at == text.size() || text[at] != '\n') out += '\n';
    } else {
      absl::StrAppend(&out, control ? absl::CHexEscape(character) : std::string(character));
    }
  }
  return out;
}

std::string PrintableExcerpt(absl::string_view text) {
  size_t end = 0;
  while (end < text.size() && end < kExcerptMax) end += std::max<size_t>(1, CharacterSize(text.substr(end)));
  end = std::min(end, text.size());
  const absl::string_view head = text.substr(0, end);
  return absl::StrCat(FindBadText(head) ? absl::CHexEscape(head) : absl::Utf8SafeCEscape(head),
                      end < text.size() ? "..." : "");
}

}  // namespace strata
