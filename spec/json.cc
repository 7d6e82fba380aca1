// The JSON form: reading it strictly, and writing it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <nlohmann/json.hpp>

#include "spec/fields.h"

namespace coat::spec {
namespace {

using Json = nlohmann::ordered_json;

std::string kind_of(const Json& value) {
  if (value.is_string()) return "the text " + quoted(value.get<std::string>());
  if (value.is_object()) return "a mapping";
  if (value.is_array()) return "a list";
  if (value.is_null()) return "empty";
  return value.dump();
}

// The number that a text with a unit begins with ("10 steps"), for the fix.
std::string leading_number(const Json& value, bool whole) {
  constexpr double kExactIntegers = 9e15;
  if (!value.is_string()) return {};
  const std::string text = value.get<std::string>();
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number)) return {};
  if (!whole) return number_text(number);
  if (std::abs(number) > kExactIntegers || number != std::floor(number)) return {};
  return std::to_string(static_cast<std::int64_t>(number));
}

// Decimal digits as protobuf writes them: "010" is not 10 to everyone.
template <typename Integer>
bool integer_from_text(const std::string& text, Integer& out) {
  const std::size_t first = text.starts_with('-') ? 1 : 0;
  if (text.size() > first + 1 && text[first] == '0') return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

bool read(const Json& value, std::int64_t& out) {
  if (value.is_string()) return integer_from_text(value.get<std::string>(), out);
  if (value.is_number_unsigned()) {
    const std::uint64_t number = value.get<std::uint64_t>();
    if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return false;
    out = static_cast<std::int64_t>(number);
    return true;
  }
  if (!value.is_number_integer()) return false;
  out = value.get<std::int64_t>();
  return true;
}

bool read(const Json& value, std::uint64_t& out) {
  if (value.is_string()) return integer_from_text(value.get<std::string>(), out);
  if (!value.is_number_unsigned()) return false;
  out = value.get<std::uint64_t>();
  return true;
}

bool read(const Json& value, double& out) {
  if (value.is_number()) {
    out = value.get<double>();
    return true;
  }
  if (!value.is_string()) return false;
  const std::string text = value.get<std::string>();
  if (text == "NaN") out = std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") out = std::numeric_limits<double>::infinity();
  if (text == "-Infinity") out = -std::numeric_limits<double>::infinity();
  return text == "NaN" || text == "Infinity" || text == "-Infinity";
}

bool read(const Json& value, bool& out) {
  if (value.is_boolean()) out = value.get<bool>();
  return value.is_boolean();
}

bool read(const Json& value, std::string& out) {
  if (value.is_string()) out = value.get<std::string>();
  return value.is_string();
}

std::string wanted(const IntegerRule& rule, const Json& value) {
  const std::string number = leading_number(value, true);
  if (number.empty())
    return "write a whole number, for example " + std::to_string(std::max<std::int64_t>(rule.min, 1));
  return "write a whole number without a unit, for example " + number;
}
std::string wanted(const SeedRule&, const Json&) {
  return "write a whole number from 0 to 18446744073709551615";
}
std::string wanted(const RealRule& rule, const Json& value) {
  const std::string number = leading_number(value, false);
  if (number.empty())
    return "write a number, for example " +
           number_text(rule.above_min ? rule.max > 1 ? 1.0 : 1e-5 : rule.min);
  return "write a number without a unit, for example " + number;
}
std::string wanted(const FlagRule&, const Json&) { return "write true or false"; }
std::string wanted(const TextRule& rule, const Json&) {
  return rule.choices.empty() ? "write a text" : "use " + one_of(rule.choices);
}

class Reader {
 public:
  Reader(const Json& root, ParseResult& result) : root_(root), result_(result) {}

  void run() {
    report_unknown();
    visit_fields(result_.spec, *this);
    // A spec that says nothing of kv_heads means ordinary multi-head attention; what is wrong with heads is
    // told once.
    if (!present_.contains("model.kv_heads")) {
      result_.spec.model.kv_heads = result_.spec.model.heads;
      unreadable_.emplace_back("model.kv_heads");
    }
    const std::vector<Violation> rules = check_rules(result_.spec, unreadable_);
    result_.violations.insert(result_.violations.end(), rules.begin(), rules.end());
  }

  template <typename Value, typename Rule>
  void operator()(const std::string& path, Value& out, const Rule& rule) {
    const Json* value = find(path);
    if (value == nullptr) return report_missing(path, rule);
    present_.insert(path);
    if (!read(*value, out)) refuse(path, "is " + kind_of(*value), wanted(rule, *value));
  }

  void operator()(const std::string& path, std::map<std::string, std::string>& out, const LabelsRule&) {
    const Json* value = find(path);
    if (value == nullptr) return;
    if (!value->is_object())
      return refuse(path, "is " + kind_of(*value), "write a mapping of names to texts");
    for (const auto& [key, text] : value->items()) {
      if (!read(text, out[key])) refuse(path + "." + key, "is " + kind_of(text), "write a text in quotes");
    }
  }

 private:
  void refuse(const std::string& field, std::string message, std::string fix) {
    result_.violations.push_back({field, std::move(message), std::move(fix)});
    unreadable_.push_back(field);
  }

  bool unreadable(const std::string& field) const {
    return std::find(unreadable_.begin(), unreadable_.end(), field) != unreadable_.end();
  }

  template <typename Rule>
  void report_missing(const std::string& path, const Rule& rule) {
    if constexpr (std::is_same_v<Rule, TextRule> || std::is_same_v<Rule, IntegerRule>) {
      if (rule.presence != Presence::kRequired || unreadable(path)) return;
      const std::string example = path == "name" ? "my-job" : path == "data.path" ? "/data/text.txt" : "100";
      refuse(path, "is required", "add it, for example " + path + " = " + example);
    }
  }

  // The value at the path; nothing when the person did not write it or when its section is no mapping.
  const Json* find(const std::string& path) {
    const std::size_t dot = path.find('.');
    const auto outer = root_.find(path.substr(0, dot));
    if (outer == root_.end()) return nullptr;
    if (dot == std::string::npos) return &*outer;
    if (!outer->is_object()) {
      unreadable_.push_back(path);
      return nullptr;
    }
    const auto inner = outer->find(path.substr(dot + 1));
    return inner == outer->end() ? nullptr : &*inner;
  }

  // Names that may stand in a section ("" is the top level).
  static std::vector<std::string> known_names(const std::string& section) {
    std::vector<std::string> names;
    for (const std::string& path : field_paths()) {
      std::string name = path.substr(0, path.find('.'));
      if (!section.empty()) {
        if (!path.starts_with(section + ".")) continue;
        name = path.substr(section.size() + 1);
      }
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }

  void report_unknown() {
    const std::vector<std::string> sections = known_names("");
    for (const auto& [key, value] : root_.items()) {
      if (std::find(sections.begin(), sections.end(), key) == sections.end()) {
        report_unknown_field("", key, sections);
        continue;
      }
      const std::vector<std::string> names = known_names(key);
      if (names.empty()) continue;
      if (!value.is_object()) {
        result_.violations.push_back({key, "is " + kind_of(value), "write a mapping of " + one_of(names)});
        continue;
      }
      for (const auto& [name, unused] : value.items()) {
        if (std::find(names.begin(), names.end(), name) == names.end())
          report_unknown_field(key, name, names);
      }
    }
  }

  void report_unknown_field(const std::string& section, const std::string& name,
                            const std::vector<std::string>& known) {
    const std::string prefix = section.empty() ? "" : section + ".";
    std::string fix;
    if (const auto nearest = nearest_name(name, known)) {
      fix = "did you mean " + prefix + *nearest + "?";
    } else if (const std::string other = elsewhere(name); !other.empty()) {
      fix = "did you mean " + other + "?";
    } else {
      fix = "known here: " + one_of(known);
    }
    result_.violations.push_back({prefix + name, "is not a known field", fix});
  }

  // The field of another section whose name is nearest.
  static std::string elsewhere(const std::string& name) {
    std::vector<std::string> names;
    for (const std::string& path : field_paths()) names.push_back(path.substr(path.rfind('.') + 1));
    const std::optional<std::string> nearest = nearest_name(name, names);
    if (!nearest) return {};
    const auto place = std::find(names.begin(), names.end(), *nearest) - names.begin();
    return field_paths()[static_cast<std::size_t>(place)];
  }

  const Json& root_;
  ParseResult& result_;
  std::set<std::string> present_;
  std::vector<std::string> unreadable_;
};

// Sees each key as it is parsed, since a parsed object has only one of two equal keys.
class DuplicateKeys {
 public:
  explicit DuplicateKeys(std::vector<Violation>& violations) : violations_(violations) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    const auto level = static_cast<std::size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      seen_.resize(level + 2);
      seen_[level + 1].clear();
    } else if (event == Json::parse_event_t::key) {
      path_.resize(level);
      path_[level - 1] = value.get<std::string>();
      if (!seen_[level].insert(path_.back()).second) report();
    }
    return true;
  }

 private:
  void report() {
    std::string field;
    for (const std::string& key : path_) field += (field.empty() ? "" : ".") + key;
    violations_.push_back({field, "is there twice", "keep one of them"});
  }

  std::vector<Violation>& violations_;
  std::vector<std::set<std::string>> seen_;
  std::vector<std::string> path_;
};

