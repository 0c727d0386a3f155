#include "proto/job_spec/yaml.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/fd.h"
#include "common/status.h"
#include "google/protobuf/descriptor.h"
#include "proto/job_spec/text.h"
#include "proto/job_spec/yaml_tree.h"

namespace strata {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kViolationsMax = 20;

std::string Join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : absl::StrCat(prefix, ".", name);
}

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return names;
}

// The path of the first field called `name` anywhere below `type`: for keys put under the wrong heading.
std::string FindField(const Descriptor& type, const std::string& name, const std::string& prefix) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.name() == name) return Join(prefix, name);
    if (field.message_type() == nullptr) continue;
    const std::string found = FindField(*field.message_type(), name, Join(prefix, field.name()));
    if (!found.empty()) return found;
  }
  return "";
}

// Digits, sign, point and exponent only: no hex, infinities, NaN or underscores.
bool LooksLikeNumber(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string::npos &&
         text.find_first_of("0123456789") != std::string::npos;
}

// Nothing when `text` is no number; an infinity when it is one beyond double.
std::optional<double> ParseReal(const std::string& text) {
  double value = 0;
  if (!LooksLikeNumber(text) || !absl::SimpleAtod(text, &value)) return std::nullopt;
  return value;
}

// A whole number in [low, high], also written 1e6 or 3.0. An error says what is wrong with it.
template <typename T>
absl::StatusOr<T> ParseWhole(const std::string& text) {
  const std::optional<double> real = ParseReal(text);
  const auto wrong = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (!real) return wrong("'", PrintableExcerpt(text), "' is not a whole number");
  if (*real != std::floor(*real)) return wrong(PrintableExcerpt(text), " is not a whole number");
  T value = 0;
  const size_t sign = text[0] == '+' ? 1 : 0;
  const char* end = text.data() + text.size();
  const std::from_chars_result exact = std::from_chars(text.data() + sign, end, value);
  if (exact.ec == std::errc() && exact.ptr == end) return value;
  // Not plain digits: an exponent or a fraction of zeros. Doubles are exact there up to 2^53.
  const bool plain = text.find_first_of(".eE") == std::string::npos;
  if (plain || std::abs(*real) > 9007199254740992.0 ||
      *real < static_cast<double>(std::numeric_limits<T>::min()) ||
      *real > static_cast<double>(std::numeric_limits<T>::max())) {
    return wrong(PrintableExcerpt(text), " is out of range: must be from ", std::numeric_limits<T>::min(),
                 " to ", std::numeric_limits<T>::max());
  }
  return static_cast<T>(*real);
}

absl::string_view KindName(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kMap:
      return "a group of fields";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kScalar:
      return node.quoted ? "a quoted text" : "a single value";
    case YamlNode::Kind::kNull:
      return "nothing";
  }
  return "";
}

// Walks a tree along a message type and fills the message in.
class Reader {
 public:
  Reader(Message& root, SourceMap& source, std::vector<FieldViolation>& violations)
      : root_(root), source_(source), violations_(violations) {}

  void ReadRoot(const YamlNode& root) {
    if (root.kind != YamlNode::Kind::kMap) {
      Fail("", root.position,
           absl::StrCat("the file holds ", KindName(root), ": must be a group with ",
                        absl::StrJoin(FieldNames(*root_.GetDescriptor()), ", ")));
      return;
    }
    ReadGroup(root, root.position, "", root_);
  }

 private:
  bool Full() const { return violations_.size() >= kViolationsMax; }

  void Fail(const std::string& path, SourceMap::Position at, std::string description) {
    if (Full()) return;
    violations_.push_back(
        {.field = path, .line = at.line, .column = at.column, .description = std::move(description)});
  }

