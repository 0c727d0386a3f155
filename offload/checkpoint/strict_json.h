// Parsing of JSON that comes from outside: a Status instead of an exception, no duplicate keys, bounded
// depth; and typed access to members, with errors that name the member.
#ifndef OFFLOAD_CHECKPOINT_STRICT_JSON_H_
#define OFFLOAD_CHECKPOINT_STRICT_JSON_H_

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace strata {

// kDataLoss with the byte offset for text that is not one JSON value in UTF-8, has an object with two equal
// keys, or nests deeper than 32. The caller has limited the size of `text`.
absl::StatusOr<nlohmann::json> ParseStrictJson(absl::string_view text);

// Members of an object. A missing member or another type is kDataLoss that names `key`; numbers outside
// [min, max] likewise, and a fraction is no integer.
absl::StatusOr<const nlohmann::json*> JsonMember(const nlohmann::json& object, const char* key);
absl::StatusOr<std::string> JsonString(const nlohmann::json& object, const char* key);
absl::StatusOr<int64_t> JsonInt(const nlohmann::json& object, const char* key, int64_t min = 0,
                                int64_t max = std::numeric_limits<int64_t>::max());
absl::StatusOr<uint64_t> JsonUint(const nlohmann::json& object, const char* key);
// Integers are fine as doubles; the result is finite.
absl::StatusOr<double> JsonDouble(const nlohmann::json& object, const char* key);

}  // namespace strata

#endif  // OFFLOAD_CHECKPOINT_STRICT_JSON_H_
