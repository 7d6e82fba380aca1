// The command line of coat-trainer. The flags that the agent uses are those of worker/protocol/launch.h.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "worker/protocol/launch.h"

namespace coat::trainer {

struct Options {
  protocol::Launch launch;
  std::string events_path;  // empty: --event-fd, or standard output
  std::string sample_from;  // a checkpoint folder; empty: train
  std::string prompt;
  std::optional<std::int64_t> tokens;
  std::optional<double> temperature;
  std::optional<std::uint64_t> seed;
  bool version = false;
};

// What is wrong with the command line, for people; with --help, the help.
class UsageError : public std::runtime_error {
 public:
  UsageError(const std::string& text, bool help) : std::runtime_error(text), is_help(help) {}
  bool is_help;
};

// Throws UsageError.
Options parse_options(int argc, const char* const* argv);

}  // namespace coat::trainer
