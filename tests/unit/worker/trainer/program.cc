#include "tests/unit/worker/trainer/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/support/temporary_folder.h"

namespace coat::trainer {
namespace {

using coat::testing::read_file;

std::string trainer_path() {
  const char* folder = std::getenv("COAT_BINARY_DIR");
  if (folder == nullptr) throw std::runtime_error("COAT_BINARY_DIR is not set: run through ctest");
  return std::string(folder) + "/bin/coat-trainer";
}

void redirect(const std::string& path, int descriptor) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND);
  if (file < 0 || ::dup2(file, descriptor) < 0) std::_Exit(126);
}

}  // namespace

Program::Program(const std::string& folder, const std::vector<std::string>& arguments, int socket,
                 const std::function<void()>& before_exec)
    : folder_(folder) {
  const std::string path = trainer_path();
  std::vector<std::string> all = {path};
  all.insert(all.end(), arguments.begin(), arguments.end());
  if (socket >= 0) all.insert(all.end(), {"--event-fd", std::to_string(socket)});
  std::vector<char*> pointers;
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  // Empty before the child exists: a reader must not see what an earlier one wrote.
  for (const char* name : {"/out", "/err"}) std::ofstream(folder_ + name, std::ios::trunc);
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ > 0) return;
  redirect(folder_ + "/out", STDOUT_FILENO);
  redirect(folder_ + "/err", STDERR_FILENO);
  if (socket >= 0) ::fcntl(socket, F_SETFD, 0);
  if (before_exec) before_exec();
  ::execv(path.c_str(), pointers.data());
  std::_Exit(127);
}

Program::~Program() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Program::signal(int number) const { ::kill(pid_, number); }

Outcome Program::wait() {
  int status = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  pid_ = -1;
  Outcome outcome{.out = read_file(folder_ + "/out"), .err = read_file(folder_ + "/err")};
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

Outcome run_program(const std::string& folder, const std::vector<std::string>& arguments,
                    const std::function<void()>& before_exec) {
  return Program(folder, arguments, -1, before_exec).wait();
}

std::vector<protocol::Event> parse_events(const std::string& text) {
  std::vector<protocol::Event> events;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) events.push_back(protocol::parse_event(line));
  return events;
}

bool eventually(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

SocketPair::SocketPair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw std::runtime_error("socketpair failed");
  agent = ends[0];
  trainer = ends[1];
}

SocketPair::~SocketPair() {
  close_agent();
  close_trainer();
}

void SocketPair::close_agent() {
  if (agent >= 0) ::close(agent);
  agent = -1;
}

void SocketPair::close_trainer() {
  if (trainer >= 0) ::close(trainer);
  trainer = -1;
}

std::string LineReader::next() {
  std::size_t end = 0;
  while ((end = pending_.find('\n')) == std::string::npos) {
    char block[4096];
    pollfd ready{.fd = descriptor_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 60'000) <= 0) return "";
    const ssize_t got = ::read(descriptor_, block, sizeof block);
    if (got <= 0) return "";
    pending_.append(block, static_cast<std::size_t>(got));
  }
  std::string line = pending_.substr(0, end);
  pending_.erase(0, end + 1);
  return line;
}

}  // namespace coat::trainer
