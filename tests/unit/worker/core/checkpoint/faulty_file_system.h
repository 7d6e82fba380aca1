// A file system that does as the real one until its count of changes runs out: then one operation fails, or
// the process is taken for dead: nothing works any more, and what was not synced is lost.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/core/checkpoint/file_system.h"

namespace coat::checkpoint {

// Thrown in place of the operation at which the process dies. Not a FileError: no one may handle it.
struct Crash {};

class FaultyFileSystem : public FileSystem {
 public:
  // Operation number `fail_at` (counted from 0 over create, write, sync, rename, sync_directory, remove,
  // create_directories) fails with `error`; -1: none.
  void fail_at(int operation, int error) {
    fail_at_ = operation;
    error_ = error;
  }
  // The process dies in place of operation number `crash_at`. Then a file keeps what was synced, cut to its
  // half where it was not synced at all.
  void crash_at(int operation) { crash_at_ = operation; }
  int operations() const { return operations_; }
  // Called before each operation with its number.
  std::function<void(int)> before_operation;

  void create_directories(const std::string& path) override {
    step("create the folder", path);
    real_.create_directories(path);
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    step("create", path);
    return std::make_unique<File>(*this, path, real_.create(path));
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    require_alive();
    return real_.open(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    step("rename", from);
    real_.rename(from, to);
  }
  void sync_directory(const std::string& path) override {
    step("sync", path);
    real_.sync_directory(path);
  }
  void remove_all(const std::string& path) override {
    step("remove", path);
    real_.remove_all(path);
  }
  std::unique_ptr<FileLock> lock(const std::string& path, std::chrono::milliseconds patience) override {
    require_alive();
    return real_.lock(path, patience);
  }
  bool exists(const std::string& path) override {
    require_alive();
    return real_.exists(path);
  }
  std::vector<std::string> list(const std::string& path) override {
    require_alive();
    return real_.list(path);
  }
  std::int64_t free_bytes(const std::string& path) override {
    require_alive();
    return free_bytes_ >= 0 ? free_bytes_ : real_.free_bytes(path);
  }
  void set_free_bytes(std::int64_t bytes) { free_bytes_ = bytes; }

 private:
  class File : public WritableFile {
   public:
    File(FaultyFileSystem& system, std::string path, std::unique_ptr<WritableFile> real)
        : system_(system), path_(std::move(path)), real_(std::move(real)) {
      system_.unsynced_[path_] = true;
    }
    void write(const void* data, std::size_t bytes) override {
      system_.step("write", path_);
      real_->write(data, bytes);
    }
    void sync() override {
      system_.step("sync", path_);
      real_->sync();
      system_.unsynced_[path_] = false;
    }

   private:
    FaultyFileSystem& system_;
    std::string path_;
    std::unique_ptr<WritableFile> real_;
  };

  void require_alive() const {
    if (dead_) throw Crash{};
  }
  void step(const char* what, const std::string& path);

  FileSystem& real_ = real_file_system();
  std::map<std::string, bool> unsynced_;
  int operations_ = 0;
  int fail_at_ = -1;
  int crash_at_ = -1;
  int error_ = 0;
  bool dead_ = false;
  std::int64_t free_bytes_ = -1;
};

}  // namespace coat::checkpoint
