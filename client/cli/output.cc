#include "client/cli/output.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "proto/job_spec/text.h"

namespace strata {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr double kExactIntegerMax = 9007199254740992.0;  // 2^53

Json ScalarJson(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  const auto pick = [&](auto single, auto item) {
    return repeated ? (reflection.*item)(message, &field, index) : (reflection.*single)(message, &field);
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return pick(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    case FieldDescriptor::CPPTYPE_INT64:
      return pick(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
    case FieldDescriptor::CPPTYPE_UINT32:
      return pick(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return pick(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return JsonNumber(pick(&Reflection::GetDouble, &Reflection::GetRepeatedDouble));
    case FieldDescriptor::CPPTYPE_FLOAT:
      return JsonNumber(pick(&Reflection::GetFloat, &Reflection::GetRepeatedFloat));
    case FieldDescriptor::CPPTYPE_BOOL:
      return pick(&Reflection::GetBool, &Reflection::GetRepeatedBool);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = pick(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue);
      const auto* value = field.enum_type()->FindValueByNumber(number);
      return value == nullptr ? Json(number) : Json(value->name());
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      const std::string text = pick(&Reflection::GetString, &Reflection::GetRepeatedString);
      return field.type() == FieldDescriptor::TYPE_BYTES ? absl::Base64Escape(text) : text;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(repeated ? reflection.GetRepeatedMessage(message, &field, index)
                             : reflection.GetMessage(message, &field));
  }
  return nullptr;
}

Json MapJson(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<std::pair<std::string, Json>> entries;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const Message& entry = reflection.GetRepeatedMessage(message, &field, i);
    const Json key = ScalarJson(entry, *field.message_type()->map_key(), 0);
    entries.emplace_back(key.is_string() ? key.get<std::string>() : key.dump(),
                         ScalarJson(entry, *field.message_type()->map_value(), 0));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Json json = Json::object();
  for (auto& [key, value] : entries) json[key] = std::move(value);
  return json;
}

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ",
                          absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos()),
                          absl::UTCTimeZone());
}

// Whether YAML would read the bare text back as this text.
bool IsPlainYaml(const std::string& text) {
  double number = 0;
  if (text.empty() || absl::SimpleAtod(text, &number)) return false;
  const std::string folded = absl::AsciiStrToLower(text);
  for (const char* word : {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}) {
    if (folded == word) return false;
  }
  return absl::ascii_isalpha(text[0]) && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
         });
}

std::string YamlScalar(const Json& json) {
  if (json.is_string() && IsPlainYaml(json.get<std::string>())) return json.get<std::string>();
  return ToLine(json);  // JSON scalars, empty lists and empty maps are YAML.
}

void AppendYaml(const Json& json, size_t indent, std::string& out) {
  const std::string space(indent, ' ');
  const auto append_value = [&](const Json& value, bool in_list) {
    if ((value.is_object() || value.is_array()) && !value.empty()) {
      std::string body;
      AppendYaml(value, indent + 2, body);
      // The first line of a list's item stands behind its dash.
      absl::StrAppend(&out, in_list ? body.substr(indent + 2) : absl::StrCat("\n", body));
    } else {
      absl::StrAppend(&out, in_list ? "" : " ", YamlScalar(value), "\n");
    }
  };
  if (json.is_array()) {
    for (const Json& item : json) {
      absl::StrAppend(&out, space, "- ");
      append_value(item, true);
    }
    return;
  }
  for (const auto& [key, value] : json.items()) {
    absl::StrAppend(&out, space, YamlScalar(Json(key)), ":");
    append_value(value, false);
  }
}

