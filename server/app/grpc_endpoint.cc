#include "server/app/grpc_endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "server/app/options.h"

namespace coat::app {
namespace {

constexpr int kMaxReceiveBytes = 4 << 20;
constexpr int kMaxMetadataBytes = 8 << 10;

// Why nobody can listen there; "" where one can.
std::string why_not(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (code != 0) return ::gai_strerror(code);
  std::string why;
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd < 0 || ::bind(fd, found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd, 1) != 0)
    why = std::strerror(errno);
  if (fd >= 0) ::close(fd);
  ::freeaddrinfo(found);
  return why;
}

[[noreturn]] void cannot_listen(const EndpointOptions& options, const std::string& why) {
  throw std::runtime_error(options.option + ": cannot listen on " + options.address + " (" + why +
                           "); choose another address or port, or port 0 for a free one");
}

void set_keepalive(grpc::ServerBuilder& builder, bool worker) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, worker ? 20000 : 60000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, worker ? 10000 : 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
}

}  // namespace

GrpcEndpoint::GrpcEndpoint(const EndpointOptions& options, const std::vector<grpc::Service*>& services) {
  const Address wanted = parse_address(options.option, options.address);
  if (const std::string why = why_not(wanted); !why.empty()) cannot_listen(options, why);

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  set_keepalive(builder, options.worker_keepalive);
  for (grpc::Service* service : services) builder.RegisterService(service);
  server_ = builder.BuildAndStart();
  if (!server_ || port == 0) cannot_listen(options, "the port is in use");
  const bool six = wanted.host.find(':') != std::string::npos;
  address_ = (six ? "[" + wanted.host + "]" : wanted.host) + ":" + std::to_string(port);
}

// A call that is still open must not hold up the end.
GrpcEndpoint::~GrpcEndpoint() { shut_down(std::chrono::milliseconds(0)); }

void GrpcEndpoint::set_serving(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

void GrpcEndpoint::shut_down(std::chrono::milliseconds patience) {
  server_->Shutdown(std::chrono::system_clock::now() + patience);
}

}  // namespace coat::app
