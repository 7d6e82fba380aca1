#include "proto/common/yaml_tree.h"

#include <optional>
#include <sstream>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

namespace coat {
namespace {

int line_of(const YAML::Mark& mark) { return mark.line + 1; }

// Builds the tree from the parser's events. A mapping's events alternate between keys and values.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& text) : text_(text) {}

  void OnDocumentStart(const YAML::Mark& mark) override { document_line_ = line_of(mark); }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(checked({YamlTree::Kind::kNull, line_of(mark)}, "", anchor));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    add({YamlTree::Kind::kRefused, line_of(mark), "an alias (*)"});
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // yaml-cpp's tags of scalars without one: "?" where plain, "!" where quoted or a block.
    const bool quoted = tag == "!";
    if (quoted && !is_closed(static_cast<std::size_t>(mark.pos))) {
      throw YamlError(line_of(mark), "a quote is opened and not closed", "close it");
    }
    add(checked({YamlTree::Kind::kScalar, line_of(mark), value, quoted}, tag, anchor));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open_.push_back({checked({YamlTree::Kind::kSequence, line_of(mark)}, tag, anchor), std::nullopt});
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open_.push_back({checked({YamlTree::Kind::kMapping, line_of(mark)}, tag, anchor), std::nullopt});
  }
  void OnMapEnd() override { close(); }

  YamlTree take_root() { return std::move(root_); }
  int document_line() const { return document_line_; }

 private:
  struct Open {
    YamlTree node;
    std::optional<YamlEntry> entry;  // whose value has not come yet
  };

  // yaml-cpp takes the end of the file for the end of a quoted scalar.
  bool is_closed(std::size_t begin) const {
    if (begin >= text_.size() || (text_[begin] != '"' && text_[begin] != '\'')) return true;
    const char quote = text_[begin];
    for (std::size_t i = begin + 1; i < text_.size(); ++i) {
      const bool doubled = quote == '\'' && text_.compare(i, 2, "''") == 0;
      if (doubled || (quote == '"' && text_[i] == '\\')) {
        ++i;
      } else if (text_[i] == quote) {
        return true;
      }
    }
    return false;
  }

  static YamlTree checked(YamlTree node, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) return {YamlTree::Kind::kRefused, node.line, "an anchor (&)"};
    if (!tag.empty() && tag != "?" && tag != "!")
      return {YamlTree::Kind::kRefused, node.line, "the tag " + tag};
    return node;
  }

  void close() {
    YamlTree node = std::move(open_.back().node);
    open_.pop_back();
    add(std::move(node));
  }

  void add(YamlTree node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind != YamlTree::Kind::kMapping)
      return;  // no field is a list: what is in one does not matter
    if (parent.entry) {
      parent.entry->value = std::move(node);
      parent.node.entries.push_back(std::move(*parent.entry));
      parent.entry.reset();
    } else if (node.kind == YamlTree::Kind::kScalar) {
      parent.entry = YamlEntry{std::move(node.text), node.line, {}};
    } else {
      throw YamlError(node.line, "a key is not a plain name", "write `name: value`");
    }
  }

  const std::string& text_;
  std::vector<Open> open_;
  YamlTree root_;
  int document_line_ = 0;
};

}  // namespace

YamlTree parse_yaml_tree(const std::string& text) {
  std::istringstream stream(text);
  TreeBuilder builder(text);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    TreeBuilder second(text);
    if (parser.HandleNextDocument(second)) {
      throw YamlError(second.document_line(), "a second document begins", "keep one job in a file");
    }
  } catch (const YAML::Exception& error) {
    throw YamlError(line_of(error.mark), "is not YAML: " + error.msg,
                    "look at the indentation and quotes around this line");
  }
  return builder.take_root();
}

}  // namespace coat
