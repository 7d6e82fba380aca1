// Counts and times the calls of the services.
#pragma once

#include <chrono>
#include <string>

#include <grpcpp/support/status.h>

#include "proto/common/metrics.h"

namespace coat::api {

// One call, from its arrival to finished(). Thread-safe as Metrics is; finished() is called once.
class CallMeter {
 public:
  // `method` without the package: "JobService/GetJob".
  CallMeter(Metrics& metrics, std::string method);
  void finished(grpc::StatusCode code) const;

 private:
  Metrics& metrics_;
  std::string method_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace coat::api
