#include "proto/common/clock.h"

#include <atomic>
#include <thread>

#include <gtest/gtest.h>

#include "proto/common/backoff.h"

namespace coat {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ManualClock, StandsStillUntilAdvanced) {
  ManualClock clock;
  const SteadyTime start = clock.now();
  const SystemTime stamp = clock.system_now();
  EXPECT_EQ(clock.now(), start);
  clock.advance(seconds(90));
  EXPECT_EQ(clock.now() - start, seconds(90));
  EXPECT_EQ(clock.system_now() - stamp, seconds(90));
}

TEST(ManualClock, AdvancingEndsAWait) {
  ManualClock clock;
  std::mutex mutex;
  std::condition_variable condition;
  std::atomic<bool> done{false};
  const SteadyTime deadline = clock.now() + seconds(3600);
  std::thread waiter([&] {
    std::unique_lock<std::mutex> lock(mutex);
    while (clock.now() < deadline) clock.wait_until(condition, lock, deadline);
    done = true;
  });
  clock.advance(seconds(3599));
  EXPECT_FALSE(done);
  clock.advance(seconds(1));
  waiter.join();
  EXPECT_TRUE(done);
}

TEST(ManualClock, ManyWaitersAndMuchAdvancing) {
  ManualClock clock;
  constexpr int kWaiters = 8;
  const SteadyTime start = clock.now();
  std::atomic<int> finished{0};
  std::vector<std::thread> waiters;
  for (int i = 1; i <= kWaiters; ++i) {
    waiters.emplace_back([&, i] {
      std::mutex mutex;
      std::condition_variable condition;  // ends with this thread, while others still wait
      std::unique_lock<std::mutex> lock(mutex);
      while (clock.now() < start + seconds(i)) clock.wait_until(condition, lock, start + seconds(i));
      ++finished;
    });
  }
  for (int i = 0; i < kWaiters * 10; ++i) clock.advance(milliseconds(100));
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(finished, kWaiters);
}

TEST(RealClock, APastDeadlineDoesNotWaitAndAFarOneCanBeNotified) {
  std::mutex mutex;
  std::condition_variable condition;
  std::unique_lock<std::mutex> lock(mutex);
  real_clock().wait_until(condition, lock, real_clock().now() - seconds(1));
  bool told = false;
  std::thread other([&] {
    const std::lock_guard<std::mutex> guard(mutex);
    told = true;
    condition.notify_all();
  });
  while (!told) real_clock().wait_until(condition, lock, SteadyTime::max());
  lock.unlock();
  other.join();
}

TEST(Backoff, GrowsToTheMaximumAndStartsAgain) {
  Backoff backoff({milliseconds(100), milliseconds(1000), 2.0, 0.0}, 1);
  for (const int expected : {100, 200, 400, 800, 1000, 1000})
    EXPECT_EQ(backoff.next(), milliseconds(expected));
  backoff.reset();
  EXPECT_EQ(backoff.next(), milliseconds(100));
}

TEST(Backoff, JitterStaysInItsShareAndVaries) {
  Backoff backoff({milliseconds(1000), milliseconds(1000), 2.0, 0.2}, 7);
  milliseconds least = milliseconds::max();
  milliseconds most = milliseconds::min();
  for (int i = 0; i < 1000; ++i) {
    const milliseconds delay = backoff.next();
    least = std::min(least, delay);
    most = std::max(most, delay);
  }
  EXPECT_GE(least, milliseconds(800));
  EXPECT_LE(most, milliseconds(1200));
  EXPECT_GT(most - least, milliseconds(300));
}

TEST(Backoff, TheDelayOfARetryIsAFunctionOfItsNumber) {
  const BackoffOptions options{milliseconds(500), milliseconds(30000), 2.0, 0.2};
  EXPECT_EQ(backoff_delay(options, 1), milliseconds(500));
  EXPECT_EQ(backoff_delay(options, 2), milliseconds(1000));
  EXPECT_EQ(backoff_delay(options, 7), milliseconds(30000));
  EXPECT_EQ(backoff_delay(options, 100000), milliseconds(30000));
  EXPECT_EQ(backoff_delay(options, 0), milliseconds(500));
}

}  // namespace
}  // namespace coat
