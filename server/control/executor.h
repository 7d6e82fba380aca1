// A few threads for what blocks on the disk.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace coat::control {

// Thread-safe. With one thread, tasks run in the order of the posts.
class Executor {
 public:
  explicit Executor(int threads);
  ~Executor();
  // False after stop(): the task will not run.
  bool post(std::function<void()> task);
  // Runs what was posted before, then ends.
  void stop();

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace coat::control
