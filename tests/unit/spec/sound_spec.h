// The smallest job that breaks no rule, and changes to its JSON form.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "spec/job_spec.h"

namespace coat::spec {

inline nlohmann::ordered_json sound_json() {
  return nlohmann::ordered_json::parse(
      R"({"name": "a-job", "data": {"path": "/data/text"}, "training": {"steps": 100}})");
}

// The sound job with one field changed; `path` is "section.name" or a name of the top level.
template <typename Value>
ParseResult parse_with(const std::string& path, const Value& value) {
  nlohmann::ordered_json json = sound_json();
  const std::size_t dot = path.find('.');
  if (dot == std::string::npos) {
    json[path] = value;
  } else {
    json[path.substr(0, dot)][path.substr(dot + 1)] = value;
  }
  return parse_json(json.dump());
}

}  // namespace coat::spec
