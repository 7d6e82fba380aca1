// A real training job that takes seconds: a few thousand parameters on a few kilobytes of text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace coat::testing {

struct TinyJob {
  std::string name = "tiny";
  std::string recipe = "coat";
  std::int64_t steps = 30;
  std::int64_t checkpoint_interval = 10;
  std::int64_t max_retries = 3;
  double stop_grace_seconds = 20;
  std::string data_path;  // set by Service::write_job when empty
  std::string extra;      // more YAML, at the top level
};

std::string to_yaml(const TinyJob& job);

// Words of a small vocabulary in an order that repeats itself never: text that a model can learn something
// of.
std::string tiny_text(std::size_t bytes);

}  // namespace coat::testing
