// coat-worker: the daemon, or (hidden) the supervisor of one attempt.
#include <signal.h>
#include <time.h>

#include <cstdio>
#include <exception>

#include <spdlog/spdlog.h>

#include "proto/common/clock.h"
#include "proto/common/logging.h"
#include "worker/agent/daemon.h"
#include "worker/agent/options.h"
#include "worker/agent/supervisor.h"

namespace {

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

// Waits for signals until the daemon has drained.
void serve(coat::agent::Daemon& daemon) {
  const sigset_t signals = handled_signals();
  bool draining = false;
  while (!draining || !daemon.drained()) {
    const timespec tick{0, 100'000'000};
    // Before the first signal there is nothing to look at.
    const int number = draining ? ::sigtimedwait(&signals, nullptr, &tick) : ::sigwaitinfo(&signals, nullptr);
    if (number < 0) continue;
    draining = true;
    daemon.begin_shutdown();
  }
}

int run_worker(const coat::agent::WorkerOptions& options) {
  try {
    coat::init_logging({"coat-worker", options.log_format, options.log_level});
    // Blocked here, before there are threads, so that only serve() gets them.
    const sigset_t signals = handled_signals();
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    ::signal(SIGPIPE, SIG_IGN);
    coat::agent::Daemon daemon(options, coat::real_clock());
    spdlog::info("worker {} (start {}) on {}, metrics on port {}", options.id, daemon.incarnation(),
                 options.state_dir.string(), daemon.metrics_port());
    serve(daemon);
    spdlog::info("nothing runs any more");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "coat-worker: %s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const coat::agent::CommandLine command = coat::agent::parse_command_line(argc, argv);
  if (command.supervise) return coat::agent::supervise(*command.supervise);
  if (command.worker) return run_worker(*command.worker);
  std::fputs(command.message.c_str(), command.exit_code == 0 ? stdout : stderr);
  return command.exit_code;
}
