// A trainer that trains nothing and does what its spec's labels say, in the order of this list:
//   pids=FILE          appends its process id, and that of every process it forks, one a line
//   estimate=good|failure|garbage|hang   what --estimate does
//   ignore_term=1      ignores SIGTERM
//   double_fork=1      leaves a grandchild in a session of its own that ignores SIGTERM and sleeps
//   log_lines=N        prints "line 0" to "line N-1" on standard output
//   steps=N            sends N step events
//   wait_for=FILE      waits until the file is there
//   until_stopped=1    waits for StopAfterCheckpoint or SIGTERM, saves a checkpoint, exits with 85
//   ignore_stop=1      with until_stopped: does not listen to the command
//   failure=MESSAGE    sends a failure with that message, field "data.path" and a fix
//   signal=N           kills itself
//   exit=N             its exit code, 0 by default
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "worker/protocol/messages.h"

namespace {

using namespace coat::protocol;  // NOLINT(google-build-using-namespace)

volatile sig_atomic_t terminated = 0;

struct Script {
  nlohmann::json labels = nlohmann::json::object();
  int event_fd = -1;
  bool estimate = false;

  std::string text(const char* name) const { return labels.value(name, std::string()); }
  int number(const char* name) const { return std::atoi(text(name).c_str()); }
  bool has(const char* name) const { return labels.contains(name); }
};

Script read_script(int argc, char** argv) {
  Script script;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--estimate") == 0) script.estimate = true;
    if (i + 1 == argc) break;
    if (std::strcmp(argv[i], "--event-fd") == 0) script.event_fd = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--spec") == 0) {
      std::ifstream in(argv[i + 1]);
      script.labels = nlohmann::json::parse(in).value("labels", nlohmann::json::object());
    }
  }
  return script;
}

void send(const Script& script, const Event& event) {
  const std::string line = to_line(event) + "\n";
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = ::write(script.event_fd, line.data() + done, line.size() - done);
    if (n <= 0) std::exit(70);
    done += static_cast<std::size_t>(n);
  }
}

void note_pid(const Script& script) {
  if (!script.has("pids")) return;
  const int fd = ::open(script.text("pids").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const std::string line = std::to_string(::getpid()) + "\n";
  if (::write(fd, line.data(), line.size()) < 0) std::exit(70);
  ::close(fd);
}

int answer_estimate(const Script& script) {
  const std::string kind = script.text("estimate");
  if (kind == "failure") {
    std::puts(
        to_line(Event(Failure{65, "data.path /nowhere does not exist", "data.path", "name a file"})).c_str());
    return 65;
  }
  if (kind == "garbage") {
    std::fputs("no such recipe of errors\n", stderr);
    std::puts("not json");
    return 1;
  }
  while (kind == "hang") ::pause();
  Estimate estimate;
  estimate.recipe = "coat";
  estimate.memory.total_bytes = 1234;
  estimate.fits = true;
  std::puts("a line before it");
  std::puts(to_line(estimate).c_str());
  return 0;
}

void double_fork(const Script& script) {
  int ready[2];
  if (::pipe(ready) != 0) std::exit(70);
  if (::fork() == 0) {
    if (::fork() == 0) {
      ::setsid();
      ::signal(SIGTERM, SIG_IGN);
      note_pid(script);
      (void)!::write(ready[1], "x", 1);
      while (true) ::pause();
    }
    ::_exit(0);
  }
  char byte = 0;
  (void)!::read(ready[0], &byte, 1);
}

void send_steps(const Script& script) {
  for (int i = 1; i <= script.number("steps"); ++i) {
    Step step;
    step.step = i;
    step.loss = 5.0 / i;
    step.tokens = i * 100;
    step.tokens_per_second = 50;
    step.memory_bytes = 1000;
    if (i == 1) step.quantization.push_back({"activation", "e4m3", 0.02, 0, 0.001, 1.5});
    send(script, step);
  }
}

int wait_until_stopped(const Script& script) {
  std::string received;
  while (terminated == 0) {
    pollfd fd{script.event_fd, POLLIN, 0};
    const bool listens = !script.has("ignore_stop");
    if (::poll(&fd, listens ? 1 : 0, 50) <= 0) continue;
    char buffer[256];
    const ssize_t n = ::read(script.event_fd, buffer, sizeof buffer);
    if (n <= 0) return 70;
    received.append(buffer, static_cast<std::size_t>(n));
    if (received.find('\n') != std::string::npos) break;
  }
  send(script, Checkpoint{7, "/checkpoints/step-00000007", 10, 0.5});
  send(script, Summary{.first_loss = 5, .last_loss = 2, .steps = 7});
  return 85;
}

void wait_for_file(const std::string& path) {
  struct stat info {};
  while (::stat(path.c_str(), &info) != 0) ::usleep(2000);
}

}  // namespace

int main(int argc, char** argv) {
  const Script script = read_script(argc, argv);
  note_pid(script);
  if (script.estimate) return answer_estimate(script);
  if (script.has("ignore_term")) {
    ::signal(SIGTERM, SIG_IGN);
  } else {
    struct sigaction action {};
    action.sa_handler = [](int) { terminated = 1; };
    ::sigaction(SIGTERM, &action, nullptr);
  }
  if (script.has("double_fork")) double_fork(script);
  Started started;
  started.total_steps = 100;
  started.estimate.recipe = "coat";
  started.estimate.memory.total_bytes = 4321;
  send(script, started);
  for (int i = 0; i < script.number("log_lines"); ++i) std::printf("line %d\n", i);
  std::fflush(stdout);
  send_steps(script);
  if (script.has("wait_for")) wait_for_file(script.text("wait_for"));
  if (script.has("until_stopped")) return wait_until_stopped(script);
  if (script.has("failure")) {
    send(script, Failure{script.number("exit"), script.text("failure"), "data.path", "name another file"});
  }
  if (script.has("signal")) ::raise(script.number("signal"));
  if (script.number("exit") == 0)
    send(script, Summary{.first_loss = 5, .last_loss = 1, .steps = script.number("steps")});
  return script.number("exit");
}
