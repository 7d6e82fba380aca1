// Any message of ours as JSON: proto field names, numbers that are not finite as protobuf's strings ("NaN"),
// stable order.
#pragma once

#include <string>

#include <google/protobuf/message.h>

namespace coat {

// `pretty`: indented by two. Throws std::runtime_error when protobuf refuses (bytes that are no UTF-8).
std::string message_to_json(const google::protobuf::Message& message, bool pretty);
// Returns an empty string, or what is wrong.
std::string message_from_json(const std::string& json, google::protobuf::Message* message);

}  // namespace coat
