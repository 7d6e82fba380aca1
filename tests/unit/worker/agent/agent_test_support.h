// What several tests of the daemon need: a scratch folder, the programs, waiting for a condition.
#pragma once

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "worker/agent/process_table.h"

namespace coat::agent::testing {

inline std::filesystem::path binary(const char* name) {
  const char* folder = std::getenv("COAT_BINARY_DIR");
  return std::filesystem::path(folder == nullptr ? "." : folder) / "bin" / name;
}

class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "coat-agent-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

// Waits until `condition` holds; false when it does not for a minute.
inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// The process ids that a fake trainer noted.
inline std::vector<pid_t> noted_pids(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<pid_t> pids;
  for (pid_t pid = 0; in >> pid;) pids.push_back(pid);
  return pids;
}

inline bool none_alive(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    const auto entry = process_entry(pid);
    if (entry && entry->state != 'Z') return false;
  }
  return true;
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void spit(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }

}  // namespace coat::agent::testing
