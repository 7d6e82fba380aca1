// The job's log: lines for people on standard output.
#pragma once

#include <chrono>
#include <cstdio>

#include "worker/core/train/report.h"

namespace coat::trainer {

// A line for the first and the last step, and between them at most one in two seconds. Not thread-safe.
class ProgressLog {
 public:
  explicit ProgressLog(std::FILE* out) : out_(out) {}
  void started(const train::StartReport& report);
  void step_done(const train::StepReport& report);
  void checkpoint_saved(const train::CheckpointReport& report);
  void ended(const train::SummaryReport& report);

 private:
  void line(const char* format, ...) __attribute__((format(printf, 2, 3)));
  std::FILE* out_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace coat::trainer
