// The worker's state folder: whose it is, and how often a daemon has started on it.
//   lock         held while a daemon lives
//   state.json   version of the layout, incarnation
//   attempts/    attempt_record.h
//   estimates/   spec files of running estimates
#pragma once

#include <cstdint>
#include <filesystem>

#include "worker/agent/file_lock.h"

namespace coat::agent {

struct OpenedState {
  FileLock lock;
  std::int64_t incarnation = 0;  // of this start: higher than any before
};

// Makes the folder where it is missing. Throws std::runtime_error for people: not writable, used by another
// worker (with its process id), or written by a newer version.
OpenedState open_state_folder(const std::filesystem::path& folder);

inline std::filesystem::path daemon_lock_path(const std::filesystem::path& state_dir) {
  return state_dir / "lock";
}

}  // namespace coat::agent
