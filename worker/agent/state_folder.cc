#include "worker/agent/state_folder.h"

#include <stdexcept>
#include <string>
#include <system_error>

#include <nlohmann/json.hpp>

#include "worker/agent/durable_file.h"

namespace coat::agent {
namespace {

constexpr int kLayoutVersion = 1;

std::int64_t next_incarnation(const std::filesystem::path& folder) {
  const auto path = folder / "state.json";
  std::int64_t incarnation = 0;
  if (const auto text = read_file(path)) {
    try {
      const auto state = nlohmann::json::parse(*text);
      const int version = state.at("version").get<int>();
      if (version > kLayoutVersion) {
        throw std::runtime_error("--state-dir " + folder.string() +
                                 " was written by a newer coat-worker (layout " + std::to_string(version) +
                                 ", this one knows " + std::to_string(kLayoutVersion) +
                                 "): use that version, or another folder");
      }
      incarnation = state.at("incarnation").get<std::int64_t>();
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(path.string() + " is damaged (" + error.what() + "): use another --state-dir");
    }
  }
  ++incarnation;
  write_durably(path,
                nlohmann::json{{"version", kLayoutVersion}, {"incarnation", incarnation}}.dump() + "\n");
  return incarnation;
}

}  // namespace

OpenedState open_state_folder(const std::filesystem::path& folder) {
  try {
    std::filesystem::create_directories(folder);
    auto lock = FileLock::try_acquire(daemon_lock_path(folder));
    if (!lock) {
      throw std::runtime_error("--state-dir " + folder.string() +
                               " is used by another coat-worker (process " +
                               lock_owner(daemon_lock_path(folder)) + "): stop it, or name another folder");
    }
    const std::int64_t incarnation = next_incarnation(folder);
    return {std::move(*lock), incarnation};
  } catch (const std::system_error& error) {
    throw std::runtime_error("--state-dir " + folder.string() + " cannot be used: " + error.what() +
                             "; name a folder that this user may write");
  }
}

}  // namespace coat::agent
