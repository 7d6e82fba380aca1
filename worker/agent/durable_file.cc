#include "worker/agent/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "worker/agent/unique_fd.h"

namespace coat::agent {
namespace {

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  throw std::system_error(errno, std::generic_category(), std::string(what) + " " + path.string());
}

void write_all(int fd, const std::string& content, const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::write(fd, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot write", path);
    done += static_cast<std::size_t>(n);
  }
}

void write_and_rename(const std::filesystem::path& path, const std::string& content, bool sync) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  {
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd) fail("cannot create", temporary);
    write_all(fd.get(), content, temporary);
    if (sync && ::fsync(fd.get()) != 0) fail("cannot sync", temporary);
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) fail("cannot rename to", path);
  if (!sync) return;
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) fail("cannot sync", folder);
}

}  // namespace

void write_durably(const std::filesystem::path& path, const std::string& content) {
  write_and_rename(path, content, true);
}

void replace_file(const std::filesystem::path& path, const std::string& content) {
  write_and_rename(path, content, false);
}

std::optional<std::string> read_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
    fail("cannot open", path);
  }
  std::string content;
  char buffer[1 << 14];
  while (true) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read", path);
    if (n == 0) return content;
    content.append(buffer, static_cast<std::size_t>(n));
  }
}

std::int64_t size_of_file(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return 0;
    fail("cannot look at", path);
  }
  return info.st_size;
}

std::string read_range(const std::filesystem::path& path, std::int64_t offset, std::size_t limit) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    fail("cannot open", path);
  }
  std::string data(limit, '\0');
  std::size_t done = 0;
  while (done < limit) {
    const ssize_t n = ::pread(fd.get(), data.data() + done, limit - done, offset + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("cannot read", path);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  data.resize(done);
  return data;
}

}  // namespace coat::agent
