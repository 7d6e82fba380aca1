// The one thread that owns the controller's state. Everything that looks at or changes it is posted here;
// nothing posted may block.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "proto/common/clock.h"

namespace coat::control {

class StateThread {
 public:
  using Task = std::function<void()>;
  // Called after the posted tasks of a turn and whenever the time that it returned has come.
  using Tick = std::function<SteadyTime(SteadyTime now)>;

  explicit StateThread(Clock& clock);
  ~StateThread();

  void start(Tick tick);
  // False after stop(): the task will not run.
  bool post(Task task);
  // Runs what was posted before, then ends. Not from the thread itself.
  void stop();

 private:
  void loop();

  Clock& clock_;
  Tick tick_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Task> tasks_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace coat::control
