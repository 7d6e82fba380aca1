// coat-controller. Exit codes: 0 stopped as asked, 1 cannot start or the store failed, 2 bad usage.
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <iostream>

#include <spdlog/spdlog.h>

#include "proto/common/logging.h"
#include "server/app/options.h"
#include "server/app/service.h"

int main(int argc, char** argv) {
  const coat::app::CommandLine line = coat::app::parse_command_line(argc, argv);
  if (!line.options) {
    (line.exit_code == 0 ? std::cout : std::cerr) << line.message;
    return line.exit_code;
  }
  // Blocked before any thread is made, so that only sigwait() below gets them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  std::atomic<bool> failed{false};
  try {
    coat::init_logging({"coat-controller", line.options->log_format, line.options->log_level});
    coat::app::Service service(*line.options, [&failed] {
      failed = true;
      ::kill(::getpid(), SIGTERM);
    });
    int signal_number = 0;
    sigwait(&signals, &signal_number);
    spdlog::info("{}: stopping; running jobs go on and are found again at the next start",
                 failed ? "the store failed" : (signal_number == SIGINT ? "SIGINT" : "SIGTERM"));
  } catch (const std::exception& error) {
    std::cerr << "coat-controller: " << error.what() << "\n";
    return 1;
  }
  return failed ? 1 : 0;
}
