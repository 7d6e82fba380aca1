// Readers that wait for more of an attempt's log or metric samples. Belongs to the state thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "proto/common/result.h"
#include "server/store/attempt_files.h"

namespace coat::control {

struct StreamState {
  std::int64_t size = 0;
  bool complete = false;  // nothing will be appended any more
};

class StreamHub {
 public:
  using Look = std::function<Result<StreamState>(store::StreamKind kind)>;
  using Done = std::function<void(Result<StreamState>)>;

  // Waits until the stream is longer than `offset` or complete.
  void wait(std::int64_t id, const std::string& attempt, store::StreamKind kind, std::int64_t offset,
            Done done);
  void forget(std::int64_t id);
  // Something happened to the attempt: looks again for everyone who waits for it.
  void wake(const std::string& attempt, const Look& look);
  std::vector<std::string> attempts() const;
  void end_all(const ServiceError& error);

 private:
  struct Waiter {
    std::string attempt;
    store::StreamKind kind;
    std::int64_t offset;
    Done done;
  };
  std::map<std::int64_t, Waiter> waiters_;
};

}  // namespace coat::control
