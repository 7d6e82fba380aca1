#include "server/api/watch_session.h"

#include <utility>

namespace coat::api {

WatchSession::WatchSession(control::Controller& controller, CallMeter meter, std::string job,
                           std::int64_t after_sequence, std::size_t max_queued)
    : WriteSession(std::move(meter)),
      controller_(controller),
      job_(std::move(job)),
      max_queued_(max_queued),
      after_sequence_(after_sequence) {}

bool WatchSession::offer(std::shared_ptr<const v1::WatchJobsResponse> response) {
  const std::size_t waiting = queued();
  // What carries no event may be left out: the next one says the same and more.
  if (!response->has_event() && waiting >= max_queued_ / 4) return true;
  if (waiting >= max_queued_) return false;
  push({std::move(response)});
  return true;
}

void WatchSession::end(std::optional<ServiceError> error) {
  if (error && error->code == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    abort(to_status(*error));
  } else {
    finish(error ? to_status(*error) : grpc::Status::OK);
  }
}

void WatchSession::drained() {
  std::int64_t after = 0;
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(step_mutex_);
    if (asking_ || live_ != 0 || closed_) return;
    asking_ = true;
    after = after_sequence_;
    first = std::exchange(first_, false);
  }
  const auto self = std::static_pointer_cast<WatchSession>(shared_from_this());
  controller_.watch(job_, after, first, self,
                    [self](Result<control::WatchStep> step) { self->take(std::move(step)); });
}

void WatchSession::take(Result<control::WatchStep> result) {
  if (!result.ok()) {
    finish(to_status(result.error()));
    return;
  }
  const control::WatchStep& step = result.value();
  {
    const std::lock_guard<std::mutex> lock(step_mutex_);
    asking_ = false;
    after_sequence_ = step.after_sequence;
    live_ = step.live;
    if (closed_ && live_ != 0) controller_.unwatch(live_);
  }
  if (step.ended) {
    push(step.responses, grpc::Status::OK);
  } else if (!step.responses.empty()) {
    push(step.responses);
  } else if (step.live == 0) {
    drained();
  }
}

void WatchSession::closed() {
  const std::lock_guard<std::mutex> lock(step_mutex_);
  closed_ = true;
  if (live_ != 0) controller_.unwatch(live_);
}

}  // namespace coat::api
