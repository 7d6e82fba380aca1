// The controller's state folder: made when missing, on a disk that can hold a database, owned by one process.
#pragma once

#include <filesystem>

namespace coat::store {

// Holds <folder>/lock while it lives. Throws StoreError that names --state-dir when the folder cannot be made
// or written, lies on a network file system, or belongs to a controller that runs (with its process id).
class StateFolder {
 public:
  explicit StateFolder(const std::filesystem::path& folder);
  ~StateFolder();
  StateFolder(const StateFolder&) = delete;
  StateFolder& operator=(const StateFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path database() const { return path_ / "coat.db"; }
  std::filesystem::path attempts() const { return path_ / "attempts"; }
  std::filesystem::path endpoints() const { return path_ / "endpoints.json"; }

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

// Writes `text` to `file` so that a reader sees all of it or the former content, synced to disk. Throws
// StoreError.
void write_file_atomically(const std::filesystem::path& file, const std::string& text);

}  // namespace coat::store
