#include "tests/unit/server/api/service_fixture.h"

#include <grpcpp/server_builder.h>

namespace coat::testing {

v1::JobSpec small_spec(const std::string& name) {
  v1::JobSpec spec;
  spec.set_name(name);
  spec.mutable_data()->set_path("/data/text");
  spec.mutable_training()->set_steps(10);
  return spec;
}

ServiceTest::ServiceTest() { start(); }

ServiceTest::~ServiceTest() { stop(); }

void ServiceTest::start() {
  metrics_ = std::make_unique<Metrics>("test", "0");
  files_ = std::make_unique<store::AttemptFiles>(folder_ / "attempts");
  store_ = std::make_unique<store::SqliteStore>(store::SqliteOptions{.file = folder_ / "coat.db"}, clock_);
  controller_ = std::make_unique<control::Controller>(options_, clock_, *store_, *files_, *metrics_);
  job_service_ = std::make_unique<api::JobServiceImpl>(*controller_, *metrics_);
  worker_service_ = std::make_unique<api::WorkerServiceImpl>(*controller_, *metrics_);
  controller_->start();
  grpc::ServerBuilder builder;
  builder.RegisterService(job_service_.get());
  builder.RegisterService(worker_service_.get());
  server_ = builder.BuildAndStart();
  channel_ = server_->InProcessChannel({});
  jobs_ = v1::JobService::NewStub(channel_);
}

void ServiceTest::stop() {
  if (!server_) return;
  controller_->stop();
  jobs_.reset();
  channel_.reset();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
  server_.reset();
  worker_service_.reset();
  job_service_.reset();
  store_.reset();
  controller_.reset();
}

void ServiceTest::restart() {
  stop();
  start();
}

v1::Job ServiceTest::submit(const v1::JobSpec& spec, const std::string& request_id) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  v1::SubmitJobResponse response;
  Context context;
  const grpc::Status status = jobs_->SubmitJob(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

v1::Job ServiceTest::get(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  v1::GetJobResponse response;
  Context context;
  const grpc::Status status = jobs_->GetJob(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

v1::Job ServiceTest::cancel(const std::string& name) {
  v1::CancelJobRequest request;
  request.set_name(name);
  v1::CancelJobResponse response;
  Context context;
  const grpc::Status status = jobs_->CancelJob(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.job();
}

std::vector<v1::Attempt> ServiceTest::attempts(const std::string& name) {
  v1::ListAttemptsRequest request;
  request.set_job(name);
  v1::ListAttemptsResponse response;
  Context context;
  const grpc::Status status = jobs_->ListAttempts(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.attempts().begin(), response.attempts().end()};
}

::testing::AssertionResult ServiceTest::reaches(const std::string& name, v1::Job::State state) {
  if (eventually([&] { return get(name).state() == state; })) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << get(name).ShortDebugString();
}

::testing::AssertionResult ServiceTest::waits_for(const std::string& name, v1::PendingStatus::Reason reason) {
  if (eventually([&] { return get(name).pending_status().reason() == reason; }))
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << get(name).ShortDebugString();
}

}  // namespace coat::testing
