#include "worker/agent/process_table.h"

#include <dirent.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace coat::agent {

std::optional<ProcessEntry> process_entry(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!in || !std::getline(in, line)) return std::nullopt;
  // The name in parentheses may hold anything, also spaces and parentheses: the fields begin after the last
  // one.
  const std::size_t end = line.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(end + 1));
  ProcessEntry entry;
  entry.identity.pid = pid;
  pid_t group = 0;
  fields >> entry.state >> entry.parent >> group >> entry.session;
  std::string skipped;
  for (int i = 0; i < 15; ++i) fields >> skipped;  // fields 7 to 21 of proc(5)
  fields >> entry.identity.start_time;
  if (!fields) return std::nullopt;
  return entry;
}

std::vector<ProcessEntry> all_processes() {
  std::vector<ProcessEntry> all;
  DIR* folder = ::opendir("/proc");
  if (folder == nullptr) return all;
  while (const dirent* entry = ::readdir(folder)) {
    char* end = nullptr;
    const long pid = std::strtol(entry->d_name, &end, 10);
    if (pid <= 0 || *end != '\0') continue;
    if (auto process = process_entry(static_cast<pid_t>(pid))) all.push_back(*process);
  }
  ::closedir(folder);
  return all;
}

bool is_alive(const ProcessIdentity& identity) {
  const auto entry = process_entry(identity.pid);
  return entry && entry->identity == identity && entry->state != 'Z' && entry->state != 'X';
}

std::vector<ProcessEntry> descendants_of(pid_t root, const std::vector<ProcessEntry>& processes) {
  std::vector<ProcessEntry> found;
  std::vector<pid_t> parents{root};
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    for (const ProcessEntry& process : processes) {
      if (process.parent != parent || process.identity.pid == root) continue;
      found.push_back(process);
      parents.push_back(process.identity.pid);
    }
  }
  return found;
}

std::vector<ProcessEntry> members_of_session(pid_t session, const std::vector<ProcessEntry>& processes) {
  std::vector<ProcessEntry> found;
  for (const ProcessEntry& process : processes) {
    if (process.session == session) found.push_back(process);
  }
  return found;
}

std::string boot_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

}  // namespace coat::agent
