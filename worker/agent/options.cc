#include "worker/agent/options.h"

#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include <CLI/CLI.hpp>

namespace coat::agent {
namespace {

constexpr int kUsageError = 2;

struct Quantity {
  double value = 0;
  std::string unit;
};

std::optional<Quantity> split_quantity(const std::string& text) {
  Quantity quantity;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), quantity.value);
  if (error != std::errc() || !std::isfinite(quantity.value) || quantity.value < 0) return std::nullopt;
  quantity.unit.assign(end, text.data() + text.size());
  return quantity;
}

std::string default_id() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string id;
  for (const char c : std::string(name).substr(0, 63)) {
    const auto lower = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    id += std::isalnum(static_cast<unsigned char>(lower)) != 0 ? lower : '-';
  }
  while (!id.empty() && id.back() == '-') id.pop_back();
  while (!id.empty() && id.front() == '-') id.erase(0, 1);
  return id.empty() ? "worker" : id;
}

bool is_worker_id(const std::string& id) {
  if (id.empty() || id.size() > 63 || id.front() == '-' || id.back() == '-') return false;
  return id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string::npos;
}

std::filesystem::path default_trainer() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "coat-trainer" : self.parent_path() / "coat-trainer";
}

// Checks what one option alone cannot say, and fills the defaults that depend on others.
void complete(WorkerOptions* options) {
  if (options->id.empty()) options->id = default_id();
  if (!is_worker_id(options->id)) {
    throw std::invalid_argument(
        "--id '" + options->id +
        "' is no worker id: up to 63 of a-z, 0-9 and '-', with a letter or digit at both ends");
  }
  for (const auto& [name, value] : {std::pair{"--controller", options->controller},
                                    std::pair{"--metrics-listen", options->metrics_listen}}) {
    const std::size_t colon = value.rfind(':');
    const std::string port = colon == std::string::npos ? "" : value.substr(colon + 1);
    if (colon == 0 || port.empty() || port.size() > 5 ||
        port.find_first_not_of("0123456789") != std::string::npos || std::stoi(port) > 65535) {
      throw std::invalid_argument(std::string(name) + " '" + value +
                                  "' is no address: write host:port, as 127.0.0.1:7461");
    }
  }
  options->state_dir = std::filesystem::absolute(options->state_dir);
  options->checkpoint_dir = options->checkpoint_dir.empty()
                                ? options->state_dir / "checkpoints"
                                : std::filesystem::absolute(options->checkpoint_dir);
  options->trainer =
      options->trainer.empty() ? default_trainer() : std::filesystem::absolute(options->trainer);
  if (::access(options->trainer.c_str(), X_OK) != 0) {
    throw std::invalid_argument("--trainer '" + options->trainer.string() +
                                "' is no program that can be run: name the coat-trainer binary");
  }
}

