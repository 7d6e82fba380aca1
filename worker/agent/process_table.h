// What /proc says about processes.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace coat::agent {

// A process id names one process only together with its start time (clock ticks since boot) and the boot.
struct ProcessIdentity {
  pid_t pid = 0;
  unsigned long long start_time = 0;
  bool operator==(const ProcessIdentity&) const = default;
};

struct ProcessEntry {
  ProcessIdentity identity;
  pid_t parent = 0;
  pid_t session = 0;
  char state = '?';  // as in /proc/<pid>/stat: R, S, D, Z, ...
};

std::optional<ProcessEntry> process_entry(pid_t pid);
// Every process that this one may see.
std::vector<ProcessEntry> all_processes();
// The same process, and no zombie.
bool is_alive(const ProcessIdentity& identity);

// Of `root`: children, their children and so on, without `root` itself. Zombies included: they want to be
// reaped.
std::vector<ProcessEntry> descendants_of(pid_t root, const std::vector<ProcessEntry>& processes);
std::vector<ProcessEntry> members_of_session(pid_t session, const std::vector<ProcessEntry>& processes);

// Differs after each boot of the machine.
std::string boot_id();

}  // namespace coat::agent
