// One worker's stream. Lives as long as anyone refers to it; its gRPC reactor lives until OnDone.
// Thread-safe.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include <grpcpp/support/server_callback.h>

#include "server/api/call_meter.h"
#include "server/control/controller.h"
#include "server/fleet/worker_link.h"

namespace coat::api {

class WorkerStream final : public fleet::WorkerLink, public std::enable_shared_from_this<WorkerStream> {
 public:
  // Unsent messages that a stream may have before it is ended.
  static constexpr std::size_t kMaxQueued = 4096;

  WorkerStream(control::Controller& controller, CallMeter meter);

  // What the handler returns to gRPC. Once.
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* open();

  void send(v1::ControllerMessage message) override;
  void close(const ServiceError& why) override;

 private:
  class Reactor;
  void read();
  void received(bool ok);
  void written(bool ok);
  void end(grpc::Status status, bool now);
  void done();
  void pump();

  control::Controller& controller_;
  CallMeter meter_;
  std::mutex mutex_;
  Reactor* reactor_ = nullptr;
  v1::WorkerMessage incoming_;
  std::deque<v1::ControllerMessage> queue_;
  v1::ControllerMessage outgoing_;
  bool writing_ = false;
  bool finished_ = false;
  std::optional<grpc::Status> status_;
};

}  // namespace coat::api
