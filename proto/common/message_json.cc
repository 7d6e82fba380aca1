#include "proto/common/message_json.h"

#include <memory>
#include <stdexcept>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/type_resolver_util.h>

namespace coat {
namespace {

constexpr const char* kTypePrefix = "type.googleapis.com";

google::protobuf::util::TypeResolver& resolver() {
  static const std::unique_ptr<google::protobuf::util::TypeResolver> instance(
      google::protobuf::util::NewTypeResolverForDescriptorPool(
          kTypePrefix, google::protobuf::DescriptorPool::generated_pool()));
  return *instance;
}

// Maps in the order of their keys: MessageToJsonString leaves that order to chance.
std::string deterministic_bytes(const google::protobuf::Message& message) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

}  // namespace

std::string message_to_json(const google::protobuf::Message& message, bool pretty) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = pretty;
  const std::string& type = message.GetDescriptor()->full_name();
  std::string json;
  const auto status = google::protobuf::util::BinaryToJsonString(
      &resolver(), std::string(kTypePrefix) + "/" + type, deterministic_bytes(message), &json, options);
  if (!status.ok()) throw std::runtime_error(type + " has no JSON form: " + std::string(status.message()));
  return json;
}

std::string message_from_json(const std::string& json, google::protobuf::Message* message) {
  const auto status = google::protobuf::util::JsonStringToMessage(json, message);
  return status.ok() ? std::string() : std::string(status.message());
}

}  // namespace coat
