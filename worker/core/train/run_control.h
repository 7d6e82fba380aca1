// What others ask of a running job. Thread-safe.
#pragma once

#include <atomic>

namespace coat::train {

class RunControl {
 public:
  // Stop: the step that is being computed is dropped, what was complete before it is saved, and the run ends.
  void request_stop() { stop_.store(true); }
  bool stop_requested() const { return stop_.load(); }

  // Save at the next step border and go on.
  void request_checkpoint() { checkpoint_.store(true); }
  // Whether one was asked for since the last call.
  bool take_checkpoint_request() { return checkpoint_.exchange(false); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<bool> checkpoint_{false};
};

}  // namespace coat::train
