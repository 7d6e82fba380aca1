#include "proto/common/spec_conversion.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "proto/common/message_json.h"
#include "proto/common/yaml_tree.h"
#include "spec/fields.h"

namespace coat {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxFileBytes = 1 << 20;

// Whether the field at this path holds a text, so that `name: 2024` needs no quotes.
bool is_text_field(const std::string& path) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Descriptor* message = v1::JobSpec::descriptor();
  std::size_t begin = 0;
  while (message != nullptr) {
    const std::size_t dot = path.find('.', begin);
    const std::string name = path.substr(begin, dot == std::string::npos ? dot : dot - begin);
    const FieldDescriptor* field = message->FindFieldByName(name);
    if (field == nullptr) return false;
    if (field->is_map()) return dot != std::string::npos;
    if (dot == std::string::npos) return field->type() == FieldDescriptor::TYPE_STRING;
    message = field->message_type();
    begin = dot + 1;
  }
  return false;
}

// A plain scalar by YAML 1.2's core schema: decimal numbers, true, false; anything else stays a text. Not of
// this list on purpose: yes and no, octal, hexadecimal, digits with separators.
Json plain_value(const std::string& text) {
  static const std::regex integer("[-+]?(0|[1-9][0-9]*)");
  static const std::regex real("[-+]?([.][0-9]+|(0|[1-9][0-9]*)([.][0-9]*)?)([eE][-+]?[0-9]+)?");
  static const std::regex infinite("([-+]?)[.](inf|Inf|INF)");
  constexpr double kExactIntegers = 9007199254740992.0;  // 2^53
  std::smatch match;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (text == ".nan" || text == ".NaN" || text == ".NAN") return "NaN";
  if (std::regex_match(text, match, infinite)) return match[1] == "-" ? "-Infinity" : "Infinity";
  constexpr std::size_t kLongestNumber = 64;
  if (text.size() > kLongestNumber || !std::regex_match(text, real)) return text;
  if (std::regex_match(text, integer)) {
    // Integers that 64 bits hold stay exact; larger ones stay a text, which is refused with its digits.
    const Json exact = Json::parse(text.front() == '+' ? text.substr(1) : text);
    return exact.is_number_integer() ? exact : Json(text);
  }
  const double number = std::strtod(text.c_str(), nullptr);
  if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
  if (number == std::floor(number) && std::abs(number) <= kExactIntegers)
    return static_cast<std::int64_t>(number);
  return number;
}

