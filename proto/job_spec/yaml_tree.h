// A YAML document as a tree that keeps the place of every key and value and every repeated key. Built from
// parser events because yaml-cpp's own nodes drop both, and expand aliases.
#ifndef PROTO_JOB_SPEC_YAML_TREE_H_
#define PROTO_JOB_SPEC_YAML_TREE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/job_spec/violation.h"

namespace strata {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  SourceMap::Position position;
  bool quoted = false;             // kScalar
  std::string text;                // kScalar
  std::vector<YamlNode> items;     // kSequence
  std::vector<YamlEntry> entries;  // kMap, in the order of the text
};

struct YamlEntry {
  YamlNode key;
  YamlNode value;
};

struct YamlTree {
  YamlNode root;
  std::optional<FieldViolation> error;  // with its place; the root is then not to be used
};

// Reads one document. Refuses text that is not UTF-8, control characters, syntax errors, nothing at all, a
// second document, anchors, aliases, tags, and nesting deeper than 32.
YamlTree ParseYamlTree(absl::string_view text);

}  // namespace strata

#endif  // PROTO_JOB_SPEC_YAML_TREE_H_