void define_options(CLI::App& app, WorkerOptions& options, std::map<std::string, std::string>& texts) {
  app.add_option("--state-dir", options.state_dir,
                 "folder for attempts, logs and the worker's identity (required)");
  app.add_option("--controller", options.controller, "address of the controller's WorkerService")
      ->capture_default_str();
  app.add_option("--id", options.id,
                 "name of this worker, the same over restarts (default: the host's name)");
  app.add_option("--checkpoint-dir", options.checkpoint_dir,
                 "folder of the jobs' checkpoints (default: <state-dir>/checkpoints)");
  app.add_option("--trainer", options.trainer, "the coat-trainer program (default: beside this program)");
  app.add_option(
         "--cpu-devices", options.cpu_devices,
         "CPU devices to offer, the cores shared among them (default: 1 where there is no GPU, else 0)")
      ->check(CLI::Range(0, 1024));
  app.add_option(
      "--memory-limit", texts["--memory-limit"],
      "memory of each CPU device, as 8GiB (default: the machine's or the cgroup's, less a reserve)");
  app.add_option("--metrics-listen", options.metrics_listen,
                 "address of the Prometheus endpoint; port 0 picks a free one")
      ->capture_default_str();
  app.add_option("--orphan-grace", texts["--orphan-grace"],
                 "trainers outlive a dead daemon for so long, then they save and stop (default: 10m)");
  app.add_option("--metrics-linger", texts["--metrics-linger"],
                 "a job's series stay so long after its end (default: 60s)");
  app.add_option("--log-format", options.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app.add_option("--log-level", options.log_level, "debug, info, warning or error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

void read_texts(const std::map<std::string, std::string>& texts, WorkerOptions* options) {
  for (const auto& [name, text] : texts) {
    if (text.empty()) continue;
    try {
      if (name == "--memory-limit") options->memory_limit_bytes = parse_bytes(text);
      if (name == "--orphan-grace") options->orphan_grace = parse_duration(text);
      if (name == "--metrics-linger") options->metrics_linger = parse_duration(text);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(name + " " + error.what());
    }
  }
}

constexpr const char* kFooter = R"(
Examples
  coat-worker --state-dir /var/lib/coat-worker --controller controller.example:7461
  coat-worker --state-dir ./worker --cpu-devices 2 --memory-limit 4GiB     two CPU devices, half of the cores each
  coat-worker --state-dir ./worker --id bench --metrics-listen 127.0.0.1:0  the port is in ./worker/endpoints.json

Signals
  SIGTERM, SIGINT   every trainer saves a checkpoint and stops, then the worker ends; a second one hurries them
  SIGKILL           trainers go on; the next coat-worker on the same state folder takes them over)";

}  // namespace

std::chrono::milliseconds parse_duration(const std::string& text) {
  static const std::map<std::string, double> units{{"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}};
  const auto quantity = split_quantity(text);
  const auto unit = quantity ? units.find(quantity->unit) : units.end();
  if (unit == units.end() || quantity->value * unit->second > 1e12) {
    throw std::invalid_argument("'" + text + "' is no duration: write a number with ms, s, m or h, as 10m");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(quantity->value * unit->second));
}

std::int64_t parse_bytes(const std::string& text) {
  static const std::map<std::string, double> units{
      {"", 1},      {"B", 1},        {"kB", 1e3},        {"MB", 1e6},           {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0}};
  const auto quantity = split_quantity(text);
  const auto unit = quantity ? units.find(quantity->unit) : units.end();
  if (unit == units.end() || quantity->value * unit->second < 1 || quantity->value * unit->second > 1e18) {
    throw std::invalid_argument(
        "'" + text + "' is no size: write a number of bytes, or one with KiB, MiB, GiB or TiB, as 8GiB");
  }
  return static_cast<std::int64_t>(quantity->value * unit->second);
}

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine result;
  CLI::App app(
      "The worker daemon of COAT: offers this machine's devices to a controller and runs its jobs on them.",
      "coat-worker");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("coat-worker ") + COAT_VERSION);
  WorkerOptions options;
  std::map<std::string, std::string> texts;
  define_options(app, options, texts);
  std::filesystem::path folder;
  CLI::App* supervise = app.add_subcommand("supervise", "");
  supervise->group("");  // what the daemon starts for each attempt; not for people
  supervise->add_option("--dir", folder)->required();
  try {
    app.parse(argc, argv);
    if (supervise->parsed()) {
      result.supervise = folder;
      return result;
    }
    if (options.state_dir.empty()) {
      throw std::invalid_argument(
          "--state-dir is required: name a folder that this worker may write, as ./worker");
    }
    read_texts(texts, &options);
    complete(&options);
    result.worker = options;
  } catch (const CLI::ParseError& error) {
    std::ostringstream out;
    std::ostringstream err;
    result.exit_code = app.exit(error, out, err) == 0 ? 0 : kUsageError;
    result.message = out.str() + err.str();
  } catch (const std::invalid_argument& error) {
    result.exit_code = kUsageError;
    result.message = std::string("coat-worker: ") + error.what() + "\n";
  }
  return result;
}

}  // namespace coat::agent
