#include "proto/common/clock.h"

#include <algorithm>

namespace coat {
namespace {

class RealClock : public Clock {
 public:
  SystemTime system_now() const override { return std::chrono::system_clock::now(); }
  SteadyTime now() const override { return std::chrono::steady_clock::now(); }
  void wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                  SteadyTime deadline) override {
    // Far deadlines overflow some implementations of wait_until; waking early is allowed.
    constexpr std::chrono::hours kLongest{1};
    condition.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kLongest));
  }
};

}  // namespace

Clock& real_clock() {
  static RealClock clock;
  return clock;
}

SystemTime ManualClock::system_now() const {
  constexpr std::chrono::seconds kStart{1'000'000'000};
  const std::lock_guard<std::mutex> guard(mutex_);
  return SystemTime(kStart) + std::chrono::duration_cast<SystemTime::duration>(offset_);
}

SteadyTime ManualClock::now() const {
  constexpr std::chrono::hours kStart{24};
  const std::lock_guard<std::mutex> guard(mutex_);
  return SteadyTime(kStart) + std::chrono::duration_cast<SteadyTime::duration>(offset_);
}

void ManualClock::wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                             SteadyTime deadline) {
  if (now() >= deadline) return;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    waiters_.push_back(&condition);
  }
  // advance() cannot take the caller's mutex without the risk of a deadlock, so its notice may come just
  // before this wait begins; a bounded wait makes that harmless.
  constexpr std::chrono::milliseconds kMissedNotice{5};
  condition.wait_for(lock, kMissedNotice);
  const std::lock_guard<std::mutex> guard(mutex_);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &condition));
}

void ManualClock::advance(std::chrono::nanoseconds by) {
  const std::lock_guard<std::mutex> guard(mutex_);
  offset_ += by;
  // A waiter leaves the list under mutex_, so each of these conditions is alive.
  for (std::condition_variable* waiter : waiters_) waiter->notify_all();
}

}  // namespace coat
