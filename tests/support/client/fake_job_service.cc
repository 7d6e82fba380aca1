#include "tests/support/client/fake_job_service.h"

#include <algorithm>
#include <limits>

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include "proto/common/spec_conversion.h"

namespace coat::testing {

FakeJobService::FakeJobService() {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
}

FakeJobService::~FakeJobService() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  server_->Shutdown(std::chrono::system_clock::now());
}

std::int64_t FakeJobService::put(v1::Job job, const std::string& verb, const std::string& object) {
  const std::lock_guard<std::mutex> guard(mutex_);
  job.set_last_sequence(++sequence_);
  const auto known = jobs_.find(job.name());
  if (known == jobs_.end()) order_.push_back(job.name());
  v1::WatchJobsResponse response;
  v1::Event& event = *response.mutable_event();
  event.set_sequence(sequence_);
  event.mutable_event_time()->set_seconds(1'000'000'000 + sequence_);
  event.set_object(object.empty() ? job.name() : object);
  event.set_verb(verb);
  event.set_actor("controller");
  if (known != jobs_.end()) event.set_from_state(v1::Job::State_Name(known->second.state()));
  event.set_to_state(v1::Job::State_Name(job.state()));
  *response.mutable_job() = job;
  events_.push_back(response);
  jobs_[job.name()] = std::move(job);
  changed_.notify_all();
  return sequence_;
}

void FakeJobService::put_progress(v1::Job job) {
  const std::lock_guard<std::mutex> guard(mutex_);
  job.set_last_sequence(jobs_[job.name()].last_sequence());
  jobs_[job.name()] = job;
  v1::WatchJobsResponse response;
  *response.mutable_job() = std::move(job);
  progress_.push_back(std::move(response));
  changed_.notify_all();
}

void FakeJobService::put_attempt(const v1::Attempt& attempt) {
  const std::lock_guard<std::mutex> guard(mutex_);
  attempts_[attempt.name().substr(0, attempt.name().find("/attempts/"))].push_back(attempt);
}

void FakeJobService::put_worker(const v1::Worker& worker) {
  const std::lock_guard<std::mutex> guard(mutex_);
  workers_.push_back(worker);
}

void FakeJobService::append_log(const std::string& attempt, const std::string& bytes, bool complete) {
  const std::lock_guard<std::mutex> guard(mutex_);
  logs_[attempt].bytes += bytes;
  logs_[attempt].complete = complete;
  changed_.notify_all();
}

void FakeJobService::append_sample(const std::string& attempt, const v1::MetricSample& sample,
                                   bool complete) {
  const std::lock_guard<std::mutex> guard(mutex_);
  samples_[attempt].samples.push_back(sample);
  samples_[attempt].complete = complete;
  changed_.notify_all();
}

void FakeJobService::set_estimate(const v1::Estimate& estimate) {
  const std::lock_guard<std::mutex> guard(mutex_);
  estimate_ = estimate;
  has_estimate_ = true;
}

void FakeJobService::fail_next(const std::string& method, const ServiceError& error, int count) {
  const std::lock_guard<std::mutex> guard(mutex_);
  failures_[method].insert(failures_[method].end(), static_cast<std::size_t>(count), error);
}

void FakeJobService::break_streams(int after_messages, int count) {
  const std::lock_guard<std::mutex> guard(mutex_);
  breaks_.insert(breaks_.end(), static_cast<std::size_t>(count), after_messages);
}

void FakeJobService::forget_events_before(std::int64_t sequence) {
  const std::lock_guard<std::mutex> guard(mutex_);
  oldest_sequence_ = sequence;
}

void FakeJobService::send_current_jobs() {
  const std::lock_guard<std::mutex> guard(mutex_);
  current_jobs_ = true;
}

int FakeJobService::calls(const std::string& method) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = calls_.find(method);
  return found == calls_.end() ? 0 : found->second;
}

std::vector<v1::SubmitJobRequest> FakeJobService::submits() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return submits_;
}

std::vector<v1::ListJobsRequest> FakeJobService::lists() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return lists_;
}

std::vector<std::int64_t> FakeJobService::stream_starts() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return stream_starts_;
}

