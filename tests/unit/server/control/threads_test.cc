#include <atomic>
#include <future>
#include <vector>

#include <gtest/gtest.h>

#include "server/control/executor.h"
#include "server/control/state_thread.h"

namespace coat::control {
namespace {

using std::chrono::seconds;

TEST(StateThread, TasksRunInOrderAndATickFollows) {
  ManualClock clock;
  StateThread thread(clock);
  std::vector<int> order;
  std::promise<void> done;
  std::atomic<int> ticks{0};
  thread.start([&](SteadyTime now) {
    ++ticks;
    return now + seconds(100);
  });
  for (int i = 0; i < 100; ++i) thread.post([&order, i] { order.push_back(i); });
  thread.post([&done] { done.set_value(); });
  done.get_future().wait();
  thread.stop();
  ASSERT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_GT(ticks, 0);
  EXPECT_FALSE(thread.post([] { FAIL() << "after stop"; }));
}

TEST(StateThread, TicksByTheClockAlone) {
  ManualClock clock;
  StateThread thread(clock);
  std::promise<void> first;
  std::promise<void> second;
  std::atomic<int> ticks{0};
  thread.start([&](SteadyTime now) {
    if (++ticks == 1) first.set_value();
    if (ticks == 2) second.set_value();
    return now + seconds(10);
  });
  first.get_future().wait();
  clock.advance(seconds(10));
  second.get_future().wait();
  thread.stop();
  EXPECT_GE(ticks, 2);
}

TEST(Executor, OneThreadKeepsTheOrderAndStopRunsWhatIsQueued) {
  std::vector<int> order;
  Executor executor(1);
  for (int i = 0; i < 50; ++i) executor.post([&order, i] { order.push_back(i); });
  executor.stop();
  ASSERT_EQ(order.size(), 50U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_FALSE(executor.post([] {}));
}

}  // namespace
}  // namespace coat::control
