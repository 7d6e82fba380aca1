#include "server/store/attempt_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "server/store/store.h"

namespace coat::store {
namespace {

[[noreturn]] void fail(const std::string& what, const std::filesystem::path& path) {
  throw StoreError(what + " " + path.string() + ": " + std::strerror(errno));
}

class File {
 public:
  File(const std::filesystem::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }

 private:
  int fd_;
};

void sync_folder(const std::filesystem::path& folder) {
  File file(folder, O_RDONLY | O_DIRECTORY);
  if (!file.is_open() || ::fsync(file.fd()) != 0) fail("cannot sync", folder);
}

}  // namespace

AttemptFiles::AttemptFiles(std::filesystem::path root) : root_(std::move(root)) {}

std::filesystem::path AttemptFiles::file(const std::string& job, int attempt, StreamKind kind) const {
  const std::string id = job.substr(job.rfind('/') + 1);
  return root_ / id / std::to_string(attempt) / (kind == StreamKind::kLog ? "log" : "metrics.jsonl");
}

std::int64_t AttemptFiles::append(const std::string& job, int attempt, StreamKind kind, std::int64_t offset,
                                  const std::string& data) {
  const std::lock_guard<std::mutex> lock(append_mutex_);
  const std::filesystem::path path = file(job, attempt, kind);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) throw StoreError("cannot make " + path.parent_path().string() + ": " + error.message());
    const File created(path, O_WRONLY | O_CREAT);
    if (!created.is_open()) fail("cannot make", path);
    for (auto folder = path.parent_path(); folder != root_.parent_path(); folder = folder.parent_path()) {
      sync_folder(folder);
    }
    info.st_size = 0;
  }
  const std::int64_t size = info.st_size;
  const std::int64_t end = offset + static_cast<std::int64_t>(data.size());
  if (offset > size || end <= size) return size;
  const File out(path, O_WRONLY);
  if (!out.is_open()) fail("cannot write", path);
  std::int64_t at = size;
  while (at < end) {
    const auto begin = static_cast<std::size_t>(at - offset);
    const ssize_t written = ::pwrite(out.fd(), data.data() + begin, data.size() - begin, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot write", path);
    at += written;
  }
  if (::fdatasync(out.fd()) != 0) fail("cannot sync", path);
  return end;
}

std::int64_t AttemptFiles::size(const std::string& job, int attempt, StreamKind kind) const {
  struct stat info {};
  return ::stat(file(job, attempt, kind).c_str(), &info) == 0 ? info.st_size : 0;
}

std::string AttemptFiles::read(const std::string& job, int attempt, StreamKind kind, std::int64_t offset,
                               std::size_t limit) const {
  const std::filesystem::path path = file(job, attempt, kind);
  const File in(path, O_RDONLY);
  if (!in.is_open()) {
    if (errno == ENOENT) return {};
    fail("cannot read", path);
  }
  std::string data(limit, '\0');
  ssize_t size = 0;
  do {
    size = ::pread(in.fd(), data.data(), limit, offset);
  } while (size < 0 && errno == EINTR);
  if (size < 0) fail("cannot read", path);
  data.resize(static_cast<std::size_t>(size));
  return data;
}

}  // namespace coat::store
