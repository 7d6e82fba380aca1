// What a person may set on coat-controller, and how each setting is checked.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace coat::app {

struct ControllerOptions {
  std::filesystem::path state_dir;                     // --state-dir; required
  std::string listen = "127.0.0.1:7460";               // --listen: JobService
  std::string worker_listen = "127.0.0.1:7461";        // --worker-listen: WorkerService
  std::string metrics_listen = "127.0.0.1:7462";       // --metrics-listen: GET /metrics
  std::chrono::milliseconds heartbeat_interval{5000};  // --heartbeat-interval
  std::chrono::milliseconds lease{15000};              // --lease
  std::chrono::milliseconds fence_after{30000};        // --fence-after
  std::string log_format = "text";                     // --log-format text|json
  std::string log_level = "info";                      // --log-level
};

// What the command line asks for: run, or end at once (help, version, bad usage).
struct CommandLine {
  std::optional<ControllerOptions> options;
  int exit_code = 0;    // when there are none
  std::string message;  // to print then: on standard output for 0, else on standard error
};
CommandLine parse_command_line(int argc, const char* const* argv);

// "5s", "250ms", "2m", "1h". Throws std::invalid_argument that says what is accepted.
std::chrono::milliseconds parse_duration(const std::string& text);

struct Address {
  std::string host;
  int port = 0;
};
// "127.0.0.1:7460", "[::1]:0". Throws std::invalid_argument that names the option.
Address parse_address(const std::string& option, const std::string& text);

}  // namespace coat::app
