// How the agent starts a trainer: the command line that `coat-trainer` parses, in one place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coat::protocol {

struct Launch {
  std::string spec_path;          // --spec FILE        the JSON form of coat.v1.JobSpec
  std::string checkpoint_dir;     // --checkpoint-dir D the job's own folder, over all its attempts
  std::string device = "cpu:0";   // --device cpu:0 | cuda:3
  int threads = 0;                // --threads N        CPU threads; 0: all
  std::int64_t memory_bytes = 0;  // --memory-bytes N   what the job may hold there; 0: what the device has
  bool resume = false;            // --resume           from the newest complete checkpoint, if there is one
  std::int64_t epoch = 0;  // --epoch N          of the attempt: owns the checkpoint folder against lower ones
  int event_fd = -1;       // --event-fd N       inherited socket of worker/protocol/messages.h
  bool estimate = false;   // --estimate         print the Estimate line and end; trains nothing
};

// Arguments after the program's name.
std::vector<std::string> launch_arguments(const Launch& launch);

}  // namespace coat::protocol