// Columns that a terminal gives the text: characters, not bytes.
size_t Width(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

Json JsonNumber(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  const bool negative_zero = value == 0 && std::signbit(value);
  if (value == std::floor(value) && std::abs(value) <= kExactIntegerMax && !negative_zero) {
    return static_cast<int64_t>(value);
  }
  return value;
}

Json ToJson(const Message& message) {
  if (const auto* time = dynamic_cast<const google::protobuf::Timestamp*>(&message)) return TimeText(*time);
  if (const auto* duration = dynamic_cast<const google::protobuf::Duration*>(&message)) {
    const double seconds = static_cast<double>(duration->seconds()) + duration->nanos() * 1e-9;
    return absl::StrFormat("%.9gs", seconds);
  }
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  Json json = Json::object();
  for (const FieldDescriptor* field : fields) {
    Json& out = json[field->name()];
    if (field->is_map()) {
      out = MapJson(message, *field);
    } else if (field->is_repeated()) {
      out = Json::array();
      for (int i = 0; i < reflection.FieldSize(message, field); ++i)
        out.push_back(ScalarJson(message, *field, i));
    } else {
      out = ScalarJson(message, *field, 0);
    }
  }
  return json;
}

void AddMetrics(const std::map<std::string, double>& values, const std::map<std::string, std::string>& texts,
                Json& json) {
  const auto add = [&](const std::string& name) {
    if (const auto value = values.find(name); value != values.end()) {
      const bool flag = name == "skipped" || name == "speculative_redo";
      json[name] = flag ? Json(value->second != 0) : JsonNumber(value->second);
    }
    if (const auto text = texts.find(name); text != texts.end()) json[name] = text->second;
  };
  for (const char* first : {"loss", "loss_bits", "grad_norm", "lr", "tokens", "step_ms", "tokens_per_s",
                            "skipped", "bad_tensor", "loss_scale"})
    add(first);
  for (const auto& [name, value] : values) add(name);
  for (const auto& [name, text] : texts) add(name);
}

Json MetricRowJson(const v1::MetricRow& row) {
  Json json = Json::object();
  json["step"] = row.step();
  json["attempt"] = row.attempt();
  json["rank"] = row.rank();
  AddMetrics({row.values().begin(), row.values().end()}, {row.texts().begin(), row.texts().end()}, json);
  return json;
}

std::string ToYaml(const Json& json) {
  if (!(json.is_object() || json.is_array()) || json.empty()) return YamlScalar(json) + "\n";
  std::string out;
  AppendYaml(json, 0, out);
  return out;
}

std::string ToLine(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Render() const {
  std::vector<size_t> widths;
  for (const std::string& header : headers_) widths.push_back(Width(header));
  std::vector<bool> numeric(headers_.size(), !rows_.empty());
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      widths[i] = std::max(widths[i], Width(row[i]));
      numeric[i] = numeric[i] && (row[i] == "-" || (!row[i].empty() && absl::ascii_isdigit(row[i][0])));
    }
  }
  std::string out;
  const auto append = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      const std::string padding(widths[i] - Width(row[i]), ' ');
      absl::StrAppend(&line, i > 0 ? "  " : "", numeric[i] ? padding : "", row[i], numeric[i] ? "" : padding);
    }
    absl::StrAppend(&out, absl::StripTrailingAsciiWhitespace(line), "\n");
  };
  append(headers_);
  for (const auto& row : rows_) append(row);
  return out;
}

std::string Render(Format format, const std::vector<Json>& items, bool single,
                   const std::function<std::string()>& table) {
  const Json whole = single && items.size() == 1 ? items[0] : Json(items);
  switch (format) {
    case Format::kTable:
      return table();
    case Format::kJson:
      return whole.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
    case Format::kYaml:
      return ToYaml(whole);
    case Format::kJsonl:
      break;
  }
  std::string out;
  for (const Json& item : items) absl::StrAppend(&out, ToLine(item), "\n");
  return out;
}

std::string FormatCount(double count) {
  if (!std::isfinite(count)) return "-";
  for (const auto& [scale, unit] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}}) {
    if (std::abs(count) >= scale) return absl::StrFormat("%.1f%s", count / scale, unit);
  }
  return count == std::floor(count) ? absl::StrFormat("%.0f", count) : absl::StrFormat("%.1f", count);
}

}  // namespace strata
