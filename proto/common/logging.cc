#include "proto/common/logging.h"

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <stdexcept>

#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace coat {
namespace {

void append_escaped(std::string& out, spdlog::string_view_t text) {
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (code < 0x20) {
      std::array<char, 7> buffer{};
      std::snprintf(buffer.data(), buffer.size(), "\\u%04x", static_cast<unsigned>(code));
      out += buffer.data();
    } else {
      out += c;
    }
  }
}

std::string utc_time(spdlog::log_clock::time_point time) {
  const auto since_epoch = time.time_since_epoch();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(since_epoch);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch - seconds);
  const std::time_t whole = seconds.count();
  std::tm parts{};
  gmtime_r(&whole, &parts);
  std::array<char, 64> buffer{};
  const std::size_t used = std::strftime(buffer.data(), buffer.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(buffer.data() + used, buffer.size() - used, ".%03dZ", static_cast<int>(millis.count()));
  return buffer.data();
}

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(message.level);
    std::string line = "{\"time\":\"" + utc_time(message.time) + "\",\"level\":\"";
    append_escaped(line, level);
    line += "\",\"program\":\"";
    append_escaped(line, message.logger_name);
    line += "\",\"message\":\"";
    append_escaped(line, message.payload);
    line += "\"}\n";
    out.append(line.data(), line.data() + line.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

spdlog::level::level_enum parse_level(const std::string& level) {
  if (level == "debug") return spdlog::level::debug;
  if (level == "info") return spdlog::level::info;
  if (level == "warning") return spdlog::level::warn;
  if (level == "error") return spdlog::level::err;
  throw std::invalid_argument("--log-level: \"" + level +
                              "\" is not known; use debug, info, warning or error");
}

}  // namespace

void init_logging(const LoggingOptions& options) {
  const spdlog::level::level_enum level = parse_level(options.level);
  auto logger =
      std::make_shared<spdlog::logger>(options.program, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (options.format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else if (options.format == "text") {
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%eZ %-7l %n: %v", spdlog::pattern_time_type::utc);
  } else {
    throw std::invalid_argument("--log-format: \"" + options.format + "\" is not known; use text or json");
  }
  logger->set_level(level);
  logger->flush_on(level);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace coat
