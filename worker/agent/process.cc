#include "worker/agent/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include "worker/agent/unique_fd.h"

namespace coat::agent {
namespace {

// Children belong to the process, so this is the process's: who is in it has an owner that will reap it.
struct OwnedChildren {
  std::mutex mutex;
  std::set<pid_t> pids;
};

OwnedChildren& owned_children() {
  static OwnedChildren children;
  return children;
}

// Only async-signal-safe calls: other threads of the parent may have held any lock at the fork.
struct ChildSetup {
  char* const* argv;
  int null_fd;
  int stdout_fd;
  int stderr_fd;
  int inherited_fd;
  int error_fd;
  int cgroup_procs_fd;
  int parent_death_signal;
  pid_t parent;
};

[[noreturn]] void report_and_exit(int error_fd) {
  const int error = errno;
  (void)!::write(error_fd, &error, sizeof error);
  ::_exit(127);
}

[[noreturn]] void run_child(const ChildSetup& setup) {
  ::setsid();
  if (setup.parent_death_signal != 0) {
    if (::prctl(PR_SET_PDEATHSIG, setup.parent_death_signal) != 0) report_and_exit(setup.error_fd);
    if (::getppid() != setup.parent) ::_exit(127);  // the parent died before the line above
  }
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (setup.cgroup_procs_fd >= 0) (void)!::write(setup.cgroup_procs_fd, "0", 1);

  if (::dup2(setup.null_fd, 0) < 0 || ::dup2(setup.stdout_fd >= 0 ? setup.stdout_fd : setup.null_fd, 1) < 0 ||
      ::dup2(setup.stderr_fd >= 0 ? setup.stderr_fd : setup.null_fd, 2) < 0) {
    report_and_exit(setup.error_fd);
  }
  unsigned first_closed = kInheritedFd;
  if (setup.inherited_fd >= 0) {
    if (::dup2(setup.inherited_fd, kInheritedFd) < 0) report_and_exit(setup.error_fd);
    ++first_closed;
  }
  constexpr unsigned kCloseOnExec = 4;  // CLOSE_RANGE_CLOEXEC, which older headers lack
  if (::syscall(SYS_close_range, first_closed, ~0U, kCloseOnExec) != 0) {
    for (int fd = static_cast<int>(first_closed); fd < 4096; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  ::execv(setup.argv[0], setup.argv);
  report_and_exit(setup.error_fd);
}

// A duplicate beyond every number that the child will overwrite.
UniqueFd out_of_the_way(int fd) {
  if (fd < 0) return UniqueFd();
  UniqueFd moved(::fcntl(fd, F_DUPFD_CLOEXEC, 16));
  if (!moved) throw std::system_error(errno, std::generic_category(), "cannot duplicate a file descriptor");
  return moved;
}

ChildStatus decode(pid_t pid, int status) {
  ChildStatus decoded;
  decoded.pid = pid;
  if (WIFEXITED(status)) decoded.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) decoded.signal = WTERMSIG(status);
  return decoded;
}

void disown(pid_t pid) {
  std::lock_guard lock(owned_children().mutex);
  owned_children().pids.erase(pid);
}

bool is_owned(pid_t pid) {
  std::lock_guard lock(owned_children().mutex);
  return owned_children().pids.contains(pid);
}

bool contains(const std::vector<ProcessIdentity>& known, const ProcessIdentity& identity) {
  return std::find(known.begin(), known.end(), identity) != known.end();
}

// Adds to `known` the session of `leader` and all that is below those known.
void add_members(const ProcessIdentity& leader, bool all_below_self,
                 const std::vector<ProcessEntry>& processes, std::vector<ProcessIdentity>* known) {
  const auto add = [known](const std::vector<ProcessEntry>& found) {
    for (const ProcessEntry& process : found) {
      if (!contains(*known, process.identity)) known->push_back(process.identity);
    }
  };
  // An id stays taken as long as its session has a member: a stranger under the leader's id means an empty
  // session.
  const auto holder = process_entry(leader.pid);
  if (!holder || holder->identity == leader) add(members_of_session(leader.pid, processes));
  if (all_below_self) add(descendants_of(::getpid(), processes));
  for (const ProcessEntry& process : processes) {
    if (contains(*known, process.identity)) add(descendants_of(process.identity.pid, processes));
  }
}

}  // namespace

pid_t spawn(const SpawnOptions& options) {
  std::vector<char*> argv;
  for (const std::string& argument : options.arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);

  UniqueFd null_opened(::open("/dev/null", O_RDWR | O_CLOEXEC));
  int pipe_fds[2];
  if (!null_opened || ::pipe2(pipe_fds, O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot prepare to start " + options.arguments.at(0));
  }
  UniqueFd read_end(pipe_fds[0]);
  UniqueFd write_end(pipe_fds[1]);
  const UniqueFd null_fd = out_of_the_way(null_opened.get());
  UniqueFd error_fd = out_of_the_way(write_end.get());
  write_end.reset();
  const UniqueFd out = out_of_the_way(options.stdout_fd);
  const UniqueFd err = out_of_the_way(options.stderr_fd);
  const UniqueFd inherited = out_of_the_way(options.inherited_fd);
  const UniqueFd cgroup = out_of_the_way(options.cgroup_procs_fd);
  const ChildSetup setup{argv.data(),     null_fd.get(),  out.get(),    err.get(),
                         inherited.get(), error_fd.get(), cgroup.get(), options.parent_death_signal,
                         ::getpid()};

  pid_t pid = 0;
  {
    std::lock_guard lock(owned_children().mutex);  // so that no one takes the new child for a stray
    pid = ::fork();
    if (pid == 0) run_child(setup);
    if (pid > 0) owned_children().pids.insert(pid);
  }
  if (pid < 0)
    throw std::system_error(errno, std::generic_category(), "cannot fork for " + options.arguments[0]);
  error_fd.reset();
  int error = 0;
  ssize_t n = 0;
  do {
    n = ::read(read_end.get(), &error, sizeof error);
  } while (n < 0 && errno == EINTR);
  if (n == sizeof error) {
    reap(pid);
    throw std::system_error(error, std::generic_category(), "cannot run " + options.arguments[0]);
  }
  return pid;
}

ChildStatus reap(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) break;
  }
  disown(pid);
  return decode(pid, status);
}

bool try_reap(pid_t pid, ChildStatus* status) {
  int raw = 0;
  const pid_t reaped = ::waitpid(pid, &raw, WNOHANG);
  if (reaped == 0) return false;
  disown(pid);
  *status = decode(pid, raw);
  return true;
}

void kill_strays() {
  for (const ProcessEntry& process : all_processes()) {
    if (process.parent != ::getpid() || is_owned(process.identity.pid)) continue;
    ::kill(process.identity.pid, SIGKILL);
    ::waitpid(process.identity.pid, nullptr, WNOHANG);
  }
}

void reap_strays() {
  for (const ProcessEntry& process : all_processes()) {
    if (process.parent != ::getpid() || process.state != 'Z' || is_owned(process.identity.pid)) continue;
    ::waitpid(process.identity.pid, nullptr, WNOHANG);
  }
}

std::vector<ProcessIdentity> kill_tree(const ProcessIdentity& leader, bool all_below_self,
                                       std::chrono::milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  std::vector<ProcessIdentity> known{leader};  // also those whose parents have died since
  while (true) {
    const std::vector<ProcessEntry> processes = all_processes();
    add_members(leader, all_below_self, processes, &known);
    std::vector<ProcessIdentity> left;
    for (const ProcessEntry& process : processes) {
      if (!contains(known, process.identity)) continue;
      if (process.state != 'Z') {
        ::kill(process.identity.pid, SIGKILL);
        left.push_back(process.identity);
      }
      if (process.parent == ::getpid() && !is_owned(process.identity.pid)) {
        ::waitpid(process.identity.pid, nullptr, WNOHANG);
      }
    }
    if (left.empty() || std::chrono::steady_clock::now() >= deadline) return left;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace coat::agent
