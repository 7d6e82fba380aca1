#include "worker/protocol/launch.h"

namespace coat::protocol {

std::vector<std::string> launch_arguments(const Launch& launch) {
  std::vector<std::string> arguments;
  const auto add = [&arguments](const char* flag, const std::string& value) {
    arguments.emplace_back(flag);
    arguments.push_back(value);
  };
  add("--spec", launch.spec_path);
  if (!launch.checkpoint_dir.empty()) add("--checkpoint-dir", launch.checkpoint_dir);
  add("--device", launch.device);
  if (launch.threads > 0) add("--threads", std::to_string(launch.threads));
  if (launch.memory_bytes > 0) add("--memory-bytes", std::to_string(launch.memory_bytes));
  if (launch.resume) arguments.emplace_back("--resume");
  if (launch.epoch > 0) add("--epoch", std::to_string(launch.epoch));
  if (launch.event_fd >= 0) add("--event-fd", std::to_string(launch.event_fd));
  if (launch.estimate) arguments.emplace_back("--estimate");
  return arguments;
}

}  // namespace coat::protocol
