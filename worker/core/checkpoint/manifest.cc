#include "worker/core/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "worker/core/base/sha256.h"

namespace coat::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kOwnHash = "manifest_sha256";

Json tensor_json(const TensorEntry& tensor) {
  return {{"name", tensor.name},
          {"dtype", tensor.dtype},
          {"shape", tensor.shape},
          {"bytes", tensor.bytes},
          {"offset", tensor.offset}};
}

Json file_json(const FileEntry& file) {
  Json tensors = Json::array();
  for (const TensorEntry& tensor : file.tensors) tensors.push_back(tensor_json(tensor));
  return {
      {"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}, {"tensors", std::move(tensors)}};
}

Json progress_json(const Progress& progress) {
  return {{"step", progress.step},
          {"data_position", progress.data_position},
          {"tokens", progress.tokens},
          {"nonfinite_steps", progress.nonfinite_steps},
          {"consecutive_nonfinite_steps", progress.consecutive_nonfinite_steps},
          {"first_loss", progress.first_loss},
          {"recent_losses", progress.recent_losses}};
}

FileEntry read_file(const Json& json) {
  FileEntry file{.name = json.at("name"), .bytes = json.at("bytes"), .sha256 = json.at("sha256")};
  for (const Json& tensor : json.at("tensors")) {
    file.tensors.push_back({.name = tensor.at("name"),
                            .dtype = tensor.at("dtype"),
                            .shape = tensor.at("shape").get<std::vector<std::int64_t>>(),
                            .bytes = tensor.at("bytes"),
                            .offset = tensor.at("offset")});
  }
  return file;
}

Progress read_progress(const Json& json) {
  return {.step = json.at("step"),
          .data_position = json.at("data_position"),
          .tokens = json.at("tokens"),
          .nonfinite_steps = json.at("nonfinite_steps"),
          .consecutive_nonfinite_steps = json.at("consecutive_nonfinite_steps"),
          .first_loss = json.at("first_loss"),
          .recent_losses = json.at("recent_losses").get<std::vector<double>>()};
}

Manifest read_manifest(const Json& json) {
  Manifest manifest;
  manifest.progress = read_progress(json.at("progress"));
  for (const auto& item : json.at("identity").items())
    manifest.identity.emplace_back(item.key(), item.value());
  manifest.spec_json = json.at("spec").get<std::string>();
  manifest.epoch = json.at("epoch");
  for (const Json& file : json.at("files")) manifest.files.push_back(read_file(file));
  return manifest;
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  Json identity = Json::object();
  for (const auto& [field, value] : manifest.identity) identity[field] = value;
  Json files = Json::array();
  for (const FileEntry& file : manifest.files) files.push_back(file_json(file));
  Json json = {{"format_version", kFormatVersion}, {"progress", progress_json(manifest.progress)},
               {"identity", std::move(identity)},  {"spec", manifest.spec_json},
               {"epoch", manifest.epoch},          {"files", std::move(files)}};
  json[kOwnHash] = sha256_hex(json.dump());
  return json.dump(1) + "\n";
}

Manifest parse_manifest(const std::string& text) {
  try {
    Json json = Json::parse(text);
    const int version = json.at("format_version");
    if (version > kFormatVersion) {
      throw ManifestError("has format version " + std::to_string(version) + ", newer than this program's " +
                          std::to_string(kFormatVersion));
    }
    const std::string said = json.at(kOwnHash);
    json.erase(kOwnHash);
    const std::string found = sha256_hex(json.dump());
    if (said != found) throw ManifestError("has SHA-256 " + found + " where it says " + said);
    return read_manifest(json);
  } catch (const Json::exception& error) {
    throw ManifestError("is damaged: " + std::string(error.what()));
  }
}

}  // namespace coat::checkpoint
