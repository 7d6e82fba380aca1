// A JobService that a test fills and scripts, served on a free port of the loopback interface. It follows the
// contract where a client can tell (events by sequence, offsets of logs, pages), decides nothing, and breaks
// streams when told to. Thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <grpcpp/server.h>

#include "proto/coat/v1/job_service.grpc.pb.h"
#include "proto/common/service_error.h"

namespace coat::testing {

class FakeJobService final : public v1::JobService::Service {
 public:
  FakeJobService();
  ~FakeJobService() override;

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Puts a job there, or a new state of it, with an event that watchers get. Answers with the event's
  // sequence.
  std::int64_t put(v1::Job job, const std::string& verb = "changed", const std::string& object = "");
  // Progress without an event.
  void put_progress(v1::Job job);
  void put_attempt(const v1::Attempt& attempt);
  void put_worker(const v1::Worker& worker);
  // Bytes of an attempt's log; a complete log ends a follower.
  void append_log(const std::string& attempt, const std::string& bytes, bool complete);
  void append_sample(const std::string& attempt, const v1::MetricSample& sample, bool complete);
  void set_estimate(const v1::Estimate& estimate);

  // The next `count` calls of a method ("GetJob") end with this error.
  void fail_next(const std::string& method, const ServiceError& error, int count = 1);
  // The next `count` streams end with UNAVAILABLE after so many messages.
  void break_streams(int after_messages, int count = 1);
  // Watches that begin before this sequence end with OUT_OF_RANGE.
  void forget_events_before(std::int64_t sequence);

  // Events carry the job as it is now, not as it was.
  void send_current_jobs();

  int calls(const std::string& method) const;
  std::vector<v1::SubmitJobRequest> submits() const;
  std::vector<v1::ListJobsRequest> lists() const;
  // The after_sequence, offset or after_step of each stream that began.
  std::vector<std::int64_t> stream_starts() const;

  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest*, v1::SubmitJobResponse*) override;
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::GetJobResponse*) override;
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*, v1::ListJobsResponse*) override;
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*, v1::CancelJobResponse*) override;
  grpc::Status ListAttempts(grpc::ServerContext*, const v1::ListAttemptsRequest*,
                            v1::ListAttemptsResponse*) override;
  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse*) override;
  grpc::Status EstimateJob(grpc::ServerContext*, const v1::EstimateJobRequest*,
                           v1::EstimateJobResponse*) override;
  grpc::Status WatchJobs(grpc::ServerContext*, const v1::WatchJobsRequest*,
                         grpc::ServerWriter<v1::WatchJobsResponse>*) override;
  grpc::Status StreamLogs(grpc::ServerContext*, const v1::StreamLogsRequest*,
                          grpc::ServerWriter<v1::StreamLogsResponse>*) override;
  grpc::Status StreamMetrics(grpc::ServerContext*, const v1::StreamMetricsRequest*,
                             grpc::ServerWriter<v1::StreamMetricsResponse>*) override;

 private:
  struct Log {
    std::string bytes;
    bool complete = false;
  };
  struct Samples {
    std::vector<v1::MetricSample> samples;
    bool complete = false;
  };

  // Counts the call; the error that was scripted for it, if any.
  grpc::Status enter(const std::string& method);
  // How many messages a stream may send before it breaks; a large number when it may send all.
  int messages_of_new_stream();
  // Waits for a change, a cancelled call or the end of the service; false when there is nothing to wait for.
  bool wait_for_change(grpc::ServerContext* context, std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  int port_ = 0;
  std::int64_t sequence_ = 0;
  std::int64_t oldest_sequence_ = 0;
  bool current_jobs_ = false;
  std::map<std::string, v1::Job> jobs_;
  std::vector<std::string> order_;  // names of jobs, oldest first
  std::vector<v1::WatchJobsResponse> events_;
  std::vector<v1::WatchJobsResponse> progress_;  // not stored: only for watches under way
  std::map<std::string, std::vector<v1::Attempt>> attempts_;
  std::vector<v1::Worker> workers_;
  std::map<std::string, Log> logs_;
  std::map<std::string, Samples> samples_;
  v1::Estimate estimate_;
  bool has_estimate_ = false;
  std::map<std::string, std::vector<ServiceError>> failures_;
  std::vector<int> breaks_;
  std::map<std::string, int> calls_;
  std::vector<v1::SubmitJobRequest> submits_;
  std::vector<v1::ListJobsRequest> lists_;
  std::vector<std::int64_t> stream_starts_;
  std::unique_ptr<grpc::Server> server_;
};

// A RUNNING job of 100 steps.
v1::Job running_job(const std::string& id, std::int64_t step);
// The same, SUCCEEDED with a summary of every part.
v1::Job succeeded_job(const std::string& id);
v1::Job failed_job(const std::string& id);

}  // namespace coat::testing
