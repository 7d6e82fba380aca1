#include "server/store/state_folder.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "server/store/store.h"

namespace coat::store {
namespace {

constexpr unsigned long kCifsMagic = 0xFF534D42UL;
constexpr unsigned long kSmb2Magic = 0xFE534D42UL;

void refuse_network_file_system(const std::filesystem::path& folder) {
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) return;
  const auto magic = static_cast<unsigned long>(info.f_type) & 0xFFFFFFFFUL;
  if (magic == NFS_SUPER_MAGIC || magic == kCifsMagic || magic == kSmb2Magic) {
    throw StoreError(
        "--state-dir " + folder.string() +
        " is on a network file system, where the database's locks do not hold; choose a local disk");
  }
}

std::string read_pid(int fd) {
  char text[32] = {};
  const ssize_t size = ::pread(fd, text, sizeof(text) - 1, 0);
  std::string pid(text, size > 0 ? static_cast<std::size_t>(size) : 0);
  while (!pid.empty() && pid.back() == '\n') pid.pop_back();
  return pid.empty() ? "unknown" : pid;
}

bool write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t size = ::write(fd, text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    done += static_cast<std::size_t>(size);
  }
  return true;
}

}  // namespace

StateFolder::StateFolder(const std::filesystem::path& folder) : path_(folder) {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error) {
    throw StoreError("--state-dir " + path_.string() + " cannot be made: " + error.message() +
                     "; choose a folder that this user may write");
  }
  refuse_network_file_system(path_);
  const std::filesystem::path lock = path_ / "lock";
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0) {
    throw StoreError("--state-dir " + path_.string() + " is not writable: " + std::strerror(errno) +
                     "; choose a folder that this user may write");
  }
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const std::string pid = read_pid(lock_);
    ::close(lock_);
    throw StoreError("--state-dir " + path_.string() + " is in use by another controller (process " + pid +
                     "); stop that one, or give this one a folder of its own");
  }
  if (::ftruncate(lock_, 0) != 0 || !write_all(lock_, std::to_string(::getpid()) + "\n")) {
    const std::string why = std::strerror(errno);
    ::close(lock_);
    throw StoreError("--state-dir " + path_.string() + " cannot be written: " + why);
  }
}

StateFolder::~StateFolder() { ::close(lock_); }

void write_file_atomically(const std::filesystem::path& file, const std::string& text) {
  const std::string temporary = file.string() + ".new";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) throw StoreError("cannot write " + temporary + ": " + std::strerror(errno));
  const bool written = write_all(fd, text) && ::fsync(fd) == 0;
  const std::string why = written ? "" : std::strerror(errno);
  ::close(fd);
  if (!written || ::rename(temporary.c_str(), file.c_str()) != 0) {
    throw StoreError("cannot write " + file.string() + ": " + (why.empty() ? std::strerror(errno) : why));
  }
}

}  // namespace coat::store
