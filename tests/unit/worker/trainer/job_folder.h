// A folder with a text and the spec of a job that trains on it in a few seconds.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/temporary_folder.h"

namespace coat::trainer {

class JobFolder : public ::testing::Test {
 protected:
  JobFolder() {
    std::string text;
    for (int i = 0; text.size() < 8000; ++i) {
      text += i % 3 == 0 ? "in the beginning " : i % 7 == 1 ? "and the earth " : "was without form ";
    }
    spec_ = {
        {"name", "tiny"},
        {"recipe", "coat"},
        {"model",
         {{"vocab_size", 128},
          {"hidden", 32},
          {"intermediate", 64},
          {"layers", 1},
          {"heads", 2},
          {"kv_heads", 1}}},
        {"data", {{"path", folder_.write("text", text)}}},
        {"training", {{"steps", 6}, {"sequence_length", 16}, {"micro_batch", 2}, {"accumulation_steps", 2}}},
        {"optimizer", {{"learning_rate", 0.01}, {"warmup_steps", 2}}},
        {"metrics", {{"quantization_interval_steps", 2}}}};
  }

  // Command line of a run of the current spec_, with one thread and checkpoints in `checkpoints`.
  std::vector<std::string> arguments(const std::string& checkpoints,
                                     const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"--spec",           folder_.write("job.json", spec_.dump()),
                                    "--checkpoint-dir", folder_ / checkpoints,
                                    "--threads",        "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  coat::testing::TemporaryFolder folder_;
  nlohmann::json spec_;
};

}  // namespace coat::trainer