grpc::Status FakeJobService::enter(const std::string& method) {
  const std::lock_guard<std::mutex> guard(mutex_);
  ++calls_[method];
  std::vector<ServiceError>& failures = failures_[method];
  if (failures.empty()) return grpc::Status::OK;
  const ServiceError error = failures.front();
  failures.erase(failures.begin());
  return to_status(error);
}

int FakeJobService::messages_of_new_stream() {
  if (breaks_.empty()) return std::numeric_limits<int>::max();
  const int messages = breaks_.front();
  breaks_.erase(breaks_.begin());
  return messages;
}

bool FakeJobService::wait_for_change(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock) {
  // A cancelled call wakes nobody, so it is looked for every few milliseconds.
  constexpr std::chrono::milliseconds kLook{5};
  if (ended_ || context->IsCancelled()) return false;
  changed_.wait_for(lock, kLook);
  return true;
}

grpc::Status FakeJobService::SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest* request,
                                       v1::SubmitJobResponse* response) {
  if (grpc::Status status = enter(request->validate_only() ? "ValidateJob" : "SubmitJob"); !status.ok())
    return status;
  const spec::ParseResult checked = check_spec(request->spec());
  if (!checked.ok()) return to_status(invalid_argument(checked.violations));
  v1::Job job;
  job.set_name("jobs/" + request->spec().name() + "-abcde");
  *job.mutable_spec() = request->spec();
  job.set_state(v1::Job::PENDING);
  job.mutable_pending_status()->set_reason(v1::PendingStatus::EVALUATING);
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    submits_.push_back(*request);
    if (request->validate_only()) {
      if (has_estimate_) *response->mutable_estimate() = estimate_;
      *response->mutable_job() = job;
      return grpc::Status::OK;
    }
  }
  job.set_last_sequence(put(job, "created"));
  *response->mutable_job() = job;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                                    v1::GetJobResponse* response) {
  if (grpc::Status status = enter("GetJob"); !status.ok()) return status;
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = jobs_.find(request->name());
  if (found == jobs_.end()) return to_status(not_found("job", request->name()));
  *response->mutable_job() = found->second;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* request,
                                      v1::ListJobsResponse* response) {
  if (grpc::Status status = enter("ListJobs"); !status.ok()) return status;
  const std::lock_guard<std::mutex> guard(mutex_);
  lists_.push_back(*request);
  // The token is the number of jobs that went before.
  const std::size_t begin = request->page_token().empty() ? 0 : std::stoul(request->page_token());
  std::vector<std::string> newest_first(order_.rbegin(), order_.rend());
  std::size_t at = begin;
  while (at < newest_first.size() && response->jobs_size() < request->page_size()) {
    *response->add_jobs() = jobs_[newest_first[at++]];
  }
  if (at < newest_first.size()) response->set_next_page_token(std::to_string(at));
  return grpc::Status::OK;
}

grpc::Status FakeJobService::CancelJob(grpc::ServerContext*, const v1::CancelJobRequest* request,
                                       v1::CancelJobResponse* response) {
  if (grpc::Status status = enter("CancelJob"); !status.ok()) return status;
  v1::Job job;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto found = jobs_.find(request->name());
    if (found == jobs_.end()) return to_status(not_found("job", request->name()));
    job = found->second;
  }
  if (job.state() == v1::Job::PENDING || job.state() == v1::Job::RUNNING) {
    job.set_state(job.state() == v1::Job::PENDING ? v1::Job::CANCELLED : v1::Job::CANCELLING);
    job.set_cancel_requested(true);
    job.clear_pending_status();
    put(job, "cancel requested");
  }
  *response->mutable_job() = job;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::ListAttempts(grpc::ServerContext*, const v1::ListAttemptsRequest* request,
                                          v1::ListAttemptsResponse* response) {
  if (grpc::Status status = enter("ListAttempts"); !status.ok()) return status;
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const v1::Attempt& attempt : attempts_[request->job()]) *response->add_attempts() = attempt;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                                         v1::ListWorkersResponse* response) {
  if (grpc::Status status = enter("ListWorkers"); !status.ok()) return status;
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const v1::Worker& worker : workers_) *response->add_workers() = worker;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::EstimateJob(grpc::ServerContext*, const v1::EstimateJobRequest*,
                                         v1::EstimateJobResponse* response) {
  if (grpc::Status status = enter("EstimateJob"); !status.ok()) return status;
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!has_estimate_) return to_status(failed_precondition("NO_WORKER", "no worker is connected"));
  *response->mutable_estimate() = estimate_;
  return grpc::Status::OK;
}

