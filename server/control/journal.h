// Collects the changes of one turn of the state thread, has them committed together, and runs what may only
// happen once they are durable: answers, published events, messages to workers. Belongs to the state thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/store/store.h"

namespace coat::control {

class Journal {
 public:
  // `durable` is false where the commit failed: the state in memory and on disk then differ, and the
  // controller must end.
  using After = std::function<void(bool durable)>;

  // `post` brings a task back to the state thread. `failed` is told once of the first failed commit, on that
  // thread.
  Journal(store::Store& store, std::function<bool(std::function<void()>)> post,
          std::function<void(const std::string&)> failed);

  void restore(std::int64_t last_sequence, std::int64_t epoch);
  std::int64_t next_sequence() { return ++last_sequence_; }
  std::int64_t next_epoch();
  std::int64_t last_sequence() const { return last_sequence_; }
  // Of the newest event that everyone may know of.
  std::int64_t durable_sequence() const { return durable_sequence_; }

  store::Batch& batch() { return batch_; }
  // Runs when everything that was put into the batch so far is durable; in the order of the calls.
  void after(After action);
  void flush();
  bool failed() const { return failed_already_; }

 private:
  store::Store& store_;
  std::function<bool(std::function<void()>)> post_;
  std::function<void(const std::string&)> failed_;
  bool failed_already_ = false;
  std::int64_t last_sequence_ = 0;
  std::int64_t durable_sequence_ = 0;
  std::int64_t epoch_ = 0;
  store::Batch batch_;
  std::vector<After> after_;
  int in_flight_ = 0;
};

}  // namespace coat::control
