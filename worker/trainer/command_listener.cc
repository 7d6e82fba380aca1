#include "worker/trainer/command_listener.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "worker/protocol/messages.h"

namespace coat::trainer {
namespace {

// A command is short; a longer line is no command, and must not grow without end.
constexpr std::size_t kMaxLine = 4096;

sigset_t stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

void open_pipe(int* ends) {
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
}

void close_pipe(const int* ends) {
  ::close(ends[0]);
  ::close(ends[1]);
}

// Waits until `descriptor` has something to read (true) or `wake` was written to (false).
bool wait_readable(int descriptor, int wake) {
  pollfd watched[2] = {{.fd = descriptor, .events = POLLIN, .revents = 0},
                       {.fd = wake, .events = POLLIN, .revents = 0}};
  while (::poll(watched, 2, -1) < 0) {
    if (errno != EINTR) return false;
  }
  return watched[1].revents == 0;
}

void wake_up(int descriptor) {
  const char byte = 0;
  while (::write(descriptor, &byte, 1) < 0 && errno == EINTR) {
  }
}

}  // namespace

SignalListener::SignalListener(train::RunControl& control) : control_(control) {
  open_pipe(wake_);
  const sigset_t set = stop_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { listen(); });
}

SignalListener::~SignalListener() {
  wake_up(wake_[1]);
  thread_.join();
  close_pipe(wake_);
}

void SignalListener::listen() {
  const sigset_t set = stop_signals();
  const int signals = ::signalfd(-1, &set, SFD_CLOEXEC);
  if (signals < 0) return;
  bool interrupted = false;
  while (wait_readable(signals, wake_[0])) {
    signalfd_siginfo info{};
    if (::read(signals, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    if (info.ssi_signo == SIGINT && interrupted) {
      ::signal(SIGINT, SIG_DFL);
      sigset_t one;
      sigemptyset(&one);
      sigaddset(&one, SIGINT);
      ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
      ::raise(SIGINT);
    }
    interrupted = interrupted || info.ssi_signo == SIGINT;
    control_.request_stop();
  }
  ::close(signals);
}

CommandListener::CommandListener(int descriptor, train::RunControl& control,
                                 std::function<void(const std::string&)> warn)
    : descriptor_(descriptor), control_(control), warn_(std::move(warn)) {
  open_pipe(wake_);
  thread_ = std::thread([this] { listen(); });
}

CommandListener::~CommandListener() {
  wake_up(wake_[1]);
  thread_.join();
  close_pipe(wake_);
}

void CommandListener::listen() {
  std::string pending;
  char block[1024];
  while (wait_readable(descriptor_, wake_[0])) {
    const ssize_t got = ::read(descriptor_, block, sizeof block);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return;  // the agent is gone
    pending.append(block, static_cast<std::size_t>(got));
    for (std::size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      obey(pending.substr(0, end));
      pending.erase(0, end + 1);
    }
    if (pending.size() > kMaxLine) {
      warn_("a command of more than " + std::to_string(kMaxLine) + " bytes was dropped");
      pending.clear();
    }
  }
}

void CommandListener::obey(const std::string& line) {
  try {
    const protocol::Command command = protocol::parse_command(line);
    if (std::holds_alternative<protocol::SaveCheckpoint>(command)) {
      control_.request_checkpoint();
    } else {
      control_.request_stop();
    }
  } catch (const std::invalid_argument& error) {
    warn_("a command was not understood: " + std::string(error.what()));
  }
}

}  // namespace coat::trainer
