// The channel and the stub behind a JobClient.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "client/lib/job_client.h"
#include "client/lib/resume.h"
#include "proto/coat/v1/job_service.grpc.pb.h"

namespace coat::client {

struct JobClient::Connection {
  explicit Connection(ClientOptions client_options);

  // One call with a deadline; the response or the error.
  template <typename Response, typename Request>
  Result<Response> call(grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                     Response*),
                        const Request& request, std::chrono::milliseconds timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    Response response;
    const std::stop_callback cancel(options.stop, [&context] { context.TryCancel(); });
    const grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok() && options.stop.stop_requested()) return stopped();
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) reached = true;
    if (!status.ok()) return from_status(status);
    return response;
  }

  ClientOptions options;
  std::unique_ptr<v1::JobService::Stub> stub;
  std::atomic<bool> reached{false};  // the service has answered once
};

}  // namespace coat::client
