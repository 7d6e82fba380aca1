#include "proto/common/backoff.h"

#include <algorithm>
#include <cmath>

namespace coat {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15ULL;
  std::uint64_t z = state;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

}  // namespace

Backoff::Backoff(BackoffOptions options, std::uint64_t seed)
    : options_(options), state_(seed), current_ms_(static_cast<double>(options.initial.count())) {}

std::chrono::milliseconds Backoff::next() {
  const double share = static_cast<double>(next_random(state_) >> 11U) * 0x1.0p-53;  // [0, 1)
  const double delay = current_ms_ * (1.0 + options_.jitter * (2.0 * share - 1.0));
  current_ms_ = std::min(current_ms_ * options_.factor, static_cast<double>(options_.maximum.count()));
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::llround(delay)));
}

void Backoff::reset() { current_ms_ = static_cast<double>(options_.initial.count()); }

std::chrono::milliseconds backoff_delay(const BackoffOptions& options, int retry) {
  const double delay =
      static_cast<double>(options.initial.count()) * std::pow(options.factor, std::max(0, retry - 1));
  const double bounded = std::min(delay, static_cast<double>(options.maximum.count()));
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::llround(bounded)));
}

}  // namespace coat
