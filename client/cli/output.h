// What goes to stdout: messages as JSON, YAML, JSON lines or a table.
#ifndef CLIENT_CLI_OUTPUT_H_
#define CLIENT_CLI_OUTPUT_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "nlohmann/json.hpp"
#include "proto/strata/v1/metrics.pb.h"

namespace strata {

using Json = nlohmann::ordered_json;

enum class Format { kTable, kJson, kYaml, kJsonl };

// A message as people and scripts want it: field names of the proto, numbers as numbers (also 64-bit ones),
// enums by name, timestamps as RFC 3339 text, durations as "1.5s", bytes as base64, NaN and infinities as
// text. Unset fields are left out.
Json ToJson(const google::protobuf::Message& message);

// A row's values and texts by name, those that people look for first; what is yes or no as true or false.
void AddMetrics(const std::map<std::string, double>& values, const std::map<std::string, std::string>& texts,
                Json& json);

// One flat object per step: step, attempt, rank, then every value and text of the row by its name.
Json MetricRowJson(const v1::MetricRow& row);

// Whole numbers without a fraction; NaN, Infinity and -Infinity as text, which JSON has no number for.
Json JsonNumber(double value);

// Block style with two spaces; ends with a newline.
std::string ToYaml(const Json& json);

// One line; invalid UTF-8 becomes U+FFFD.
std::string ToLine(const Json& json);

// Columns padded to their widest cell; cells may be others' text (Printable). A column whose cells all start
// with a digit (or are "-") aligns right.
class Table {
 public:
  explicit Table(std::vector<std::string> headers) : headers_(std::move(headers)) {}
  void Add(std::vector<std::string> cells);
  size_t size() const { return rows_.size(); }
  std::string Render() const;

 private:
  std::vector<std::string> headers_;
  std::vector<std::vector<std::string>> rows_;
};

// Renders `items` in `format`; a table comes from `table`. With `single`, JSON and YAML show the one item
// itself instead of a list of one.
std::string Render(Format format, const std::vector<Json>& items, bool single,
                   const std::function<std::string()>& table);

// "950", "11.2k", "3.4M".
std::string FormatCount(double count);

}  // namespace strata

#endif  // CLIENT_CLI_OUTPUT_H_
