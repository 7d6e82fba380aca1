// The server's end of a stream of responses: one write at a time, the next one after OnWriteDone.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <grpcpp/support/server_callback.h>

#include "server/api/call_meter.h"

namespace coat::api {

// Lives as long as anyone refers to it; its gRPC reactor lives until OnDone. Thread-safe.
template <typename Response>
class WriteSession : public std::enable_shared_from_this<WriteSession<Response>> {
 public:
  using Shared = std::shared_ptr<const Response>;

  explicit WriteSession(CallMeter meter) : meter_(std::move(meter)) {}
  virtual ~WriteSession() = default;

  // What the handler returns to gRPC. Once.
  grpc::ServerWriteReactor<Response>* open() {
    auto* reactor = new Reactor(this->shared_from_this());
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      reactor_ = reactor;
    }
    drained();
    return reactor;
  }

  std::size_t queued() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return queue_.size();
  }

 protected:
  // In one step, so that drained() never comes in between; with a status these are the last.
  void push(std::vector<Shared> responses, std::optional<grpc::Status> status = std::nullopt) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_) return;
    for (Shared& response : responses) queue_.push_back(std::move(response));
    status_ = std::move(status);
    pump();
  }
  // Ends the stream after what was pushed.
  void finish(grpc::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_) return;
    status_ = std::move(status);
    pump();
  }
  // Ends the stream now.
  void abort(grpc::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    queue_.clear();
    if (!status_) status_ = std::move(status);
    pump();
  }
  bool ended() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_.has_value();
  }

  // Everything that was pushed has left, and more may come; also at the start. Without the lock.
  virtual void drained() = 0;
  // The call is over.
  virtual void closed() {}

 private:
  class Reactor : public grpc::ServerWriteReactor<Response> {
   public:
    explicit Reactor(std::shared_ptr<WriteSession> session) : session_(std::move(session)) {}
    void OnWriteDone(bool ok) override { session_->written(ok); }
    void OnCancel() override { session_->abort(grpc::Status::CANCELLED); }
    void OnDone() override {
      session_->done();
      delete this;
    }

   private:
    std::shared_ptr<WriteSession> session_;
  };

  void written(bool ok) {
    bool empty = false;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      writing_.reset();
      if (!ok) {
        queue_.clear();
        if (!status_) status_ = grpc::Status::CANCELLED;
      }
      pump();
      empty = !writing_ && !status_;
    }
    if (empty) drained();
  }

  void done() {
    grpc::StatusCode code = grpc::StatusCode::CANCELLED;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      reactor_ = nullptr;
      queue_.clear();
      if (!status_) status_ = grpc::Status::CANCELLED;
      code = status_->error_code();
    }
    meter_.finished(code);
    closed();
  }

  // With the lock held.
  void pump() {
    if (!reactor_ || writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = std::move(queue_.front());
      queue_.pop_front();
      reactor_->StartWrite(writing_.get());
    } else if (status_) {
      finished_ = true;
      reactor_->Finish(*status_);
    }
  }

  CallMeter meter_;
  mutable std::mutex mutex_;
  Reactor* reactor_ = nullptr;
  std::deque<Shared> queue_;
  Shared writing_;
  std::optional<grpc::Status> status_;
  bool finished_ = false;
};

}  // namespace coat::api
