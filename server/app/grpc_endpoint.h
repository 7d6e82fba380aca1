// One gRPC server on one address: with health and reflection, one owner of its port, and the keepalive that
// its callers need.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/server.h>

namespace coat::app {

struct EndpointOptions {
  std::string option;   // its name, for errors: "--listen"
  std::string address;  // HOST:PORT
  // Pings that a client may send, and the server's own towards silent clients. Those of workers are close
  // together, as a worker's death is to be noticed soon.
  bool worker_keepalive = false;
};

class GrpcEndpoint {
 public:
  // Serves from now on. Throws std::runtime_error that names the option, the address and why it cannot
  // listen.
  GrpcEndpoint(const EndpointOptions& options, const std::vector<grpc::Service*>& services);

  ~GrpcEndpoint();
  GrpcEndpoint(const GrpcEndpoint&) = delete;
  GrpcEndpoint& operator=(const GrpcEndpoint&) = delete;

  const std::string& address() const { return address_; }  // HOST:PORT, with the port that was picked
  void set_serving(bool serving);
  // Ends what is still open after `patience`.
  void shut_down(std::chrono::milliseconds patience);

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace coat::app