grpc::Status FakeJobService::WatchJobs(grpc::ServerContext* context, const v1::WatchJobsRequest* request,
                                       grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
  if (grpc::Status status = enter("WatchJobs"); !status.ok()) return status;
  std::unique_lock<std::mutex> lock(mutex_);
  stream_starts_.push_back(request->after_sequence());
  if (request->after_sequence() < oldest_sequence_) {
    return to_status(
        {grpc::StatusCode::OUT_OF_RANGE, "EVENTS_GONE", "older events are no longer kept", {}, {}});
  }
  int left = messages_of_new_stream();
  std::size_t next_event = 0;
  std::size_t next_progress = progress_.size();
  do {
    while (next_event < events_.size() || next_progress < progress_.size()) {
      const bool is_event = next_event < events_.size();
      v1::WatchJobsResponse response = is_event ? events_[next_event++] : progress_[next_progress++];
      if (is_event && response.event().sequence() <= request->after_sequence()) continue;
      if (!request->job().empty() && response.job().name() != request->job()) continue;
      if (left-- == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
      const bool terminal = is_event && response.job().state() >= v1::Job::SUCCEEDED;
      if (current_jobs_) *response.mutable_job() = jobs_[response.job().name()];
      lock.unlock();
      writer->Write(response);
      lock.lock();
      if (terminal && !request->job().empty()) return grpc::Status::OK;
    }
    if (left == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
  } while (wait_for_change(context, lock));
  return {grpc::StatusCode::UNAVAILABLE, "the service ends"};
}

grpc::Status FakeJobService::StreamLogs(grpc::ServerContext* context, const v1::StreamLogsRequest* request,
                                        grpc::ServerWriter<v1::StreamLogsResponse>* writer) {
  if (grpc::Status status = enter("StreamLogs"); !status.ok()) return status;
  std::unique_lock<std::mutex> lock(mutex_);
  stream_starts_.push_back(request->offset());
  if (!logs_.contains(request->attempt())) return to_status(not_found("attempt", request->attempt()));
  int left = messages_of_new_stream();
  // Small chunks, so that a log of a few bytes takes several messages.
  constexpr std::size_t kChunk = 4;
  auto at = static_cast<std::size_t>(request->offset());
  do {
    const Log& log = logs_[request->attempt()];
    while (at < log.bytes.size()) {
      if (left-- == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
      v1::StreamLogsResponse response;
      response.set_offset(static_cast<std::int64_t>(at));
      response.set_data(log.bytes.substr(at, kChunk));
      at += response.data().size();
      writer->Write(response);
    }
    if (log.complete) {
      v1::StreamLogsResponse response;
      response.set_offset(static_cast<std::int64_t>(log.bytes.size()));
      response.set_end(true);
      writer->Write(response);
      return grpc::Status::OK;
    }
    if (!request->follow()) return grpc::Status::OK;
  } while (wait_for_change(context, lock));
  return {grpc::StatusCode::UNAVAILABLE, "the service ends"};
}

grpc::Status FakeJobService::StreamMetrics(grpc::ServerContext* context,
                                           const v1::StreamMetricsRequest* request,
                                           grpc::ServerWriter<v1::StreamMetricsResponse>* writer) {
  if (grpc::Status status = enter("StreamMetrics"); !status.ok()) return status;
  std::unique_lock<std::mutex> lock(mutex_);
  stream_starts_.push_back(request->after_step());
  int left = messages_of_new_stream();
  std::size_t next = 0;
  do {
    const Samples& all = samples_[request->attempt()];
    for (; next < all.samples.size(); ++next) {
      if (all.samples[next].step() <= request->after_step()) continue;
      if (left-- == 0) return {grpc::StatusCode::UNAVAILABLE, "broken by the test"};
      v1::StreamMetricsResponse response;
      *response.add_samples() = all.samples[next];
      writer->Write(response);
    }
    if (all.complete || !request->follow()) {
      v1::StreamMetricsResponse response;
      response.set_end(all.complete);
      writer->Write(response);
      return grpc::Status::OK;
    }
  } while (wait_for_change(context, lock));
  return {grpc::StatusCode::UNAVAILABLE, "the service ends"};
}

}  // namespace coat::testing
