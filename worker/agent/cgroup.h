// A cgroup (v2) of its own for an attempt, where the machine lets us make one: everything that a trainer
// starts is in it, however it forks. Where it does not, the supervisor's own search of its descendants does
// the same work.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "worker/agent/unique_fd.h"

namespace coat::agent {

class Cgroup {
 public:
  // Makes a child of this process's own cgroup; null where that is not allowed.
  static std::unique_ptr<Cgroup> create(const std::string& name);
  // Removes it; a cgroup that still has members stays.
  ~Cgroup();

  int procs_fd() const { return procs_.get(); }
  // SIGKILL to all members at once (Linux 5.14 and newer).
  void kill() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  Cgroup(std::filesystem::path path, UniqueFd procs);
  std::filesystem::path path_;
  UniqueFd procs_;
};

// Kills and removes a cgroup that a dead supervisor left. Nothing happens when there is none.
void end_cgroup(const std::filesystem::path& path);

}  // namespace coat::agent
