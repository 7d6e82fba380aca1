// Runs a program to its end and keeps what it prints.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace coat::agent {

struct CapturedRun {
  int exit_code = -1;
  int signal = 0;
  bool timed_out = false;  // or was cancelled: killed with all that it started
  std::string output;
  std::string error_output;
};

// At most 1 MiB of each output is kept. The program is killed with its session when `timeout` has passed,
// when `cancelled` (asked ten times a second) is true, or when the calling thread dies. A program that cannot
// be run is a std::system_error.
CapturedRun run_captured(const std::vector<std::string>& arguments, std::chrono::milliseconds timeout,
                         const std::function<bool()>& cancelled);

}  // namespace coat::agent
