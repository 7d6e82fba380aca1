// Logs of the daemons: standard error, one line a message, "text" for people or "json" for collectors.
#pragma once

#include <string>

namespace coat {

struct LoggingOptions {
  std::string program;          // "coat-controller"
  std::string format = "text";  // "text" or "json"
  std::string level = "info";   // "debug", "info", "warning", "error"
};

// Sets spdlog's default logger. Throws std::invalid_argument naming the option and its choices.
void init_logging(const LoggingOptions& options);

}  // namespace coat
