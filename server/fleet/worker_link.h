// The controller's end of one worker's stream, as the fleet sees it.
#pragma once

#include <string>

#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/service_error.h"

namespace coat::fleet {

// Thread-safe; no call blocks.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  // Messages leave in the order of the calls. The queue is bounded: where it is full the stream is ended, and
  // the worker comes back with a new one. Nothing happens on a stream that has ended.
  virtual void send(v1::ControllerMessage message) = 0;
  virtual void close(const ServiceError& why) = 0;
};

}  // namespace coat::fleet
