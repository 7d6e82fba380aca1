// `coat`: what a person or a script types.
#include <pthread.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <stop_token>
#include <thread>

#include "client/cli/cli.h"

namespace {

// Turns SIGINT and SIGTERM into a request to stop. A second one, or two seconds in which the command does not
// end (it may read from a keyboard), end the program at once.
class Interrupts {
 public:
  // Before any other thread is started, so that all inherit the mask.
  Interrupts() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    std::thread([signals = signals_, stop = stop_]() mutable {
      constexpr timespec kPatience{2, 0};
      int signal = 0;
      sigwait(&signals, &signal);
      stop.request_stop();
      sigtimedwait(&signals, nullptr, &kPatience);
      _exit(static_cast<int>(coat::cli::ExitCode::kInterrupted));
    }).detach();
  }
  std::stop_token token() const { return stop_.get_token(); }

 private:
  sigset_t signals_{};
  std::stop_source stop_;
};

int terminal_width(int descriptor) {
  winsize size{};
  constexpr int kDefaultWidth = 100;
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultWidth;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

int main(int argc, char** argv) {
  const Interrupts interrupts;
  const bool out_is_tty = isatty(STDOUT_FILENO) == 1;
  const bool err_is_tty = isatty(STDERR_FILENO) == 1;
  const bool color = out_is_tty && environment("NO_COLOR").empty() && environment("TERM") != "dumb";
  coat::cli::Terminal terminal{std::cout,
                               std::cerr,
                               std::cin,
                               out_is_tty,
                               err_is_tty,
                               color,
                               terminal_width(out_is_tty ? STDOUT_FILENO : STDERR_FILENO),
                               environment("COAT_SERVER"),
                               interrupts.token(),
                               coat::real_clock()};
  const auto code = coat::cli::run(std::vector<std::string>(argv + 1, argv + argc), terminal);
  std::cout.flush();
  if (interrupts.token().stop_requested()) return static_cast<int>(coat::cli::ExitCode::kInterrupted);
  return static_cast<int>(code);
}