  void ReadGroup(const YamlNode& map, SourceMap::Position place, const std::string& prefix,
                 Message& message) {
    const Descriptor& type = *message.GetDescriptor();
    std::vector<const FieldDescriptor*> seen;
    for (const auto& [key, value] : map.entries) {
      if (Full()) return;
      if (key.kind != YamlNode::Kind::kScalar) {
        Fail(prefix, key.position, "has a key that is not a name");
        continue;
      }
      const FieldDescriptor* field = type.FindFieldByName(key.text);
      if (field == nullptr) {
        FailUnknown(key, prefix, type);
        continue;
      }
      const std::string path = Join(prefix, field->name());
      if (std::find(seen.begin(), seen.end(), field) != seen.end()) {
        Fail(path, key.position,
             absl::StrCat("is given twice, first on line ", source_.Find(path).line, ": keep one"));
        continue;
      }
      if (const FieldDescriptor* rival = OneofRival(*field, seen)) {
        Fail(path, key.position,
             absl::StrCat("and ", Join(prefix, rival->name()), " exclude each other: keep one"));
        continue;
      }
      seen.push_back(field);
      const bool group = value.kind == YamlNode::Kind::kMap || value.kind == YamlNode::Kind::kSequence;
      source_.Add(path, group ? key.position : value.position);
      ReadField(*field, key, value, path, message);
    }
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* field = type.field(i);
      if (!field->options().GetExtension(v1::required)) continue;
      if (std::find(seen.begin(), seen.end(), field) != seen.end()) continue;
      Fail(Join(prefix, field->name()), place, absl::StrCat("is missing: add it", Example(*field)));
    }
  }

  static std::string Example(const FieldDescriptor& field) {
    if (field.enum_type() != nullptr)
      return absl::StrCat(", one of ", absl::StrJoin(EnumTexts(*field.enum_type()), ", "));
    if (field.message_type() == nullptr) return "";
    return absl::StrCat(", with ", absl::StrJoin(FieldNames(*field.message_type()), ", "));
  }

  static const FieldDescriptor* OneofRival(const FieldDescriptor& field,
                                           const std::vector<const FieldDescriptor*>& seen) {
    if (field.real_containing_oneof() == nullptr) return nullptr;
    for (const FieldDescriptor* other : seen) {
      if (other->real_containing_oneof() == field.real_containing_oneof()) return other;
    }
    return nullptr;
  }

  void FailUnknown(const YamlNode& key, const std::string& prefix, const Descriptor& type) {
    const std::vector<std::string> names = FieldNames(type);
    const std::string near = ClosestMatch(key.text, names);
    const std::string elsewhere = FindField(*root_.GetDescriptor(), key.text, "");
    std::string remedy = absl::StrCat("known here: ", absl::StrJoin(names, ", "));
    if (!elsewhere.empty()) {
      remedy = absl::StrCat("it belongs to ", elsewhere);
    } else if (!near.empty()) {
      remedy = absl::StrCat("did you mean ", near, "?");
    }
    Fail(Join(prefix, PrintableExcerpt(key.text)), key.position, absl::StrCat("unknown field; ", remedy));
  }

  void ReadField(const FieldDescriptor& field, const YamlNode& key, const YamlNode& value,
                 const std::string& path, Message& message) {
    if (value.kind == YamlNode::Kind::kNull) {
      Fail(path, key.position, "has no value: give one, or remove the line");
      return;
    }
    if (field.is_repeated()) {
      if (value.kind != YamlNode::Kind::kSequence) {
        ReadValue(field, key, value, path, message);
        return;
      }
      for (size_t i = 0; i < value.items.size() && !Full(); ++i) {
        const YamlNode& item = value.items[i];
        const std::string item_path = absl::StrCat(path, "[", i, "]");
        source_.Add(item_path, item.position);
        if (item.kind == YamlNode::Kind::kNull) {
          Fail(item_path, item.position, "has no value: give one, or remove the item");
        } else {
          ReadValue(field, item, item, item_path, message);
        }
      }
      return;
    }
    ReadValue(field, key, value, path, message);
  }

  void ReadValue(const FieldDescriptor& field, const YamlNode& key, const YamlNode& value,
                 const std::string& path, Message& message) {
    const google::protobuf::FieldOptions& options = field.options();
    const bool may_be_auto = options.GetExtension(v1::auto_is_unset) || options.GetExtension(v1::byte_size);
    if (may_be_auto && value.kind == YamlNode::Kind::kScalar && value.text == "auto") return;
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (value.kind != YamlNode::Kind::kMap) {
        Fail(path, value.position,
             absl::StrCat("is ", KindName(value), ": must be a group with ",
                          absl::StrJoin(FieldNames(*field.message_type()), ", "),
                          may_be_auto ? ", or auto" : ""));
        return;
      }
      const Reflection& reflection = *message.GetReflection();
      ReadGroup(value, key.position, path,
                field.is_repeated() ? *reflection.AddMessage(&message, &field)
                                    : *reflection.MutableMessage(&message, &field));
      return;
    }
    if (value.kind != YamlNode::Kind::kScalar) {
      const bool list_inside_list = field.is_repeated() && value.kind == YamlNode::Kind::kSequence;
      Fail(path, value.position,
           absl::StrCat("is ", KindName(value), list_inside_list ? " inside a list" : "", ": must be ",
                        Wanted(field)));
      return;
    }
    const absl::Status status = ReadScalar(field, value, message);
    if (!status.ok()) Fail(path, value.position, std::string(status.message()));
  }

  // What a field takes, for messages.
  static std::string Wanted(const FieldDescriptor& field) {
    const std::string or_auto = field.options().GetExtension(v1::auto_is_unset) ? ", or auto" : "";
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        return "a text";
      case FieldDescriptor::CPPTYPE_BOOL:
        return "true or false";
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return "a number such as 0.1 or 1e-3";
      case FieldDescriptor::CPPTYPE_ENUM:
        return absl::StrCat("one of ", absl::StrJoin(EnumTexts(*field.enum_type()), ", "), or_auto);
      default:
        break;
    }
    if (field.options().GetExtension(v1::byte_size)) return "a size such as 48MiB, or auto";
    return absl::StrCat("a whole number", or_auto);
  }

  template <typename T>
  static void Put(Message& message, const FieldDescriptor& field, T value,
                  void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
                  void (Reflection::*add)(Message*, const FieldDescriptor*, T) const) {
    const Reflection* reflection = message.GetReflection();
    (reflection->*(field.is_repeated() ? add : set))(&message, &field, std::move(value));
  }

  static absl::Status ReadScalar(const FieldDescriptor& field, const YamlNode& value, Message& message) {
    const auto wrong_type = [&] {
      return absl::InvalidArgumentError(
          absl::StrCat("'", PrintableExcerpt(value.text), "' ",
                       value.quoted ? "is a quoted text: " : "has the wrong type: ", "must be ",
                       Wanted(field), value.quoted ? ", without quotes" : ""));
    };
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      if (FindBadText(value.text)) {
        return absl::InvalidArgumentError("holds an escaped control character: write plain text");
      }
      Put<std::string>(message, field, value.text, &Reflection::SetString, &Reflection::AddString);
      return absl::OkStatus();
    }
    const bool size = field.options().GetExtension(v1::byte_size);
    if (value.quoted && !size && field.cpp_type() != FieldDescriptor::CPPTYPE_ENUM) return wrong_type();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        if (value.text != "true" && value.text != "false") return wrong_type();
        Put<bool>(message, field, value.text == "true", &Reflection::SetBool, &Reflection::AddBool);
        return absl::OkStatus();
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const std::optional<double> real = ParseReal(value.text);
        if (!real) return wrong_type();
        if (!std::isfinite(*real)) {
          return absl::InvalidArgumentError(
              absl::StrCat(PrintableExcerpt(value.text), " is out of range for a double"));
        }
        Put<double>(message, field, *real, &Reflection::SetDouble, &Reflection::AddDouble);
        return absl::OkStatus();
      }
      case FieldDescriptor::CPPTYPE_ENUM:
        return ReadEnum(field, value, message);
      case FieldDescriptor::CPPTYPE_INT32:
        return ReadWhole<int32_t>(field, value, message, &Reflection::SetInt32, &Reflection::AddInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return ReadWhole<uint64_t>(field, value, message, &Reflection::SetUInt64, &Reflection::AddUInt64);
      case FieldDescriptor::CPPTYPE_INT64:
        if (size) return ReadSize(field, value, message);
        return ReadWhole<int64_t>(field, value, message, &Reflection::SetInt64, &Reflection::AddInt64);
      default:
        return absl::InternalError(
            absl::StrCat("spec.proto has a field type that job files cannot hold: ", field.full_name()));
    }
  }

  template <typename T>
  static absl::Status ReadWhole(const FieldDescriptor& field, const YamlNode& value, Message& message,
                                void (Reflection::*set)(Message*, const FieldDescriptor*, T) const,
                                void (Reflection::*add)(Message*, const FieldDescriptor*, T) const) {
    absl::StatusOr<T> number = ParseWhole<T>(value.text);
    if (!number.ok()) {
      const bool range = absl::StrContains(number.status().message(), "out of range");
      return range ? number.status()
                   : absl::InvalidArgumentError(
                         absl::StrCat(number.status().message(), ": must be ", Wanted(field)));
    }
    Put<T>(message, field, *number, set, add);
    return absl::OkStatus();
  }

  static absl::Status ReadSize(const FieldDescriptor& field, const YamlNode& value, Message& message) {
    STRATA_ASSIGN_OR_RETURN(const int64_t bytes, ParseBytes(value.text));
    if (bytes == 0) {
      return absl::InvalidArgumentError("is 0, which would mean auto: write auto, or a size such as 48MiB");
    }
    Put<int64_t>(message, field, bytes, &Reflection::SetInt64, &Reflection::AddInt64);
    return absl::OkStatus();
  }

  static absl::Status ReadEnum(const FieldDescriptor& field, const YamlNode& value, Message& message) {
    const google::protobuf::EnumDescriptor& type = *field.enum_type();
    for (int i = 0; i < type.value_count(); ++i) {
      const EnumValueDescriptor* candidate = type.value(i);
      if (candidate->number() == 0 || EnumText(*candidate) != value.text) continue;
      Put<int>(message, field, candidate->number(), &Reflection::SetEnumValue, &Reflection::AddEnumValue);
      return absl::OkStatus();
    }
    const std::string near = ClosestMatch(value.text, EnumTexts(type));
    return absl::InvalidArgumentError(absl::StrCat(
        "'", PrintableExcerpt(value.text), "' is not known: ",
        near.empty() ? "" : absl::StrCat("did you mean ", near, "? "), "must be ", Wanted(field)));
  }

  Message& root_;
  SourceMap& source_;
  std::vector<FieldViolation>& violations_;
};

