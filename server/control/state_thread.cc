#include "server/control/state_thread.h"

#include <utility>

namespace coat::control {

StateThread::StateThread(Clock& clock) : clock_(clock) {}

StateThread::~StateThread() { stop(); }

void StateThread::start(Tick tick) {
  tick_ = std::move(tick);
  thread_ = std::thread([this] { loop(); });
}

bool StateThread::post(Task task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_) return false;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_all();
  return true;
}

void StateThread::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StateThread::loop() {
  SteadyTime deadline = clock_.now();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    while (tasks_.empty() && !stopping_ && clock_.now() < deadline) clock_.wait_until(wake_, lock, deadline);
    if (tasks_.empty() && stopping_) return;
    std::deque<Task> turn;
    turn.swap(tasks_);
    lock.unlock();
    for (Task& task : turn) task();
    turn.clear();
    deadline = tick_(clock_.now());
    lock.lock();
  }
}

}  // namespace coat::control
