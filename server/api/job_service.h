// coat.v1.JobService over the controller: validate, call, map the error.
#pragma once

#include "proto/coat/v1/job_service.grpc.pb.h"
#include "proto/common/metrics.h"
#include "server/control/controller.h"

namespace coat::api {

// Thread-safe. The controller must outlive the server that this is registered with.
class JobServiceImpl final : public v1::JobService::CallbackService {
 public:
  // A watcher that has so many unsent responses is ended.
  static constexpr std::size_t kWatchQueue = 1024;
  JobServiceImpl(control::Controller& controller, Metrics& metrics);

  grpc::ServerUnaryReactor* SubmitJob(grpc::CallbackServerContext* context,
                                      const v1::SubmitJobRequest* request,
                                      v1::SubmitJobResponse* response) override;
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context, const v1::GetJobRequest* request,
                                   v1::GetJobResponse* response) override;
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override;
  grpc::ServerUnaryReactor* CancelJob(grpc::CallbackServerContext* context,
                                      const v1::CancelJobRequest* request,
                                      v1::CancelJobResponse* response) override;
  grpc::ServerUnaryReactor* ListAttempts(grpc::CallbackServerContext* context,
                                         const v1::ListAttemptsRequest* request,
                                         v1::ListAttemptsResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* EstimateJob(grpc::CallbackServerContext* context,
                                        const v1::EstimateJobRequest* request,
                                        v1::EstimateJobResponse* response) override;

  grpc::ServerWriteReactor<v1::WatchJobsResponse>* WatchJobs(grpc::CallbackServerContext* context,
                                                             const v1::WatchJobsRequest* request) override;
  grpc::ServerWriteReactor<v1::StreamLogsResponse>* StreamLogs(grpc::CallbackServerContext* context,
                                                               const v1::StreamLogsRequest* request) override;
  grpc::ServerWriteReactor<v1::StreamMetricsResponse>* StreamMetrics(
      grpc::CallbackServerContext* context, const v1::StreamMetricsRequest* request) override;

 private:
  control::Controller& controller_;
  Metrics& metrics_;
};

}  // namespace coat::api
