// A small state to save, and a place for it.
#pragma once

#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/temporary_folder.h"
#include "worker/core/checkpoint/checkpoint_store.h"

namespace coat::checkpoint {

// Two parameters and their state, with values that depend on `step`.
class State {
 public:
  explicit State(std::int64_t step = 0) : weight_(300), norm_(7), codes_(300) { fill(step); }

  void fill(std::int64_t step) {
    std::iota(weight_.begin(), weight_.end(), static_cast<float>(step));
    std::iota(norm_.begin(), norm_.end(), static_cast<float>(step) + 0.5F);
    for (std::size_t i = 0; i < codes_.size(); ++i) {
      codes_[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(step));
    }
  }
  std::vector<HostTensor> parameters() {
    return {{"weight", "float32", {3, 100}, weight_.data(), 1200},
            {"norm", "float32", {7}, norm_.data(), 28}};
  }
  std::vector<HostTensor> optimizer() { return {{"weight.moment1", "uint8", {300}, codes_.data(), 300}}; }
  Content content(std::int64_t step) {
    fill(step);
    Content content{.spec_json = R"({"name":"a"})"};
    content.progress = {.step = step,
                        .data_position = step * 8,
                        .tokens = step * 2048,
                        .nonfinite_steps = 1,
                        .first_loss = 5.545177444479562,
                        .recent_losses = {0.1 + 0.2, 1e-300}};
    content.identity = identity();
    content.parameters = parameters();
    content.optimizer = optimizer();
    return content;
  }
  static std::vector<std::pair<std::string, std::string>> identity() {
    return {{"model.hidden", "256"}, {"recipe", "coat"}};
  }
  Expected expected() { return {identity(), parameters(), optimizer()}; }
  bool operator==(const State&) const = default;

 private:
  std::vector<float> weight_;
  std::vector<float> norm_;
  std::vector<std::uint8_t> codes_;
};

class StoreTest : public ::testing::Test {
 protected:
  Store store(FileSystem& files, std::int64_t epoch = 1, std::int64_t keep = 2) {
    return Store(files, folder_ / "job", epoch, keep);
  }
  std::string job(const std::string& name) const { return folder_ / ("job/" + name); }
  std::vector<std::string> names() { return real_file_system().list(folder_ / "job"); }

  coat::testing::TemporaryFolder folder_;
  FileSystem& real_ = real_file_system();
};

}  // namespace coat::checkpoint
