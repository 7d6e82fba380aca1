// Exponential back-off with jitter. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace coat {

struct BackoffOptions {
  std::chrono::milliseconds initial{500};
  std::chrono::milliseconds maximum{30000};
  double factor = 2.0;
  double jitter = 0.2;  // +- share of the delay
};

class Backoff {
 public:
  explicit Backoff(BackoffOptions options, std::uint64_t seed);
  std::chrono::milliseconds next();
  void reset();

 private:
  BackoffOptions options_;
  std::uint64_t state_;
  double current_ms_;
};

// The delay before attempt number `retry` (1 is the first retry), without jitter.
std::chrono::milliseconds backoff_delay(const BackoffOptions& options, int retry);

}  // namespace coat