class Writer {
 public:
  template <typename Value, typename Rule>
  void operator()(const std::string& path, const Value& value, const Rule&) {
    const std::size_t dot = path.find('.');
    Json& place = dot == std::string::npos ? root_[path] : root_[path.substr(0, dot)][path.substr(dot + 1)];
    place = value;
    if constexpr (std::is_same_v<Value, double>) {
      if (!std::isfinite(value)) place = number_text(value);
    }
  }

  std::string text() const { return root_.dump(-1, ' ', false, Json::error_handler_t::replace); }

 private:
  Json root_ = Json::object();
};

}  // namespace

ParseResult parse_json(const std::string& json_text) {
  ParseResult result;
  Json root;
  try {
    root = Json::parse(json_text, DuplicateKeys(result.violations));
  } catch (const Json::exception& error) {
    const std::string text = error.what();
    const std::size_t prefix = text.find("] ");
    result.violations = {{"", "is not JSON: " + text.substr(prefix == std::string::npos ? 0 : prefix + 2),
                          "send one JSON object"}};
    return result;
  }
  if (!root.is_object()) {
    result.violations = {{"", "is " + kind_of(root), "send one JSON object"}};
    return result;
  }
  Reader(root, result).run();
  sort_by_field(result.violations);
  return result;
}

std::string to_json(const JobSpec& spec) {
  Writer writer;
  visit_fields(spec, writer);
  return writer.text();
}

}  // namespace coat::spec
