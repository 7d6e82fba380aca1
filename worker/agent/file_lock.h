// Who is alive, told by locks on files: the kernel drops a lock with the death of its holder, so no process
// id has to be trusted. The daemon holds the lock of its state folder, a supervisor that of its attempt's
// folder. Open-file-description locks: another open of the same file, even in the same process, is another
// party.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "worker/agent/unique_fd.h"

namespace coat::agent {

class FileLock {
 public:
  // Takes the lock and writes this process's id into the file; nothing when another party holds it.
  // Throws std::system_error that names the path when the file cannot be made or locked at all.
  static std::optional<FileLock> try_acquire(const std::filesystem::path& path);

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// Is the lock held by anyone? A file that is not there is not locked.
bool is_locked(const std::filesystem::path& path);
// What the holder wrote: its process id in digits, for messages.
std::string lock_owner(const std::filesystem::path& path);

}  // namespace coat::agent
