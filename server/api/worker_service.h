// coat.v1.WorkerService: hands each stream's messages to the controller, one at a time, and the controller's
// to the worker.
#pragma once

#include "proto/coat/v1/worker_service.grpc.pb.h"
#include "proto/common/metrics.h"
#include "server/control/controller.h"

namespace coat::api {

// Thread-safe. The controller must outlive the server that this is registered with.
class WorkerServiceImpl final : public v1::WorkerService::CallbackService {
 public:
  WorkerServiceImpl(control::Controller& controller, Metrics& metrics);
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* Connect(
      grpc::CallbackServerContext* context) override;

 private:
  control::Controller& controller_;
  Metrics& metrics_;
};

}  // namespace coat::api
