#include "client/lib/job_client.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "client/lib/connection.h"

namespace coat::client {
namespace {

// Four tries within about two seconds; throttled when most calls fail.
constexpr const char* kServiceConfig = R"({
  "methodConfig": [{
    "name": [{"service": "coat.v1.JobService"}],
    "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"]}
  }],
  "retryThrottling": {"maxTokens": 10, "tokenRatio": 0.1}
})";

grpc::ChannelArguments channel_arguments() {
  constexpr int kMaxMessageBytes = 64 << 20;
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(kServiceConfig);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // Servers of default settings take a ping without data every five minutes at most.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 320'000);
  return arguments;
}

}  // namespace

JobClient::Connection::Connection(ClientOptions client_options)
    : options(std::move(client_options)),
      stub(v1::JobService::NewStub(grpc::CreateCustomChannel(
          options.address, grpc::InsecureChannelCredentials(), channel_arguments()))) {}

JobClient::JobClient(ClientOptions options) : connection_(std::make_unique<Connection>(std::move(options))) {}
JobClient::~JobClient() = default;

Result<v1::Job> JobClient::submit(const v1::JobSpec& spec, const std::string& request_id) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id.empty() ? fresh_request_id() : request_id);
  auto response =
      connection_->call(&v1::JobService::Stub::SubmitJob, request, connection_->options.call_timeout);
  if (!response.ok()) return response.error();
  return std::move(*response.value().mutable_job());
}

Result<v1::SubmitJobResponse> JobClient::validate(const v1::JobSpec& spec) {
  v1::SubmitJobRequest request;
  *request.mutable_spec() = spec;
  request.set_validate_only(true);
  return connection_->call(&v1::JobService::Stub::SubmitJob, request, connection_->options.estimate_timeout);
}

Result<v1::Job> JobClient::get(const std::string& job) {
  v1::GetJobRequest request;
  request.set_name(job_name(job));
  auto response =
      connection_->call(&v1::JobService::Stub::GetJob, request, connection_->options.call_timeout);
  if (!response.ok()) return response.error();
  return std::move(*response.value().mutable_job());
}

Result<std::vector<v1::Job>> JobClient::list(const ListFilter& filter) {
  constexpr std::size_t kPage = 200;
  v1::ListJobsRequest request;
  for (const v1::Job::State state : filter.states) request.add_states(state);
  request.set_name_prefix(filter.name_prefix);
  request.mutable_labels()->insert(filter.labels.begin(), filter.labels.end());
  std::vector<v1::Job> jobs;
  do {
    const std::size_t wanted = filter.limit == 0 ? kPage : std::min(kPage, filter.limit - jobs.size());
    request.set_page_size(static_cast<int>(wanted));
    auto response =
        connection_->call(&v1::JobService::Stub::ListJobs, request, connection_->options.call_timeout);
    if (!response.ok()) return response.error();
    for (v1::Job& job : *response.value().mutable_jobs()) jobs.push_back(std::move(job));
    request.set_page_token(response.value().next_page_token());
  } while (!request.page_token().empty() && (filter.limit == 0 || jobs.size() < filter.limit));
  if (filter.limit != 0 && jobs.size() > filter.limit) jobs.resize(filter.limit);
  return jobs;
}

Result<v1::Job> JobClient::cancel(const std::string& job) {
  v1::CancelJobRequest request;
  request.set_name(job_name(job));
  request.set_request_id(fresh_request_id());
  auto response =
      connection_->call(&v1::JobService::Stub::CancelJob, request, connection_->options.call_timeout);
  if (!response.ok()) return response.error();
  return std::move(*response.value().mutable_job());
}

Result<std::vector<v1::Attempt>> JobClient::attempts(const std::string& job) {
  v1::ListAttemptsRequest request;
  request.set_job(job_name(job));
  auto response =
      connection_->call(&v1::JobService::Stub::ListAttempts, request, connection_->options.call_timeout);
  if (!response.ok()) return response.error();
  const auto& attempts = response.value().attempts();
  return std::vector<v1::Attempt>(attempts.begin(), attempts.end());
}

Result<std::vector<v1::Worker>> JobClient::workers() {
  auto response = connection_->call(&v1::JobService::Stub::ListWorkers, v1::ListWorkersRequest(),
                                    connection_->options.call_timeout);
  if (!response.ok()) return response.error();
  const auto& workers = response.value().workers();
  return std::vector<v1::Worker>(workers.begin(), workers.end());
}

Result<v1::Estimate> JobClient::estimate(const v1::JobSpec& spec) {
  v1::EstimateJobRequest request;
  *request.mutable_spec() = spec;
  auto response =
      connection_->call(&v1::JobService::Stub::EstimateJob, request, connection_->options.estimate_timeout);
  if (!response.ok()) return response.error();
  return std::move(*response.value().mutable_estimate());
}

std::string fresh_request_id() {
  std::random_device source;
  std::array<unsigned, 4> words{};
  for (unsigned& word : words) word = source();
  words[1] = (words[1] & 0xffff0fffU) | 0x00004000U;  // version 4
  words[2] = (words[2] & 0x3fffffffU) | 0x80000000U;  // variant of RFC 4122
  std::array<char, 37> text{};
  std::snprintf(text.data(), text.size(), "%08x-%04x-%04x-%04x-%04x%08x", words[0], words[1] >> 16U,
                words[1] & 0xffffU, words[2] >> 16U, words[2] & 0xffffU, words[3]);
  return text.data();
}

std::string job_name(const std::string& text) { return text.starts_with("jobs/") ? text : "jobs/" + text; }

bool is_terminal(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

}  // namespace coat::client