// Text that YAML reads back as the same text: plain where nothing else could be read, else double-quoted.
std::string YamlText(const std::string& text) {
  const bool plain =
      !text.empty() && text != "auto" && text != "null" && text != "true" && text != "false" &&
      absl::ascii_isalpha(text[0]) &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./") ==
          std::string::npos;
  return plain ? text : absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

// 48MiB where a unit divides the number, else the bare number.
std::string YamlSize(int64_t bytes) {
  for (const auto& [unit, name] :
       {std::pair{int64_t{1} << 30, "GiB"}, {int64_t{1} << 20, "MiB"}, {int64_t{1} << 10, "KiB"}}) {
    if (bytes > 0 && bytes % unit == 0) return absl::StrCat(bytes / unit, name);
  }
  return absl::StrCat(bytes);
}

std::string YamlReal(double value) {
  char buffer[32];
  const std::to_chars_result end =
      std::to_chars(buffer, buffer + sizeof(buffer), value);  // shortest that reads back
  return std::string(buffer, end.ptr);
}

std::string YamlScalar(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return YamlText(repeated ? reflection.GetRepeatedString(message, &field, index)
                               : reflection.GetString(message, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return YamlReal(repeated ? reflection.GetRepeatedDouble(message, &field, index)
                               : reflection.GetDouble(message, &field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(repeated ? *reflection.GetRepeatedEnum(message, &field, index)
                               : *reflection.GetEnum(message, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(reflection.GetUInt64(message, &field));
    case FieldDescriptor::CPPTYPE_INT64: {
      const int64_t value = reflection.GetInt64(message, &field);
      return field.options().GetExtension(v1::byte_size) ? YamlSize(value) : absl::StrCat(value);
    }
    default:
      return "";
  }
}

// Required fields are written even when they hold a zero, which the wire format does not tell from absence.
bool IsWritten(const Message& message, const FieldDescriptor& field) {
  const Reflection& reflection = *message.GetReflection();
  const bool set =
      field.is_repeated() ? reflection.FieldSize(message, &field) > 0 : reflection.HasField(message, &field);
  return set || (field.options().GetExtension(v1::required) && field.message_type() == nullptr &&
                 field.enum_type() == nullptr);
}

void AppendYaml(const Message& message, const std::string& indent, std::string& out);

// The items of a list of groups: the first line of each begins with a dash.
void AppendYamlItems(const Message& message, const FieldDescriptor& field, const std::string& indent,
                     std::string& out) {
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    std::string body;
    AppendYaml(reflection.GetRepeatedMessage(message, &field, i), indent + "  ", body);
    if (body.empty()) body = absl::StrCat(indent, "  {}\n");
    body[indent.size()] = '-';
    out += body;
  }
}

void AppendYaml(const Message& message, const std::string& indent, std::string& out) {
  const Reflection& reflection = *message.GetReflection();
  const Descriptor& type = *message.GetDescriptor();
  for (int f = 0; f < type.field_count(); ++f) {
    const FieldDescriptor& field = *type.field(f);
    if (!IsWritten(message, field)) continue;
    absl::StrAppend(&out, indent, field.name(), ":");
    if (field.message_type() != nullptr && field.is_repeated()) {
      out += "\n";
      AppendYamlItems(message, field, indent + "  ", out);
    } else if (field.message_type() != nullptr) {
      std::string body;
      AppendYaml(reflection.GetMessage(message, &field), indent + "  ", body);
      absl::StrAppend(&out, body.empty() ? " {}\n" : "\n", body);
    } else if (field.is_repeated()) {
      std::vector<std::string> items;
      for (int i = 0; i < reflection.FieldSize(message, &field); ++i)
        items.push_back(YamlScalar(message, field, i));
      absl::StrAppend(&out, " [", absl::StrJoin(items, ", "), "]\n");
    } else {
      absl::StrAppend(&out, " ", YamlScalar(message, field, 0), "\n");
    }
  }
}

void ResolveMessagePaths(const std::string& folder, Message& message) {
  const Reflection& reflection = *message.GetReflection();
  const auto resolve = [&](absl::string_view path) -> std::string {
    if (path.empty() || path[0] == '/') return std::string(path);
    absl::string_view base = folder;
    while (absl::ConsumePrefix(&path, "./") || absl::StartsWith(path, "../")) {
      if (absl::ConsumePrefix(&path, "../"))
        base = base.substr(0, base.rfind('/') == base.npos ? 0 : base.rfind('/'));
    }
    return absl::StrCat(base == "/" ? "" : base, "/", path);
  };
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      ResolveMessagePaths(folder, *reflection.MutableMessage(&message, field));
    }
    if (!field->options().GetExtension(v1::path)) continue;
    if (!field->is_repeated()) {
      reflection.SetString(&message, field, resolve(reflection.GetString(message, field)));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      reflection.SetRepeatedString(&message, field, i,
                                   resolve(reflection.GetRepeatedString(message, field, i)));
    }
  }
}

// Fills `message` in; `source` is where its fields stand.
void ReadYaml(absl::string_view text, Message& message, SourceMap& source,
              std::vector<FieldViolation>& violations) {
  if (text.size() > kJobFileMaxBytes) {
    violations.push_back({.line = 1,
                          .column = 1,
                          .description = absl::StrCat("the file has ", text.size(), " bytes: at most ",
                                                      FormatBytes(kJobFileMaxBytes), " are read")});
    return;
  }
  YamlTree tree = ParseYamlTree(text);
  if (tree.error) {
    violations.push_back(*std::move(tree.error));
    return;
  }
  source.Add("", {1, 1});
  Reader(message, source, violations).ReadRoot(tree.root);
}

}  // namespace

JobFile ParseJobFile(absl::string_view text) {
  JobFile file;
  ReadYaml(text, file.spec, file.source, file.violations);
  return file;
}

std::vector<FieldViolation> ParseYamlMessage(absl::string_view text, Message* message) {
  SourceMap source;
  std::vector<FieldViolation> violations;
  ReadYaml(text, *message, source, violations);
  return violations;
}

absl::StatusOr<JobFile> LoadJobFile(const std::string& path) {
  STRATA_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kJobFileMaxBytes), "reading the job file");
  return ParseJobFile(text);
}

void ResolvePaths(const std::string& folder, v1::JobSpec& spec) { ResolveMessagePaths(folder, spec); }

std::string JobSpecToYaml(const v1::JobSpec& spec) {
  std::string out;
  AppendYaml(spec, "", out);
  return out;
}

}  // namespace strata
