#include "worker/agent/captured_run.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "worker/agent/process.h"
#include "worker/agent/unique_fd.h"

namespace coat::agent {
namespace {

constexpr std::size_t kMaxKept = 1U << 20;
constexpr std::chrono::milliseconds kTick{100};

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot make a pipe");
  ::fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// Reads what is there; closes the end when the writers are gone.
void drain(UniqueFd* fd, std::string* kept) {
  char buffer[1 << 14];
  while (*fd) {
    const ssize_t n = ::read(fd->get(), buffer, sizeof buffer);
    if (n > 0) {
      const std::size_t room = kMaxKept - kept->size();
      kept->append(buffer, std::min(room, static_cast<std::size_t>(n)));
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    fd->reset();
  }
}

}  // namespace

CapturedRun run_captured(const std::vector<std::string>& arguments, std::chrono::milliseconds timeout,
                         const std::function<bool()>& cancelled) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  SpawnOptions options;
  options.arguments = arguments;
  options.stdout_fd = out.write_end.get();
  options.stderr_fd = err.write_end.get();
  options.parent_death_signal = SIGKILL;
  const pid_t pid = spawn(options);
  const auto entry = process_entry(pid);
  out.write_end.reset();
  err.write_end.reset();

  CapturedRun run;
  ChildStatus status;
  // The end of the process counts, not of its output: what it left behind may hold the pipes.
  while (!try_reap(pid, &status)) {
    pollfd fds[2] = {{out.read_end.get(), POLLIN, 0}, {err.read_end.get(), POLLIN, 0}};
    ::poll(fds, 2, static_cast<int>(out.read_end ? kTick.count() : 5));
    drain(&out.read_end, &run.output);
    drain(&err.read_end, &run.error_output);
    if (std::chrono::steady_clock::now() < deadline && !cancelled()) continue;
    run.timed_out = true;
    if (entry) kill_tree(entry->identity, false, std::chrono::seconds(5));
    status = reap(pid);
    break;
  }
  drain(&out.read_end, &run.output);
  drain(&err.read_end, &run.error_output);
  run.exit_code = status.exit_code;
  run.signal = status.signal;
  return run;
}

}  // namespace coat::agent
