// The controller on real ports, as the program runs it.
#include "server/app/service.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <stdexcept>

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include "proto/coat/v1/job_service.grpc.pb.h"
#include "tests/support/temporary_folder.h"

namespace coat::app {
namespace {

ControllerOptions options(const testing::TemporaryFolder& folder) {
  ControllerOptions options;
  options.state_dir = folder / "state";
  options.listen = options.worker_listen = options.metrics_listen = "127.0.0.1:0";
  return options;
}

std::shared_ptr<grpc::Channel> connect(const std::string& address) {
  return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
}

// One request and the first response of any method, as bytes; empty where the call fails.
std::string call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                 const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(&queue);
  if (!wait()) return {};
  const grpc::Slice slice(request);
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), &queue);
  if (!wait()) return {};
  grpc::ByteBuffer response;
  stream->Read(&response, &queue);
  std::string bytes;
  if (wait()) {
    std::vector<grpc::Slice> slices;
    if (response.Dump(&slices).ok()) {
      for (const grpc::Slice& each : slices)
        bytes.append(reinterpret_cast<const char*>(each.begin()), each.size());
    }
  }
  grpc::Status status;
  stream->Finish(&status, &queue);
  wait();
  return bytes;
}

std::string http_get(const std::string& address, const std::string& path) {
  const Address target = parse_address("--metrics-listen", address);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(target.port));
  ::inet_pton(AF_INET, target.host.c_str(), &to.sin_addr);
  std::string answer;
  if (::connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
    if (::send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size())) {
      char piece[4096];
      for (ssize_t size = 0; (size = ::recv(fd, piece, sizeof(piece), 0)) > 0;)
        answer.append(piece, static_cast<std::size_t>(size));
    }
  }
  ::close(fd);
  return answer;
}

TEST(Service, ServesWhereItsFileSaysUntilItEnds) {
  testing::TemporaryFolder folder;
  const std::string file = folder / "state/endpoints.json";
  {
    const Service service(options(folder), [] {});
    EXPECT_EQ(testing::read_file(file), "{\"jobs\":\"" + service.jobs_address() + "\",\"workers\":\"" +
                                            service.workers_address() + "\",\"metrics\":\"" +
                                            service.metrics_address() + "\"}\n");
    const auto stub = v1::JobService::NewStub(connect(service.jobs_address()));
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    EXPECT_TRUE(stub->ListJobs(&context, {}, &response).ok());
    const std::string metrics = http_get(service.metrics_address(), "/metrics");
    EXPECT_NE(metrics.find("coat_build_info{"), std::string::npos);
    EXPECT_NE(metrics.find("coat_attempts_total{reason=\"internal\"} 0"), std::string::npos)
        << "zero is exported too";
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Service, HealthAndReflection) {
  testing::TemporaryFolder folder;
  const Service service(options(folder), [] {});
  for (const std::string& address : {service.jobs_address(), service.workers_address()}) {
    // HealthCheckResponse{status: SERVING} of the empty service name.
    EXPECT_EQ(call(connect(address), "/grpc.health.v1.Health/Check", ""), std::string("\x08\x01"));
  }
  // ServerReflectionRequest{list_services: "*"}
  const std::string list =
      call(connect(service.jobs_address()), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
           "\x3a\x01*");
  EXPECT_NE(list.find("coat.v1.JobService"), std::string::npos);
  EXPECT_EQ(list.find("coat.v1.WorkerService"), std::string::npos) << "workers have a port of their own";
}

TEST(Service, AMessageThatIsTooLargeIsRefused) {
  testing::TemporaryFolder folder;
  const Service service(options(folder), [] {});
  const auto stub = v1::JobService::NewStub(connect(service.jobs_address()));
  v1::SubmitJobRequest request;
  request.mutable_spec()->set_name(std::string(5 << 20, 'x'));
  grpc::ClientContext context;
  v1::SubmitJobResponse response;
  EXPECT_EQ(stub->SubmitJob(&context, request, &response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(Service, APortInUseNamesItsOption) {
  testing::TemporaryFolder first_folder;
  testing::TemporaryFolder folder;
  const Service first(options(first_folder), [] {});
  const std::vector<std::pair<std::string, std::string ControllerOptions::*>> rows = {
      {"--listen", &ControllerOptions::listen},
      {"--worker-listen", &ControllerOptions::worker_listen},
      {"--metrics-listen", &ControllerOptions::metrics_listen}};
  for (const auto& [name, member] : rows) {
    for (const std::string& taken : {first.jobs_address(), first.metrics_address()}) {
      ControllerOptions second = options(folder);
      second.*member = taken;
      try {
        const Service service(second, [] {});
        FAIL() << name << " was taken twice";
      } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find(taken), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Service, ASecondControllerOnTheSameFolderIsRefused) {
  testing::TemporaryFolder folder;
  const Service first(options(folder), [] {});
  try {
    const Service second(options(folder), [] {});
    FAIL() << "two controllers on one folder";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("--state-dir"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(std::to_string(::getpid())), std::string::npos) << error.what();
  }
}

TEST(Service, AWatchIsEndedWithUnavailableAtTheEnd) {
  testing::TemporaryFolder folder;
  auto service = std::make_unique<Service>(options(folder), [] {});
  const auto stub = v1::JobService::NewStub(connect(service->jobs_address()));
  v1::SubmitJobRequest submit;
  submit.mutable_spec()->set_name("a");
  submit.mutable_spec()->mutable_data()->set_path("/data");
  submit.mutable_spec()->mutable_training()->set_steps(1);
  grpc::ClientContext submit_context;
  v1::SubmitJobResponse submitted;
  ASSERT_TRUE(stub->SubmitJob(&submit_context, submit, &submitted).ok());
  grpc::ClientContext context;
  const auto reader = stub->WatchJobs(&context, {});
  v1::WatchJobsResponse response;
  ASSERT_TRUE(reader->Read(&response));
  const auto start = std::chrono::steady_clock::now();
  service.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace coat::app
