// A YAML document as it was written: lines, quoting and repeated keys are kept, which yaml-cpp's own nodes
// lose.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace coat {

struct YamlEntry;

struct YamlTree {
  // kRefused: an anchor, an alias or an explicit tag; `text` says which.
  enum class Kind { kNull, kScalar, kSequence, kMapping, kRefused };
  Kind kind = Kind::kNull;
  int line = 0;  // counted from 1
  std::string text;
  bool quoted = false;             // a scalar in quotes or a block: always a text
  std::vector<YamlEntry> entries;  // of a mapping, in the order of the file
};

struct YamlEntry {
  std::string key;
  int line = 0;  // of the key
  YamlTree value;
};

// No YAML, or not what a job file may be.
struct YamlError : std::runtime_error {
  YamlError(int at_line, const std::string& message, std::string how)
      : std::runtime_error(message), line(at_line), fix(std::move(how)) {}
  int line;  // 0: of no line
  std::string fix;
};

// The one document of `text`. Throws YamlError.
YamlTree parse_yaml_tree(const std::string& text);

}  // namespace coat
