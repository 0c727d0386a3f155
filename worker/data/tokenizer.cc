#include "worker/data/tokenizer.h"

#include "common/status.h"

namespace strata {

absl::StatusOr<std::vector<int32_t>> BytesTokenizer::Encode(absl::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

absl::StatusOr<std::string> BytesTokenizer::Decode(std::span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", i, " has id ", ids[i], "; ids of the tokenizer \"bytes\" are 0 to 255"));
    }
    text.push_back(static_cast<char>(ids[i]));
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(absl::string_view name) {
  if (name.empty() || name == "bytes") return std::make_unique<BytesTokenizer>();
  return absl::InvalidArgumentError(
      absl::StrCat("data.tokenizer: \"", name, "\" is not a tokenizer of this build; use \"bytes\""));
}

}  // namespace strata
