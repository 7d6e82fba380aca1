// JSON and YAML of messages.
#include <regex>

#include <nlohmann/json.hpp>
#include <yaml-cpp/emitter.h>
#include <yaml-cpp/emittermanip.h>

#include "client/cli/output.h"
#include "proto/common/message_json.h"

namespace coat::cli {
namespace {

using Json = nlohmann::ordered_json;

// Texts that a reader of YAML 1.1 or 1.2 would take for something else when they stand without quotes.
bool needs_quotes(const std::string& text) {
  static const std::regex number("[-+]?[.]?[0-9][-+0-9a-fA-FxXoOeE_.:]*");
  static const std::regex word("(~|null|true|false|yes|no|on|off|y|n|[-+]?[.]inf|[.]nan)", std::regex::icase);
  constexpr std::size_t kLongestWord = 64;
  return text.empty() ||
         (text.size() <= kLongestWord && (std::regex_match(text, number) || std::regex_match(text, word)));
}

void emit(YAML::Emitter& out, const Json& value) {
  if (value.is_object()) {
    out << YAML::BeginMap;
    for (const auto& [key, inner] : value.items()) {
      out << YAML::Key;
      emit(out, Json(key));
      out << YAML::Value;
      emit(out, inner);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::BeginSeq;
    for (const Json& inner : value) emit(out, inner);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    if (needs_quotes(text)) out << YAML::DoubleQuoted;
    out << text;
  } else if (value.is_null()) {
    out << YAML::Null;
  } else {
    out << value.dump();
  }
}

}  // namespace

std::string json_to_yaml(const std::string& json) {
  YAML::Emitter out;
  emit(out, Json::parse(json));
  return std::string(out.c_str()) + "\n";
}

void print_message(std::ostream& out, Format format, const google::protobuf::Message& message) {
  const std::string json = message_to_json(message, true);
  out << (format == Format::kYaml ? json_to_yaml(json) : json);
}

void print_messages(std::ostream& out, Format format, const std::string& field,
                    const std::vector<const google::protobuf::Message*>& messages) {
  Json list = Json::array();
  for (const google::protobuf::Message* message : messages)
    list.push_back(Json::parse(message_to_json(*message, false)));
  Json whole = Json::object();
  whole[field] = std::move(list);
  out << (format == Format::kYaml ? json_to_yaml(whole.dump()) : whole.dump(2) + "\n");
}

}  // namespace coat::cli
