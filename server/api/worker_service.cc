#include "server/api/worker_service.h"

#include <memory>

#include "server/api/call_meter.h"
#include "server/api/worker_stream.h"

namespace coat::api {

WorkerServiceImpl::WorkerServiceImpl(control::Controller& controller, Metrics& metrics)
    : controller_(controller), metrics_(metrics) {}

grpc::ServerBidiReactor<v1::WorkerMessage, v1::ControllerMessage>* WorkerServiceImpl::Connect(
    grpc::CallbackServerContext*) {
  return std::make_shared<WorkerStream>(controller_, CallMeter(metrics_, "WorkerService/Connect"))->open();
}

}  // namespace coat::api
