// A stream that outlives its connections.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>

#include <grpcpp/client_context.h>

#include "client/lib/job_client.h"

namespace coat::client {

// How one connection of a stream ended.
struct StreamEnd {
  grpc::Status status;
  bool finished = false;    // all that was wanted has come
  bool progressed = false;  // something came
};

// Calls `connect_once` with a fresh context until a stream has finished, the options end it, or an error
// comes that another try cannot mend. A service that is away from the very first is such an error; one that
// answered before is waited for.
std::optional<ServiceError> run_resumed(const ClientOptions& client, const StreamOptions& options,
                                        std::atomic<bool>& reached,
                                        const std::function<StreamEnd(grpc::ClientContext&)>& connect_once);

// The error of what the caller ended.
ServiceError stopped();

// A deadline of gRPC's kind.
std::chrono::system_clock::time_point system_deadline(std::chrono::steady_clock::time_point deadline);

}  // namespace coat::client
