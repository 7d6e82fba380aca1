#include "tests/unit/worker/core/checkpoint/faulty_file_system.h"

#include <filesystem>

namespace coat::checkpoint {

void FaultyFileSystem::step(const char* what, const std::string& path) {
  require_alive();
  const int number = operations_++;
  if (before_operation) before_operation(number);
  if (number == crash_at_) {
    dead_ = true;
    for (const auto& [file, unsynced] : unsynced_) {
      std::error_code moved;
      if (!unsynced || !std::filesystem::exists(file, moved)) continue;
      std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
    }
    throw Crash{};
  }
  if (number == fail_at_) throw FileError(what, path, error_);
}

}  // namespace coat::checkpoint
