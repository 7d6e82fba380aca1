// What a person may set on coat-worker, and how each setting is checked.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace coat::agent {

struct WorkerOptions {
  std::filesystem::path state_dir;            // --state-dir; required
  std::string controller = "127.0.0.1:7461";  // --controller: its WorkerService
  std::string id;  // --id; default: the host's name, in the characters that an id may hold
  std::filesystem::path checkpoint_dir;  // --checkpoint-dir; default: <state-dir>/checkpoints
  std::filesystem::path trainer;         // --trainer; default: coat-trainer beside the worker's own binary
  int cpu_devices = -1;                  // --cpu-devices; -1: one where there is no GPU, else none
  std::int64_t memory_limit_bytes = 0;   // --memory-limit, of each CPU device; 0: from the machine
  std::string metrics_listen = "127.0.0.1:7463";    // --metrics-listen
  std::chrono::milliseconds orphan_grace{600000};   // --orphan-grace: trainers outlive a dead daemon so long
  std::chrono::milliseconds metrics_linger{60000};  // --metrics-linger: series stay so long after a job
  std::string log_format = "text";                  // --log-format text|json
  std::string log_level = "info";                   // --log-level
  // The program that is an attempt's supervisor. No option of the command line: tests name a binary.
  std::filesystem::path supervisor = "/proc/self/exe";
};

// "90s", "10m", "1.5h", "250ms". Throws std::invalid_argument that says what is accepted.
std::chrono::milliseconds parse_duration(const std::string& text);
// "8GiB", "512MiB", "1000000" (bytes), also kB, MB, GB. Throws std::invalid_argument that says what is
// accepted.
std::int64_t parse_bytes(const std::string& text);

// What the command line asks for: run the daemon, supervise an attempt, or end at once (help, version, bad
// usage).
struct CommandLine {
  std::optional<WorkerOptions> worker;
  std::optional<std::filesystem::path> supervise;
  int exit_code = 0;    // when neither is set
  std::string message;  // to print then: on standard output for 0, else on standard error
};
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace coat::agent
