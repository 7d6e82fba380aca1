// Both services in this process: a real store in a temporary folder, a clock that the test moves, no port.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <grpcpp/channel.h>
#include <grpcpp/server.h>
#include <gtest/gtest.h>

#include "proto/coat/v1/job_service.grpc.pb.h"
#include "proto/coat/v1/worker_service.grpc.pb.h"
#include "proto/common/clock.h"
#include "proto/common/metrics.h"
#include "proto/common/service_error.h"
#include "server/api/job_service.h"
#include "server/api/worker_service.h"
#include "server/control/controller.h"
#include "server/store/attempt_files.h"
#include "server/store/sqlite_store.h"
#include "tests/support/temporary_folder.h"

namespace coat::testing {

// Long enough for a busy machine; nothing ever waits for its end unless it fails.
inline constexpr std::chrono::seconds kPatience{60};

inline bool eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A call's context, which ends with the test's patience.
class Context : public grpc::ClientContext {
 public:
  Context() { set_deadline(std::chrono::system_clock::now() + kPatience); }
};

v1::JobSpec small_spec(const std::string& name = "tiny");

class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest();
  ~ServiceTest() override;

  void start();
  void stop();
  void restart();

  v1::Job submit(const v1::JobSpec& spec = small_spec(), const std::string& request_id = "");
  v1::Job get(const std::string& name);
  v1::Job cancel(const std::string& name);
  std::vector<v1::Attempt> attempts(const std::string& name);
  // Waits until the job is in the state, or has the reason for waiting.
  ::testing::AssertionResult reaches(const std::string& name, v1::Job::State state);
  ::testing::AssertionResult waits_for(const std::string& name, v1::PendingStatus::Reason reason);

  TemporaryFolder folder_;
  ManualClock clock_;
  control::Options options_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<store::AttemptFiles> files_;
  std::unique_ptr<store::SqliteStore> store_;
  std::unique_ptr<control::Controller> controller_;
  std::unique_ptr<api::JobServiceImpl> job_service_;
  std::unique_ptr<api::WorkerServiceImpl> worker_service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

}  // namespace coat::testing
