#include "server/api/worker_stream.h"

#include <utility>

namespace coat::api {

class WorkerStream::Reactor : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage> {
 public:
  explicit Reactor(std::shared_ptr<WorkerStream> stream) : stream_(std::move(stream)) {}
  void OnReadDone(bool ok) override { stream_->received(ok); }
  void OnWriteDone(bool ok) override { stream_->written(ok); }
  void OnCancel() override { stream_->end(grpc::Status::CANCELLED, true); }
  void OnDone() override {
    stream_->done();
    delete this;
  }

 private:
  std::shared_ptr<WorkerStream> stream_;
};

WorkerStream::WorkerStream(control::Controller& controller, CallMeter meter)
    : controller_(controller), meter_(std::move(meter)) {}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* WorkerStream::open() {
  auto* reactor = new Reactor(shared_from_this());
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reactor_ = reactor;
  }
  read();
  return reactor;
}

void WorkerStream::read() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (reactor_ && !finished_) reactor_->StartRead(&incoming_);
}

void WorkerStream::received(bool ok) {
  if (!ok) {
    controller_.worker_closed(shared_from_this());
    end(grpc::Status::OK, false);
    return;
  }
  controller_.worker_message(shared_from_this(), std::move(incoming_),
                             [self = shared_from_this()] { self->read(); });
}

void WorkerStream::send(v1::ControllerMessage message) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_) return;
    if (queue_.size() < kMaxQueued) {
      queue_.push_back(std::move(message));
      pump();
      return;
    }
  }
  ServiceError error;
  error.code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  error.reason = "WORKER_TOO_SLOW";
  error.message = "the worker does not read what it is sent; open a new stream";
  close(error);
}

void WorkerStream::close(const ServiceError& why) { end(to_status(why), true); }

void WorkerStream::written(bool ok) {
  const std::lock_guard<std::mutex> lock(mutex_);
  writing_ = false;
  if (!ok) {
    queue_.clear();
    if (!status_) status_ = grpc::Status::CANCELLED;
  }
  pump();
}

// `now`: without what is queued.
void WorkerStream::end(grpc::Status status, bool now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (now) queue_.clear();
  if (!status_) status_ = std::move(status);
  pump();
}

// With the lock held.
void WorkerStream::pump() {
  if (!reactor_ || writing_ || finished_) return;
  if (!queue_.empty()) {
    writing_ = true;
    outgoing_ = std::move(queue_.front());
    queue_.pop_front();
    reactor_->StartWrite(&outgoing_);
  } else if (status_) {
    finished_ = true;
    reactor_->Finish(*status_);
  }
}

void WorkerStream::done() {
  grpc::StatusCode code = grpc::StatusCode::CANCELLED;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reactor_ = nullptr;
    queue_.clear();
    if (!status_) status_ = grpc::Status::CANCELLED;
    code = status_->error_code();
  }
  meter_.finished(code);
  controller_.worker_closed(shared_from_this());
}

}  // namespace coat::api
