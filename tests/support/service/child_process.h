// A program that a test runs: started with its output in a file, killed when the object or the test goes
// away.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/service/polling.h"

namespace coat::testing {

struct Exit {
  int code = -1;   // -1: it did not exit by itself
  int signal = 0;  // that ended it
  bool operator==(const Exit&) const = default;
  friend void PrintTo(const Exit& exit, std::ostream* stream) {
    *stream << "exit code " << exit.code << ", signal " << exit.signal;
  }
};

struct Command {
  std::vector<std::string> arguments;  // the program's path first; looked up in PATH when it holds no slash
  std::map<std::string, std::string> environment;  // on top of the test's own
  std::filesystem::path output;                    // standard output, appended
  std::filesystem::path errors;                    // standard error; empty: where the output goes
};

class ChildProcess {
 public:
  explicit ChildProcess(const Command& command);
  ~ChildProcess();  // SIGKILL when it still runs
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  void signal(int number);
  // Its exit when it ends within `patience`; else the process is killed and the exit says SIGKILL.
  Exit wait(std::chrono::milliseconds patience = kPatience);
  // SIGKILL, and reaped.
  void kill_now();

 private:
  pid_t pid_ = -1;
  bool reaped_ = false;
  Exit exit_;
};

// What a command that ends by itself printed.
struct Output {
  Exit exit;
  std::string out;
  std::string err;
};
Output run_to_end(std::vector<std::string> arguments, const std::filesystem::path& scratch_folder,
                  const std::map<std::string, std::string>& environment = {},
                  std::chrono::milliseconds patience = kPatience);

// SIGKILL to every process whose command line names `folder` (a test's own temporary folder): supervisors and
// trainers that outlive a killed worker on purpose. Returns their command lines.
std::vector<std::string> kill_processes_of(const std::filesystem::path& folder);
std::vector<pid_t> processes_of(const std::filesystem::path& folder, const std::string& program = "");

}  // namespace coat::testing
