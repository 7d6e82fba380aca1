// The file operations that a checkpoint is made of, as a seam: the real ones, and in tests ones that fail or
// stop at any point. Every failure is a FileError with errno, path and operation.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace coat::checkpoint {

class FileError : public std::runtime_error {
 public:
  FileError(const std::string& what_failed, const std::string& file_path, int error_number);
  std::string path;
  int error;  // errno
};

// Written once from the front. Closing without sync() promises nothing.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual void write(const void* data, std::size_t bytes) = 0;
  virtual void sync() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // How many bytes were read; less than asked for only at the end.
  virtual std::size_t read(void* data, std::size_t bytes) = 0;
};

// Held while it lives, against every process; released by the system when the process dies, and lost to
// whoever has waited out his patience while the holder was frozen.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual void create_directories(const std::string& path) = 0;
  virtual std::unique_ptr<WritableFile> create(const std::string& path) = 0;  // replaces what is there
  virtual std::unique_ptr<ReadableFile> open(const std::string& path) = 0;
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void sync_directory(const std::string& path) = 0;
  virtual void remove_all(const std::string& path) = 0;  // what is not there is no error
  // Waits for the holder, but no longer than `patience`: then the lock is taken over under the same name.
  virtual std::unique_ptr<FileLock> lock(const std::string& path, std::chrono::milliseconds patience) = 0;
  virtual bool exists(const std::string& path) = 0;
  virtual std::vector<std::string> list(const std::string& path) = 0;  // names, sorted
  virtual std::int64_t free_bytes(const std::string& path) = 0;
};

// Lives for the whole program. Thread-safe; a file is its opener's.
FileSystem& real_file_system();

// The whole content of a small file.
std::string read_text(FileSystem& files, const std::string& path);

}  // namespace coat::checkpoint
