#include "worker/core/checkpoint/file_system.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

namespace coat::checkpoint {
namespace {

// Owns a descriptor. Neither copied nor moved.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, const char* operation) : path_(path) {
    do {
      value_ = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
    } while (value_ < 0 && errno == EINTR);
    if (value_ < 0) throw FileError(operation, path, errno);
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int value() const { return value_; }
  const std::string& path() const { return path_; }
  void sync() const {
    if (::fsync(value_) != 0) throw FileError("sync", path_, errno);
  }

 private:
  std::string path_;
  int value_;
};

class RealWritableFile : public WritableFile {
 public:
  explicit RealWritableFile(const std::string& path) : file_(path, O_WRONLY | O_CREAT | O_TRUNC, "create") {}

  void write(const void* data, std::size_t bytes) override {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t put = ::write(file_.value(), from, bytes);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) throw FileError("write", file_.path(), errno);
      from += put;
      bytes -= static_cast<std::size_t>(put);
    }
  }
  void sync() override { file_.sync(); }

 private:
  Descriptor file_;
};

class RealReadableFile : public ReadableFile {
 public:
  explicit RealReadableFile(const std::string& path) : file_(path, O_RDONLY, "open") {}

  std::size_t read(void* data, std::size_t bytes) override {
    auto* to = static_cast<char*>(data);
    std::size_t done = 0;
    while (done < bytes) {
      const ssize_t got = ::read(file_.value(), to + done, bytes - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw FileError("read", file_.path(), errno);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

 private:
  Descriptor file_;
};

bool same_file(int descriptor, const std::string& path) {
  struct stat held {};
  struct stat named {};
  return ::fstat(descriptor, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

class RealFileLock : public FileLock {
 public:
  RealFileLock(const std::string& path, std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    do {
      file_.emplace(path, O_RDWR | O_CREAT, "open");
      // Whoever takes a lock over puts another file under its name: then this one guards nothing.
      if (::flock(file_->value(), LOCK_EX | LOCK_NB) == 0) {
        if (same_file(file_->value(), path)) return;
        continue;
      }
      if (errno != EWOULDBLOCK && errno != EINTR) throw FileError("lock", path, errno);
      std::this_thread::sleep_for(kLockPoll);
    } while (std::chrono::steady_clock::now() < deadline);
    take_over(path);
  }

 private:
  static constexpr std::chrono::milliseconds kLockPoll{10};

  void take_over(const std::string& path) {
    const std::string fresh = path + ".taken-" + std::to_string(::getpid());
    file_.emplace(fresh, O_RDWR | O_CREAT, "open");
    if (::flock(file_->value(), LOCK_EX) != 0) throw FileError("lock", fresh, errno);
    if (::rename(fresh.c_str(), path.c_str()) != 0) throw FileError("rename", fresh, errno);
  }

  std::optional<Descriptor> file_;
};

class RealFileSystem : public FileSystem {
 public:
  void create_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw FileError("create the folder", path, error.value());
  }
  std::unique_ptr<WritableFile> create(const std::string& path) override {
    return std::make_unique<RealWritableFile>(path);
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    return std::make_unique<RealReadableFile>(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) throw FileError("rename", from, errno);
  }
  void sync_directory(const std::string& path) override {
    Descriptor(path, O_RDONLY | O_DIRECTORY, "open the folder").sync();
  }
  void remove_all(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) throw FileError("remove", path, error.value());
  }
  std::unique_ptr<FileLock> lock(const std::string& path, std::chrono::milliseconds patience) override {
    return std::make_unique<RealFileLock>(path, patience);
  }
  bool exists(const std::string& path) override {
    std::error_code error;
    const bool found = std::filesystem::exists(path, error);
    if (error) throw FileError("look at", path, error.value());
    return found;
  }
  std::vector<std::string> list(const std::string& path) override {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error) throw FileError("list", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }
  std::int64_t free_bytes(const std::string& path) override {
    struct statvfs status {};
    if (::statvfs(path.c_str(), &status) != 0) throw FileError("look at the disk of", path, errno);
    return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
  }
};

}  // namespace

FileError::FileError(const std::string& what_failed, const std::string& file_path, int error_number)
    : std::runtime_error("cannot " + what_failed + " '" + file_path + "': " + std::strerror(error_number)),
      path(file_path),
      error(error_number) {}

FileSystem& real_file_system() {
  static RealFileSystem instance;
  return instance;
}

std::string read_text(FileSystem& files, const std::string& path) {
  const auto file = files.open(path);
  std::string text;
  char block[1 << 16];
  for (std::size_t got = 1; got > 0;) {
    got = file->read(block, sizeof block);
    text.append(block, got);
  }
  return text;
}

}  // namespace coat::checkpoint
