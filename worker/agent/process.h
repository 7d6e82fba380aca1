// Starting child processes, and ending whole trees of them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "worker/agent/process_table.h"

namespace coat::agent {

struct SpawnOptions {
  std::vector<std::string> arguments;  // arguments[0] is the path of the program
  int stdout_fd = -1;                  // -1: /dev/null
  int stderr_fd = -1;
  int inherited_fd = -1;        // becomes kInheritedFd of the child; every other descriptor is closed on exec
  int parent_death_signal = 0;  // sent to the child when the *thread* that called spawn() ends; 0: none
  int cgroup_procs_fd = -1;     // an open cgroup.procs that the child enters before it runs the program
};

inline constexpr int kInheritedFd = 3;

// Forks and runs the program in a session and process group of its own, standard input /dev/null, signals at
// their defaults. Returns when the program runs: a program that cannot be run is a std::system_error that
// names it. Thread-safe; between fork and exec only async-signal-safe calls are made.
pid_t spawn(const SpawnOptions& options);

struct ChildStatus {
  pid_t pid = 0;
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
};

// Waits for a child of spawn(). `try_reap`: nothing while it still runs.
ChildStatus reap(pid_t pid);
bool try_reap(pid_t pid, ChildStatus* status);

// Children that spawn() did not start: as a child subreaper this process inherits those whose parents died.
// `kill_strays` kills and reaps them, `reap_strays` only reaps the dead. Safe beside threads that reap their
// own children.
void kill_strays();
void reap_strays();

// SIGKILL to `leader`, to its session and to everything below them (with `all_below_self` to everything below
// this process too, which as a subreaper has inherited what forked away), again and again until nothing is
// left or `limit` has passed. Zombies count as gone; those among them that are children of this process and
// that spawn() did not start are reaped. Returns who is still there: uninterruptible in the kernel.
std::vector<ProcessIdentity> kill_tree(const ProcessIdentity& leader, bool all_below_self,
                                       std::chrono::milliseconds limit);

}  // namespace coat::agent
