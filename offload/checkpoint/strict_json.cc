#include "offload/checkpoint/strict_json.h"

#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "common/status.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr int kDepthLimit = 32;

absl::Status Missing(const char* key) {
  return absl::DataLossError(absl::StrCat("\"", key, "\" is missing"));
}

absl::Status WrongType(const char* key, absl::string_view expected) {
  return absl::DataLossError(absl::StrCat("\"", key, "\" is not ", expected));
}

}  // namespace

absl::StatusOr<json> ParseStrictJson(absl::string_view text) {
  // The library keeps the last of two equal keys and has no depth limit, so both are watched here. `keys` has
  // one set for each open object.
  std::vector<std::set<std::string>> keys;
  std::string problem;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        keys.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys.pop_back();
        break;
      case json::parse_event_t::key:
        if (!keys.back().insert(parsed.get<std::string>()).second && problem.empty()) {
          problem = absl::StrCat("the key ", parsed.dump(-1, ' ', true, json::error_handler_t::replace),
                                 " stands twice in one object");
        }
        break;
      default:
        break;
    }
    if (depth > kDepthLimit && problem.empty()) problem = absl::StrCat("nested deeper than ", kDepthLimit);
    return problem.empty();  // False drops the value: memory stays bounded after a problem.
  };
  try {
    json value = json::parse(text.begin(), text.end(), watch);
    if (!problem.empty()) return absl::DataLossError(absl::StrCat("not valid JSON: ", problem));
    return value;
  } catch (const json::exception& e) {
    return absl::DataLossError(absl::StrCat("not valid JSON: ", problem.empty() ? e.what() : problem));
  }
}

absl::StatusOr<const json*> JsonMember(const json& object, const char* key) {
  if (!object.is_object()) return absl::DataLossError(absl::StrCat("no object around \"", key, "\""));
  const auto it = object.find(key);
  if (it == object.end()) return Missing(key);
  return &*it;
}

absl::StatusOr<std::string> JsonString(const json& object, const char* key) {
  STRATA_ASSIGN_OR_RETURN(const json* value, JsonMember(object, key));
  if (!value->is_string()) return WrongType(key, "a string");
  return value->get<std::string>();
}

absl::StatusOr<int64_t> JsonInt(const json& object, const char* key, int64_t min, int64_t max) {
  STRATA_ASSIGN_OR_RETURN(const json* value, JsonMember(object, key));
  if (!value->is_number_integer()) return WrongType(key, "an integer");
  // The library stores what is above 2^63 - 1 as unsigned.
  const bool wide = value->is_number_unsigned() &&
                    value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (wide || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    return absl::DataLossError(
        absl::StrCat("\"", key, "\" is ", value->dump(), ", outside [", min, ", ", max, "]"));
  }
  return value->get<int64_t>();
}

absl::StatusOr<uint64_t> JsonUint(const json& object, const char* key) {
  STRATA_ASSIGN_OR_RETURN(const json* value, JsonMember(object, key));
  if (!value->is_number_unsigned()) return WrongType(key, "an unsigned integer");
  return value->get<uint64_t>();
}

absl::StatusOr<double> JsonDouble(const json& object, const char* key) {
  STRATA_ASSIGN_OR_RETURN(const json* value, JsonMember(object, key));
  if (!value->is_number()) return WrongType(key, "a number");
  const double number = value->get<double>();
  if (!std::isfinite(number)) return WrongType(key, "a finite number");
  return number;
}

}  // namespace strata
