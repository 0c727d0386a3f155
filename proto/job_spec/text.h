// Small text helpers: enum names as people write them, suggestions, excerpts, text that is safe to show.
#ifndef PROTO_JOB_SPEC_TEXT_H_
#define PROTO_JOB_SPEC_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace strata {

// MODE_FORWARD_OVERLAP is written forward-overlap: without the prefix that the zero value shows, in lower
// case, with dashes.
std::string EnumText(const google::protobuf::EnumValueDescriptor& value);

// Every value that may be written, in the order of declaration; the zero value stands for "unset" and is
// not among them.
std::vector<std::string> EnumTexts(const google::protobuf::EnumDescriptor& type);

// The candidate within a few edits of `word` (insert, delete, replace, swap of neighbours), "" if none is.
std::string ClosestMatch(absl::string_view word, const std::vector<std::string>& candidates);

// The divisor of `number` (>= 1) nearest to `near`; the smaller one of two.
int64_t NearestDivisor(int64_t number, int64_t near);

// The offset of the first byte that is not UTF-8 or is a control character other than tab, CR and LF.
std::optional<size_t> FindBadText(absl::string_view text);

// At most 40 bytes of `text`, control characters and broken UTF-8 escaped: safe in a message.
std::string PrintableExcerpt(absl::string_view text);

enum class Newlines { kEscaped, kKept };
// `text` of somebody else, fit for a terminal: control characters and broken UTF-8 escaped, as in \n and
// \x1b. kKept is for text of several lines: tabs and ends of lines stay (CR becomes one).
std::string Printable(absl::string_view text, Newlines newlines = Newlines::kEscaped);

}  // namespace strata

#endif  // PROTO_JOB_SPEC_TEXT_H_
