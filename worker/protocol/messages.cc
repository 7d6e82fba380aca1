#include "worker/protocol/messages.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <set>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "worker/protocol/message_fields.h"

namespace coat::protocol {
namespace {

using Json = nlohmann::ordered_json;

template <typename Message>
constexpr const char* kName = nullptr;
template <>
constexpr const char* kName<Started> = "started";
template <>
constexpr const char* kName<Step> = "step";
template <>
constexpr const char* kName<Checkpoint> = "checkpoint";
template <>
constexpr const char* kName<Summary> = "summary";
template <>
constexpr const char* kName<Failure> = "failure";
template <>
constexpr const char* kName<SaveCheckpoint> = "save_checkpoint";
template <>
constexpr const char* kName<StopAfterCheckpoint> = "stop_after_checkpoint";

// --- writing

Json write(const std::string& value) { return value; }
Json write(bool value) { return value; }
Json write(int value) { return value; }
Json write(std::int64_t value) { return value; }

Json write(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

template <typename T>
Json write(const std::vector<T>& values);

template <typename Message>
Json write(const Message& message) {
  Json object = Json::object();
  for_each_field(message, [&](const char* name, const auto& field) { object[name] = write(field); });
  return object;
}

template <typename T>
Json write(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(write(value));
  return array;
}

// Bytes that are no UTF-8 are replaced rather than refused: a message must never be lost over its text.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

template <typename Message>
std::string tagged_line(const char* tag, const Message& message) {
  Json object = Json::object();
  object[tag] = kName<Message>;
  for_each_field(message, [&](const char* name, const auto& field) { object[name] = write(field); });
  return dump(object);
}

// --- reading

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::invalid_argument("field '" + path + "' " + why);
}

void read(const Json& json, const std::string& path, std::string* out) {
  if (!json.is_string()) refuse(path, "must be a string");
  *out = json.get<std::string>();
}

void read(const Json& json, const std::string& path, bool* out) {
  if (!json.is_boolean()) refuse(path, "must be true or false");
  *out = json.get<bool>();
}

void read(const Json& json, const std::string& path, std::int64_t* out) {
  if (!json.is_number_integer()) refuse(path, "must be an integer");
  if (json.is_number_unsigned() &&
      json.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse(path, "does not fit into 64 bits");
  }
  *out = json.get<std::int64_t>();
}

void read(const Json& json, const std::string& path, int* out) {
  std::int64_t wide = 0;
  read(json, path, &wide);
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    refuse(path, "does not fit into 32 bits");
  }
  *out = static_cast<int>(wide);
}

void read(const Json& json, const std::string& path, double* out) {
  if (json.is_number()) {
    *out = json.get<double>();
    return;
  }
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  if (text == "NaN") {
    *out = std::numeric_limits<double>::quiet_NaN();
  } else if (text == "Infinity" || text == "-Infinity") {
    *out = text[0] == '-' ? -HUGE_VAL : HUGE_VAL;
  } else {
    refuse(path, R"(must be a number, "NaN", "Infinity" or "-Infinity")");
  }
}

template <typename T>
void read(const Json& json, const std::string& path, std::vector<T>* out);
template <typename Message>
void read(const Json& json, const std::string& path, Message* out);

// Every field must be there and no other; `tag` is the one name that belongs to the line and not to the
// message.
template <typename Message>
void read_object(const Json& json, const std::string& prefix, const char* tag, Message* out) {
  std::set<std::string> known;
  if (tag != nullptr) known.insert(tag);
  for_each_field(*out, [&](const char* name, auto& field) {
    known.insert(name);
    const auto found = json.find(name);
    if (found == json.end()) refuse(prefix + name, "is missing");
    read(*found, prefix + name, &field);
  });
  for (const auto& item : json.items()) {
    if (!known.contains(item.key())) refuse(prefix + item.key(), "is unknown");
  }
}

template <typename Message>
void read(const Json& json, const std::string& path, Message* out) {
  if (!json.is_object()) refuse(path, "must be an object");
  read_object(json, path + ".", nullptr, out);
}

template <typename T>
void read(const Json& json, const std::string& path, std::vector<T>* out) {
  if (!json.is_array()) refuse(path, "must be an array");
  out->clear();
  for (std::size_t i = 0; i < json.size(); ++i) {
    read(json[i], path + "[" + std::to_string(i) + "]", &out->emplace_back());
  }
}

Json parse_object(const std::string& line) {
  // A name that comes twice would silently lose its first value.
  std::vector<std::set<std::string>> open;
  const auto callback = [&open](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(parsed.get<std::string>()).second) {
      refuse(parsed.get<std::string>(), "appears twice");
    }
    return true;
  };
  Json json;
  try {
    json = Json::parse(line, callback);
  } catch (const Json::exception& error) {
    throw std::invalid_argument("the line is not JSON: " + std::string(error.what()));
  }
  if (!json.is_object()) throw std::invalid_argument("the line is not a JSON object");
  return json;
}

// Tries each alternative of the variant by its name.
template <typename Variant, std::size_t index = 0>
Variant read_tagged(const Json& json, const char* tag, const std::string& name) {
  if constexpr (index == std::variant_size_v<Variant>) {
    throw std::invalid_argument("unknown " + std::string(tag) + " '" + name + "'");
  } else {
    using Message = std::variant_alternative_t<index, Variant>;
    if (name != kName<Message>) return read_tagged<Variant, index + 1>(json, tag, name);
    Message message;
    read_object(json, "", tag, &message);
    return message;
  }
}

template <typename Variant>
Variant parse_tagged(const std::string& line, const char* tag) {
  const Json json = parse_object(line);
  const auto found = json.find(tag);
  if (found == json.end()) refuse(tag, "is missing");
  std::string name;
  read(*found, tag, &name);
  return read_tagged<Variant>(json, tag, name);
}

// RFC 3339 in UTC with milliseconds, as protobuf's JSON writes a Timestamp.
std::string timestamp(double unix_seconds) {
  const double milliseconds = std::floor(unix_seconds * 1000.0);
  const auto whole = static_cast<std::int64_t>(std::floor(milliseconds / 1000.0));
  const auto part = static_cast<int>(milliseconds - static_cast<double>(whole) * 1000.0);
  const auto seconds = static_cast<std::time_t>(whole);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char date[32];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  char text[48];
  std::snprintf(text, sizeof text, "%s.%03dZ", date, part);
  return text;
}

}  // namespace

std::string to_line(const Event& event) {
  return std::visit([](const auto& message) { return tagged_line("event", message); }, event);
}

std::string to_line(const Command& command) {
  return std::visit([](const auto& message) { return tagged_line("command", message); }, command);
}

std::string to_line(const Estimate& estimate) { return dump(write(estimate)); }

Event parse_event(const std::string& line) { return parse_tagged<Event>(line, "event"); }

Command parse_command(const std::string& line) { return parse_tagged<Command>(line, "command"); }

Estimate parse_estimate(const std::string& line) {
  Estimate estimate;
  read_object(parse_object(line), "", nullptr, &estimate);
  return estimate;
}

std::string to_metric_line(const Step& step, double unix_seconds) {
  Json object = Json::object();
  for_each_field(step, [&](const char* name, const auto& field) {
    if (std::string(name) == "remaining_seconds") return;  // progress, not a sample
    object[name] = write(field);
    if (std::string(name) == "step") object["sample_time"] = timestamp(unix_seconds);
  });
  return dump(object);
}

}  // namespace coat::protocol
