// Waiting for a condition of another process: polled until it holds, with a deadline that only a failure
// reaches.
#pragma once

#include <chrono>
#include <thread>
#include <utility>

namespace coat::testing {

// Long enough for a loaded machine with sanitizers; no passing test waits for it.
inline constexpr std::chrono::seconds kPatience{60};

// True as soon as `condition()` is; false when `patience` has passed first.
template <typename Condition>
bool eventually(Condition&& condition, std::chrono::milliseconds patience = kPatience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace coat::testing
