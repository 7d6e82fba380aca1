// WatchJobs: pages of stored events until there is nothing older left, then what happens.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "proto/coat/v1/job_service.pb.h"
#include "server/api/write_session.h"
#include "server/control/controller.h"

namespace coat::api {

class WatchSession : public WriteSession<v1::WatchJobsResponse>, public control::WatchSink {
 public:
  // A live watcher with `max_queued` unsent responses is ended.
  WatchSession(control::Controller& controller, CallMeter meter, std::string job, std::int64_t after_sequence,
               std::size_t max_queued);

  bool offer(std::shared_ptr<const v1::WatchJobsResponse> response) override;
  void end(std::optional<ServiceError> error) override;

 private:
  void drained() override;
  void closed() override;
  void take(Result<control::WatchStep> step);

  control::Controller& controller_;
  const std::string job_;
  const std::size_t max_queued_;
  std::mutex step_mutex_;
  std::int64_t after_sequence_;
  bool first_ = true;
  bool asking_ = false;
  std::int64_t live_ = 0;
  bool closed_ = false;
};

}  // namespace coat::api
