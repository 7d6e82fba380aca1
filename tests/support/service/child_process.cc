#include "tests/support/service/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <system_error>

#include "tests/support/service/temporary_folder.h"

namespace coat::testing {
namespace {

int open_for_append(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), path.string());
  return fd;
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& extra) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (extra.find(text.substr(0, text.find('='))) == extra.end()) result.push_back(text);
  }
  for (const auto& [name, value] : extra) result.push_back(name + "=" + value);
  return result;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct Prepared {
  char** arguments;
  char** environment;
  int input;
  int output;
  int errors;
  pid_t parent;
};

// Between fork and exec: only what is safe in a copy of a process with threads.
[[noreturn]] void become(const Prepared& prepared) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != prepared.parent) ::_exit(126);
  ::dup2(prepared.input, 0);
  ::dup2(prepared.output, 1);
  ::dup2(prepared.errors, 2);
  ::execvpe(prepared.arguments[0], prepared.arguments, prepared.environment);
  ::_exit(127);
}

Exit to_exit(int status) {
  if (WIFEXITED(status)) return {WEXITSTATUS(status), 0};
  return {-1, WTERMSIG(status)};
}

}  // namespace

ChildProcess::ChildProcess(const Command& command) {
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = merged_environment(command.environment);
  std::vector<char*> argument_pointers = pointers(arguments);
  std::vector<char*> environment_pointers = pointers(environment);
  const int input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int output = open_for_append(command.output);
  const int errors = command.errors.empty() ? output : open_for_append(command.errors);
  const Prepared prepared{
      argument_pointers.data(), environment_pointers.data(), input, output, errors, ::getpid()};
  pid_ = ::fork();
  if (pid_ == 0) become(prepared);
  const int error = errno;
  ::close(input);
  ::close(output);
  if (errors != output) ::close(errors);
  if (pid_ < 0) throw std::system_error(error, std::generic_category(), "fork");
}

ChildProcess::~ChildProcess() { kill_now(); }

bool ChildProcess::running() {
  if (reaped_) return false;
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  if (ended != pid_) return true;
  reaped_ = true;
  exit_ = to_exit(status);
  return false;
}

void ChildProcess::signal(int number) {
  if (running()) ::kill(pid_, number);
}

Exit ChildProcess::wait(std::chrono::milliseconds patience) {
  if (!eventually([this] { return !running(); }, patience)) kill_now();
  return exit_;
}

void ChildProcess::kill_now() {
  if (!running()) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  exit_ = to_exit(status);
}

Output run_to_end(std::vector<std::string> arguments, const std::filesystem::path& scratch_folder,
                  const std::map<std::string, std::string>& environment, std::chrono::milliseconds patience) {
  static std::atomic<int> counter{0};
  const std::string stem = "command-" + std::to_string(++counter);
  Command command;
  command.arguments = std::move(arguments);
  command.environment = environment;
  command.output = scratch_folder / (stem + ".out");
  command.errors = scratch_folder / (stem + ".err");
  ChildProcess process(command);
  const Exit exit = process.wait(patience);
  return {exit, read_file(command.output), read_file(command.errors)};
}

std::vector<pid_t> processes_of(const std::filesystem::path& folder, const std::string& program) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    const std::string command = read_file(entry.path() / "cmdline");
    const std::string first = command.substr(0, command.find('\0'));
    const bool is_program = program.empty() || std::filesystem::path(first).filename() == program;
    if (is_program && command.find(folder.string()) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

std::vector<std::string> kill_processes_of(const std::filesystem::path& folder) {
  std::vector<std::string> killed;
  for (const pid_t pid : processes_of(folder)) {
    if (pid == ::getpid()) continue;
    killed.push_back(read_file("/proc/" + std::to_string(pid) + "/cmdline"));
    ::kill(pid, SIGKILL);
  }
  return killed;
}

}  // namespace coat::testing
