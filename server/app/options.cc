#include "server/app/options.h"

#include <charconv>
#include <map>
#include <sstream>
#include <stdexcept>

#include <CLI/CLI.hpp>

namespace coat::app {
namespace {

constexpr char kFooter[] = R"(
Examples:
  coat-controller --state-dir /var/lib/coat
      Serves jobs on 127.0.0.1:7460, workers on 127.0.0.1:7461 and metrics on 127.0.0.1:7462.
  coat-controller --state-dir /tmp/coat --listen 127.0.0.1:0 --worker-listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0
      On free ports; <state-dir>/endpoints.json says which.
  coat-controller --state-dir /var/lib/coat --worker-listen 0.0.0.0:7461 --lease 30s --fence-after 2m
      Workers on other hosts, and more patience with them.

Stop it with SIGTERM or Ctrl-C: running jobs go on, and are found again at the next start.)";

std::chrono::milliseconds duration_option(const std::string& option, const std::string& text) {
  try {
    return parse_duration(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(option + " " + text + ": " + error.what());
  }
}

void check(const ControllerOptions& options) {
  if (options.state_dir.empty())
    throw std::invalid_argument("--state-dir is required: a folder of its own on a local disk");
  parse_address("--listen", options.listen);
  parse_address("--worker-listen", options.worker_listen);
  parse_address("--metrics-listen", options.metrics_listen);
  if (options.heartbeat_interval < std::chrono::milliseconds(10)) {
    throw std::invalid_argument("--heartbeat-interval is shorter than 10ms; use for example 5s");
  }
  if (options.lease < 2 * options.heartbeat_interval) {
    throw std::invalid_argument(
        "--lease is shorter than two heartbeats (--heartbeat-interval), so one late heartbeat "
        "would lose a worker; use at least twice, better three times as long");
  }
  if (options.fence_after < std::chrono::milliseconds(0))
    throw std::invalid_argument("--fence-after is negative");
}

}  // namespace

std::chrono::milliseconds parse_duration(const std::string& text) {
  static const std::map<std::string, double> kUnits = {{"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit = kUnits.find(std::string(end, text.data() + text.size()));
  const bool readable = error == std::errc() && unit != kUnits.end();
  const double ms = readable ? number * unit->second : -1;
  if (!(ms >= 0) || ms > 3.6e9) {
    throw std::invalid_argument(
        "it is no duration up to 1000h; write a number with a unit, as in 250ms, 5s, 2m or 1h");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(ms));
}

Address parse_address(const std::string& option, const std::string& text) {
  const std::size_t colon = text.rfind(':');
  Address address;
  bool good = colon != std::string::npos && colon > 0;
  if (good) {
    address.host = text.substr(0, colon);
    const char* first = text.data() + colon + 1;
    const char* last = text.data() + text.size();
    const auto [end, error] = std::from_chars(first, last, address.port);
    const bool bracketed =
        address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']';
    if (bracketed) address.host = address.host.substr(1, address.host.size() - 2);
    good = error == std::errc() && end == last && address.port >= 0 && address.port <= 65535 &&
           (bracketed || address.host.find(':') == std::string::npos);
  }
  if (!good) {
    throw std::invalid_argument(
        option + " " + text +
        ": it is no HOST:PORT; write for example 127.0.0.1:7460, or port 0 for a free one");
  }
  return address;
}

CommandLine parse_command_line(int argc, const char* const* argv) {
  ControllerOptions options;
  std::string state_dir;
  std::string heartbeat = "5s";
  std::string lease = "15s";
  std::string fence = "30s";
  CLI::App app("coat-controller: takes jobs, keeps them, and gives them to workers.", "coat-controller");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("coat-controller ") + COAT_VERSION);
  app.add_option("--state-dir", state_dir,
                 "Folder of the database, logs and metric samples; made when missing (required)");
  app.add_option("--listen", options.listen, "Address for jobs (gRPC)")->capture_default_str();
  app.add_option("--worker-listen", options.worker_listen, "Address for workers (gRPC)")
      ->capture_default_str();
  app.add_option("--metrics-listen", options.metrics_listen, "Address for Prometheus (HTTP)")
      ->capture_default_str();
  app.add_option("--heartbeat-interval", heartbeat, "How often a worker says that it lives")
      ->capture_default_str();
  app.add_option("--lease", lease, "A worker that is silent for longer is lost; its jobs wait for it")
      ->capture_default_str();
  app.add_option("--fence-after", fence,
                 "A worker that is lost for longer is given up; its jobs start elsewhere")
      ->capture_default_str();
  app.add_option("--log-format", options.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--log-level", options.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  CommandLine line;
  try {
    app.parse(argc, argv);
    options.state_dir = state_dir;
    options.heartbeat_interval = duration_option("--heartbeat-interval", heartbeat);
    options.lease = duration_option("--lease", lease);
    options.fence_after = duration_option("--fence-after", fence);
    check(options);
    line.options = options;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    line.exit_code = app.exit(error, out, err) == 0 ? 0 : 2;
    line.message = out.str() + err.str();
  } catch (const std::invalid_argument& error) {
    line.exit_code = 2;
    line.message = std::string("coat-controller: ") + error.what() + "\n";
  }
  return line;
}

}  // namespace coat::app
