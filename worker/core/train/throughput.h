// Time of the steps of one process: tokens a second and what is left.
#pragma once

#include <cstdint>

namespace coat::train {

// Not thread-safe. Seconds come from the caller, so that a test needs no clock.
class Throughput {
 public:
  void add(std::int64_t tokens, double seconds) {
    tokens_ += tokens;
    seconds_ += seconds;
    // The mean of about the ten newest steps follows a change of load without jumping.
    recent_seconds_ = recent_seconds_ == 0 ? seconds : 0.9 * recent_seconds_ + 0.1 * seconds;
  }
  double tokens_per_second() const { return seconds_ > 0 ? static_cast<double>(tokens_) / seconds_ : 0; }
  double remaining_seconds(std::int64_t steps_left) const {
    return recent_seconds_ * static_cast<double>(steps_left);
  }

 private:
  std::int64_t tokens_ = 0;
  double seconds_ = 0;
  double recent_seconds_ = 0;
};

}  // namespace coat::train
