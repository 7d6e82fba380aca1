// Live events to watchers. Belongs to the state thread; sinks are called from it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "proto/coat/v1/job_service.pb.h"
#include "proto/common/service_error.h"

namespace coat::control {

// A watcher's end. No call blocks.
class WatchSink {
 public:
  virtual ~WatchSink() = default;
  // False: its queue is full, the reader is too slow.
  virtual bool offer(std::shared_ptr<const v1::WatchJobsResponse> response) = 0;
  // After what was offered; without an error the stream ends with OK.
  virtual void end(std::optional<ServiceError> error) = 0;
};

class WatchHub {
 public:
  // Everything after `after_sequence`; with `job`, of that job alone, ending after its terminal event.
  std::int64_t add(const std::string& job, std::int64_t after_sequence, std::shared_ptr<WatchSink> sink);
  void remove(std::int64_t id);
  // `terminal`: this is the last event of `job`.
  void publish(const std::string& job, const std::shared_ptr<const v1::WatchJobsResponse>& response,
               bool terminal);
  void end_all(const ServiceError& error);
  bool watched(const std::string& job) const;
  std::size_t size() const { return watchers_.size(); }

 private:
  struct Watcher {
    std::string job;
    std::int64_t after_sequence = 0;
    std::shared_ptr<WatchSink> sink;
  };
  std::int64_t last_id_ = 0;
  std::map<std::int64_t, Watcher> watchers_;
};

}  // namespace coat::control
