#include "worker/agent/file_lock.h"

#include <fcntl.h>

#include <cerrno>
#include <system_error>

#include "worker/agent/durable_file.h"

namespace coat::agent {
namespace {

struct flock whole_file() {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  return range;
}

}  // namespace

std::optional<FileLock> FileLock::try_acquire(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd) throw std::system_error(errno, std::generic_category(), "cannot open " + path.string());
  struct flock range = whole_file();
  if (::fcntl(fd.get(), F_OFD_SETLK, &range) != 0) {
    if (errno == EAGAIN || errno == EACCES) return std::nullopt;
    throw std::system_error(errno, std::generic_category(), "cannot lock " + path.string());
  }
  const std::string pid = std::to_string(::getpid()) + "\n";
  if (::ftruncate(fd.get(), 0) != 0 || ::pwrite(fd.get(), pid.data(), pid.size(), 0) < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot write " + path.string());
  }
  return FileLock(std::move(fd));
}

bool is_locked(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return false;
  struct flock range = whole_file();
  return ::fcntl(fd.get(), F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

std::string lock_owner(const std::filesystem::path& path) {
  std::string text = read_file(path).value_or("");
  while (!text.empty() && (text.back() < '0' || text.back() > '9')) text.pop_back();
  return text;
}

}  // namespace coat::agent
