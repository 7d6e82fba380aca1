// Where events go: the agent's socket, a file or standard output.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

#include "worker/protocol/messages.h"

namespace coat::trainer {

// Lines are written by a thread of its own, in order, so that a slow or hung reader never holds up training.
// A reader that is gone (EPIPE, ECONNRESET) is no failure: later events are dropped. Thread-safe.
class EventChannel {
 public:
  // `descriptor` is written to and, where `owned`, closed at the end.
  EventChannel(int descriptor, bool owned);
  // Writes what is left; gives up on a reader that takes nothing for ten seconds.
  ~EventChannel();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  void send(const protocol::Event& event);

 private:
  void write_lines();
  bool write_line(const std::string& line);

  const int descriptor_;
  const bool owned_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> waiting_;  // guarded by mutex_
  bool closing_ = false;             // guarded by mutex_
  bool reader_gone_ = false;         // guarded by mutex_
  bool drained_ = false;             // guarded by mutex_: the thread has nothing more to write
  int give_up_ = -1;                 // an eventfd: readable once nothing is to be waited for any more
  std::thread writer_;
};

}  // namespace coat::trainer
