#include "proto/job_spec/yaml_tree.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/job_spec/text.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/mark.h"
#include "yaml-cpp/parser.h"

namespace strata {
namespace {

constexpr size_t kDepthMax = 32;

SourceMap::Position ToPosition(const YAML::Mark& mark) {
  if (mark.is_null()) return {};
  return {.line = mark.line + 1, .column = mark.column + 1};
}

// Builds the tree from events. After the first error it ignores the rest: the text is bounded, and an
// exception of ours does not travel through the parser.
class TreeBuilder : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { document_ = ToPosition(mark); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (Admit(mark, "", anchor)) Add({.kind = YamlNode::Kind::kNull, .position = ToPosition(mark)});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Fail(mark, "aliases (*name) are not allowed: write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    if (!Admit(mark, tag, anchor)) return;
    Add({.kind = YamlNode::Kind::kScalar, .position = ToPosition(mark), .quoted = tag == "!", .text = value});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    Open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    Open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

  SourceMap::Position document() const { return document_; }
  YamlTree Take() && { return {.root = std::move(root_), .error = std::move(error_)}; }

 private:
  // An open collection. In a map, a key waits in `key` for its value.
  struct Frame {
    YamlNode node;
    std::optional<YamlNode> key;
  };

  void Fail(const YAML::Mark& mark, std::string description) {
    if (error_) return;
    const SourceMap::Position position = ToPosition(mark);
    error_ = {.line = position.line, .column = position.column, .description = std::move(description)};
  }

  bool Admit(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor)
      Fail(mark, "anchors (&name) are not allowed: write the value out where it is used");
    // "?" and "" are plain values, "!" is a quoted one: the parser's own marks, not tags of the text.
    if (!tag.empty() && tag != "?" && tag != "!") {
      Fail(mark, absl::StrCat("the tag ", PrintableExcerpt(tag), " is not allowed: write the plain value"));
    }
    return !error_;
  }

  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    if (stack_.size() >= kDepthMax) Fail(mark, absl::StrCat("is nested deeper than ", kDepthMax, " levels"));
    if (!Admit(mark, tag, anchor)) return;
    stack_.push_back({.node = {.kind = kind, .position = ToPosition(mark)}});
  }

  void Close() {
    if (error_) return;
    YamlNode node = std::move(stack_.back().node);
    stack_.pop_back();
    Add(std::move(node));
  }

  void Add(YamlNode node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = stack_.back();
    if (frame.node.kind == YamlNode::Kind::kSequence) {
      frame.node.items.push_back(std::move(node));
    } else if (!frame.key) {
      frame.key = std::move(node);
    } else {
      frame.node.entries.push_back({.key = std::move(*frame.key), .value = std::move(node)});
      frame.key.reset();
    }
  }

  std::vector<Frame> stack_;
  SourceMap::Position document_;
  YamlNode root_;
  std::optional<FieldViolation> error_;
};

YamlTree ErrorTree(SourceMap::Position position, std::string description) {
  return {.error = FieldViolation{
              .line = position.line, .column = position.column, .description = std::move(description)}};
}

}  // namespace

YamlTree ParseYamlTree(absl::string_view text) {
  if (const std::optional<size_t> bad = FindBadText(text)) {
    const absl::string_view before = text.substr(0, *bad);
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const size_t line_start = before.rfind('\n') == absl::string_view::npos ? 0 : before.rfind('\n') + 1;
    return ErrorTree({static_cast<int>(lines) + 1, static_cast<int>(*bad - line_start) + 1},
                     "is not UTF-8 text, or holds a control character: save the file as plain UTF-8");
  }
  std::istringstream stream{std::string(text)};
  TreeBuilder builder, second;
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) {
      return ErrorTree({1, 1}, "the file is empty: see README.md for a job file to start from");
    }
    YamlTree tree = std::move(builder).Take();
    if (!tree.error && parser.HandleNextDocument(second)) {
      return ErrorTree(second.document(), "a second document (---) is not allowed: one job per file");
    }
    return tree;
  } catch (const YAML::Exception& error) {
    return ErrorTree(ToPosition(error.mark), absl::StrCat("is not valid YAML: ", error.msg));
  } catch (const std::exception& error) {
    return ErrorTree({1, 1}, absl::StrCat("is not valid YAML: ", error.what()));
  }
}

}  // namespace strata
