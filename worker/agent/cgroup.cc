#include "worker/agent/cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

namespace coat::agent {
namespace {

// Where the cgroup2 file system is mounted, from /proc/self/mountinfo: the fifth field is the mount point,
// the type follows the field "-".
std::filesystem::path mount_point() {
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    std::string field;
    std::string point;
    for (int i = 0; i < 5 && fields >> field; ++i) point = field;
    while (fields >> field && field != "-") {
    }
    if (fields >> field && field == "cgroup2") return point;
  }
  return {};
}

std::filesystem::path own_cgroup() {
  const std::filesystem::path mount = mount_point();
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; !mount.empty() && std::getline(in, line);) {
    if (line.rfind("0::/", 0) == 0) return mount / line.substr(4);
  }
  return {};
}

void kill_members(const std::filesystem::path& path) {
  UniqueFd fd(::open((path / "cgroup.kill").c_str(), O_WRONLY | O_CLOEXEC));
  if (fd) (void)!::write(fd.get(), "1", 1);
}

}  // namespace

std::unique_ptr<Cgroup> Cgroup::create(const std::string& name) {
  const std::filesystem::path parent = own_cgroup();
  if (parent.empty()) return nullptr;
  const std::filesystem::path path = parent / name;
  if (::mkdir(path.c_str(), 0755) != 0) return nullptr;
  UniqueFd procs(::open((path / "cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  if (!procs) {
    ::rmdir(path.c_str());
    return nullptr;
  }
  return std::unique_ptr<Cgroup>(new Cgroup(path, std::move(procs)));
}

Cgroup::Cgroup(std::filesystem::path path, UniqueFd procs)
    : path_(std::move(path)), procs_(std::move(procs)) {}

Cgroup::~Cgroup() {
  procs_.reset();
  ::rmdir(path_.c_str());
}

void Cgroup::kill() const { kill_members(path_); }

void end_cgroup(const std::filesystem::path& path) {
  if (path.empty()) return;
  kill_members(path);
  // The killed leave it when they are reaped.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (::rmdir(path.c_str()) != 0 && errno == EBUSY && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace coat::agent
