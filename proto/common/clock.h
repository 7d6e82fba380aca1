// Time as a seam: whatever waits or stamps takes a Clock, so that a test's fake time drives timers too.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

namespace coat {

using SystemTime = std::chrono::system_clock::time_point;
using SteadyTime = std::chrono::steady_clock::time_point;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual SystemTime system_now() const = 0;  // for stamps
  virtual SteadyTime now() const = 0;         // for leases, back-off and deadlines
  // Waits on `condition` (with `lock` held, as std::condition_variable) until notified or `deadline`; may
  // wake early.
  virtual void wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                          SteadyTime deadline) = 0;
};

Clock& real_clock();

// Stands still until advance(), which wakes every waiter. system_now() begins 1,000,000,000 seconds after the
// epoch (2001-09-09 01:46:40 UTC).
class ManualClock : public Clock {
 public:
  SystemTime system_now() const override;
  SteadyTime now() const override;
  void wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                  SteadyTime deadline) override;
  void advance(std::chrono::nanoseconds by);

 private:
  mutable std::mutex mutex_;
  std::chrono::nanoseconds offset_{0};
  std::vector<std::condition_variable*> waiters_;  // one entry a call of wait_until in progress
};

}  // namespace coat