std::string child(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

// A YAML tree and overrides become the JSON form of a spec; remembers where each field was written.
class SpecReader {
 public:
  void read_tree(const YamlTree& root) {
    if (root.kind == YamlTree::Kind::kNull) {
      add("", root.line, "is empty", "write at least name, data.path and training.steps");
    } else if (root.kind != YamlTree::Kind::kMapping) {
      add("", root.line, "is not a mapping of fields", "write lines such as `name: my-job`");
    } else {
      json_ = convert(root, "");
      is_mapping_ = true;
    }
  }

  void override_field(const std::string& path, const std::string& value) {
    const std::vector<std::string>& known = spec::field_paths();
    const bool label = path.starts_with("labels.") && path.size() > std::string("labels.").size();
    if (!label && (path == "labels" || std::find(known.begin(), known.end(), path) == known.end())) {
      const std::optional<std::string> nearest = spec::nearest_name(path, known);
      violations_.push_back({path, "is not a field that --set can change",
                             path == "labels" ? "write --set labels.KEY=VALUE"
                             : nearest        ? "did you mean " + *nearest + "?"
                                              : "see `coat submit --help`"});
      return;
    }
    const std::size_t dot = path.find('.');
    Json& section = dot == std::string::npos ? json_ : json_[path.substr(0, dot)];
    if (!section.is_object() && !section.is_null()) return;  // already wrong in the file
    section[dot == std::string::npos ? path : path.substr(dot + 1)] = scalar_value(path, value);
    places_[path] = "--set";
  }

  // Every problem, of the YAML and of the spec.
  std::vector<spec::Violation> finish() {
    if (!is_mapping_) return violations_;
    const spec::ParseResult parsed = spec::parse_json(json_.dump());
    for (spec::Violation violation : parsed.violations) {
      if (told_.contains(violation.field)) continue;
      if (const std::string place = place_of(violation.field); !place.empty())
        violation.message += " (" + place + ")";
      violations_.push_back(std::move(violation));
    }
    spec::sort_by_field(violations_);
    return violations_;
  }

  std::string json() const { return json_.dump(); }

 private:
  Json convert(const YamlTree& node, const std::string& path) {
    switch (node.kind) {
      case YamlTree::Kind::kNull:
        return nullptr;
      case YamlTree::Kind::kSequence:
        return Json::array();
      case YamlTree::Kind::kScalar:
        return convert_scalar(node, path);
      case YamlTree::Kind::kRefused:
        add(path, node.line, "is " + node.text, "write the value itself");
        return nullptr;
      case YamlTree::Kind::kMapping:
        break;
    }
    Json result = Json::object();
    std::map<std::string, int> first_lines;
    for (const auto& [key, line, value] : node.entries) {
      const std::string inner = child(path, key);
      const auto [first, is_new] = first_lines.emplace(key, line);
      if (!is_new) {
        add(inner, line, "is there twice, first in line " + std::to_string(first->second),
            "keep one of them");
        continue;
      }
      places_[inner] = "line " + std::to_string(line);
      Json converted = convert(value, inner);
      // What was refused here has been told already.
      if (value.kind != YamlTree::Kind::kRefused) result[key] = std::move(converted);
    }
    return result;
  }

  Json convert_scalar(const YamlTree& node, const std::string& path) {
    if (is_text_field(path)) return node.text;
    const Json value = plain_value(node.text);
    if (node.quoted && !value.is_string()) {
      add(path, node.line, "is the text \"" + node.text + "\"", "write " + node.text + " without quotes");
    }
    return value;
  }

  static Json scalar_value(const std::string& path, const std::string& value) {
    if (!is_text_field(path)) return value.empty() ? Json(nullptr) : plain_value(value);
    if (value.empty() || (value.front() != '"' && value.front() != '\'')) return value;
    try {
      const YamlTree tree = parse_yaml_tree(value);
      if (tree.kind == YamlTree::Kind::kScalar) return tree.text;
    } catch (const YamlError&) {
      // Not a quoted scalar, so it is taken as it stands.
    }
    return value;
  }

  void add(const std::string& field, int line, const std::string& message, const std::string& fix) {
    const std::string place = line > 0 ? " (line " + std::to_string(line) + ")" : "";
    violations_.push_back({field, message + place, fix});
    told_.insert(field);
  }

  std::string place_of(const std::string& field) const {
    const auto found = places_.find(field);
    return found == places_.end() ? std::string() : found->second;
  }

  Json json_ = Json::object();
  bool is_mapping_ = false;
  std::vector<spec::Violation> violations_;
  std::set<std::string> told_;  // fields of violations_
  std::map<std::string, std::string> places_;
};

// What is wrong with the bytes themselves.
std::optional<spec::Violation> check_bytes(const std::string& text) {
  if (text.size() > kMaxFileBytes) {
    return spec::Violation{"", "has " + std::to_string(text.size()) + " bytes: is it a job file?",
                           "at most 1 MiB is read"};
  }
  if (text.find('\0') != std::string::npos)
    return spec::Violation{"", "holds NUL bytes", "write it as UTF-8 text"};
  try {
    static_cast<void>(Json(text).dump());
  } catch (const Json::exception&) {
    return spec::Violation{"", "is not UTF-8 text", "save it as UTF-8"};
  }
  return std::nullopt;
}

ServiceError bad_file(const std::string& file_name, std::vector<spec::Violation> violations) {
  // A problem of no field is one of the file.
  for (spec::Violation& violation : violations) {
    if (violation.field.empty()) violation.field = file_name;
  }
  ServiceError error = invalid_argument(std::move(violations));
  error.metadata["file"] = file_name;
  return error;
}

}  // namespace

std::string spec_json(const v1::JobSpec& message) { return message_to_json(message, false); }

spec::ParseResult check_spec(const v1::JobSpec& message) {
  std::string json;
  try {
    json = spec_json(message);
  } catch (const std::runtime_error& error) {
    spec::ParseResult result;
    result.violations = {{"", error.what(), "send texts as UTF-8"}};
    return result;
  }
  return spec::parse_json(json);
}

v1::JobSpec to_message(const spec::JobSpec& spec) {
  v1::JobSpec message;
  const std::string problem = message_from_json(spec::to_json(spec), &message);
  if (!problem.empty()) throw std::logic_error("spec::JobSpec and coat.v1.JobSpec differ: " + problem);
  return message;
}

Result<v1::JobSpec> parse_yaml(const std::string& text, const std::string& file_name,
                               const std::vector<std::pair<std::string, std::string>>& overrides) {
  if (const auto violation = check_bytes(text)) return bad_file(file_name, {*violation});
  SpecReader reader;
  try {
    const bool has_byte_order_mark = text.starts_with("\xef\xbb\xbf");
    reader.read_tree(parse_yaml_tree(has_byte_order_mark ? text.substr(3) : text));
  } catch (const YamlError& error) {
    const std::string place = error.line > 0 ? " (line " + std::to_string(error.line) + ")" : "";
    return bad_file(file_name, {{"", error.what() + place, error.fix}});
  }
  for (const auto& [path, value] : overrides) {
    if (const auto violation = check_bytes(value)) return bad_file("--set " + path, {*violation});
    reader.override_field(path, value);
  }
  std::vector<spec::Violation> violations = reader.finish();
  if (!violations.empty()) return bad_file(file_name, std::move(violations));
  v1::JobSpec message;
  const std::string problem = message_from_json(reader.json(), &message);
  if (!problem.empty()) return bad_file(file_name, {{"", problem, ""}});
  return message;
}

}  // namespace coat
