// Text, specs and an observer for tests of runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "spec/job_spec.h"
#include "tests/support/temporary_folder.h"
#include "worker/core/base/parameter.h"
#include "worker/core/optim/adamw.h"
#include "worker/core/train/report.h"

namespace coat::train {

// About `bytes` bytes of sentences over twelve words: far from random, and long enough not to repeat within a
// sequence.
std::string small_text(std::size_t bytes);

// A Llama of two small layers with grouped-query attention, on `path`.
spec::JobSpec small_spec(const std::string& path, const std::string& recipe);

// Every byte of parameters and moments.
std::string state_bytes(ParameterRegistry& parameters, const AdamW& optimizer);

// Keeps what it is told.
class Recorder : public Observer {
 public:
  void started(const StartReport& report) override { starts.push_back(report); }
  void step_done(const StepReport& report) override { steps.push_back(report); }
  void checkpoint_saved(const CheckpointReport& report) override { checkpoints.push_back(report); }
  void warn(const std::string& message) override { warnings.push_back(message); }

  std::vector<double> losses() const;

  std::vector<StartReport> starts;
  std::vector<StepReport> steps;
  std::vector<CheckpointReport> checkpoints;
  std::vector<std::string> warnings;
};

// The message of the `Error` that `action` throws; "none" where it throws nothing.
template <typename Error, typename Action>
std::string reason(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

}  // namespace coat::train
