#include "server/api/job_service.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "proto/common/spec_conversion.h"
#include "server/api/call_meter.h"
#include "server/api/file_session.h"
#include "server/api/request_rules.h"
#include "server/api/watch_session.h"

namespace coat::api {
namespace {

// One unary call: ended once, by a value or an error.
class UnaryCall {
 public:
  UnaryCall(grpc::CallbackServerContext* context, Metrics& metrics, const char* method)
      : reactor_(context->DefaultReactor()), meter_(metrics, std::string("JobService/") + method) {}

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  grpc::ServerUnaryReactor* finish(const grpc::Status& status) const {
    meter_.finished(status.error_code());
    reactor_->Finish(status);
    return reactor_;
  }
  grpc::ServerUnaryReactor* fail(const ServiceError& error) const { return finish(to_status(error)); }

  // A callback of the controller's: `fill` puts the value into the response.
  template <typename T, typename Fill>
  control::Done<T> answer(Fill fill) const {
    return [call = *this, fill = std::move(fill)](Result<T> result) {
      if (!result.ok()) {
        call.fail(result.error());
        return;
      }
      fill(result.value());
      call.finish(grpc::Status::OK);
    };
  }

 private:
  grpc::ServerUnaryReactor* reactor_;
  CallMeter meter_;
};

// A stream that is refused before it starts.
template <typename Response>
grpc::ServerWriteReactor<Response>* refuse(const CallMeter& meter, const ServiceError& error) {
  class Refused : public grpc::ServerWriteReactor<Response> {
   public:
    explicit Refused(const grpc::Status& status) { this->Finish(status); }
    void OnDone() override { delete this; }
  };
  meter.finished(error.code);
  return new Refused(to_status(error));
}

}  // namespace

JobServiceImpl::JobServiceImpl(control::Controller& controller, Metrics& metrics)
    : controller_(controller), metrics_(metrics) {}

grpc::ServerUnaryReactor* JobServiceImpl::SubmitJob(grpc::CallbackServerContext* context,
                                                    const v1::SubmitJobRequest* request,
                                                    v1::SubmitJobResponse* response) {
  const UnaryCall call(context, metrics_, "SubmitJob");
  if (const auto error = check_request_id(request->request_id())) return call.fail(*error);
  const spec::ParseResult parsed = check_spec(request->spec());
  if (!parsed.ok()) return call.fail(invalid_argument(parsed.violations));
  v1::JobSpec spec = to_message(parsed.spec);
  if (!request->validate_only()) {
    controller_.submit(
        std::move(spec), request->request_id(), context->peer(),
        call.answer<v1::Job>([response](v1::Job& job) { *response->mutable_job() = std::move(job); }));
    return call.reactor();
  }
  *response->mutable_job()->mutable_spec() = spec;
  response->mutable_job()->set_state(v1::Job::PENDING);
  controller_.estimate(
      std::move(spec), control::Controller::EstimateUse::kSubmitCheck,
      call.answer<std::optional<v1::Estimate>>([response](std::optional<v1::Estimate>& estimate) {
        if (estimate) *response->mutable_estimate() = std::move(*estimate);
      }));
  return call.reactor();
}

grpc::ServerUnaryReactor* JobServiceImpl::GetJob(grpc::CallbackServerContext* context,
                                                 const v1::GetJobRequest* request,
                                                 v1::GetJobResponse* response) {
  const UnaryCall call(context, metrics_, "GetJob");
  const Result<std::string> name = check_job_name("name", request->name());
  if (!name.ok()) return call.fail(name.error());
  controller_.get_job(name.value(), call.answer<v1::Job>([response](v1::Job& job) {
    *response->mutable_job() = std::move(job);
  }));
  return call.reactor();
}

grpc::ServerUnaryReactor* JobServiceImpl::ListJobs(grpc::CallbackServerContext* context,
                                                   const v1::ListJobsRequest* request,
                                                   v1::ListJobsResponse* response) {
  const UnaryCall call(context, metrics_, "ListJobs");
  Result<store::JobQuery> query = check_list(*request);
  if (!query.ok()) return call.fail(query.error());
  controller_.list_jobs(
      std::move(query.value()),
      call.answer<control::Controller::JobList>([request, response](control::Controller::JobList& list) {
        for (v1::Job& job : list.jobs) *response->add_jobs() = std::move(job);
        response->set_next_page_token(page_token(*request, list.next_before_order));
      }));
  return call.reactor();
}

grpc::ServerUnaryReactor* JobServiceImpl::CancelJob(grpc::CallbackServerContext* context,
                                                    const v1::CancelJobRequest* request,
                                                    v1::CancelJobResponse* response) {
  const UnaryCall call(context, metrics_, "CancelJob");
  if (const auto error = check_request_id(request->request_id())) return call.fail(*error);
  const Result<std::string> name = check_job_name("name", request->name());
  if (!name.ok()) return call.fail(name.error());
  controller_.cancel(name.value(), context->peer(), call.answer<v1::Job>([response](v1::Job& job) {
    *response->mutable_job() = std::move(job);
  }));
  return call.reactor();
}

grpc::ServerUnaryReactor* JobServiceImpl::ListAttempts(grpc::CallbackServerContext* context,
                                                       const v1::ListAttemptsRequest* request,
                                                       v1::ListAttemptsResponse* response) {
  const UnaryCall call(context, metrics_, "ListAttempts");
  const Result<std::string> name = check_job_name("job", request->job());
  if (!name.ok()) return call.fail(name.error());
  controller_.list_attempts(
      name.value(), call.answer<std::vector<v1::Attempt>>([response](std::vector<v1::Attempt>& attempts) {
        for (v1::Attempt& attempt : attempts) *response->add_attempts() = std::move(attempt);
      }));
  return call.reactor();
}

grpc::ServerUnaryReactor* JobServiceImpl::ListWorkers(grpc::CallbackServerContext* context,
                                                      const v1::ListWorkersRequest*,
                                                      v1::ListWorkersResponse* response) {
  const UnaryCall call(context, metrics_, "ListWorkers");
  controller_.list_workers(call.answer<std::vector<v1::Worker>>([response](std::vector<v1::Worker>& workers) {
    for (v1::Worker& worker : workers) *response->add_workers() = std::move(worker);
  }));
  return call.reactor();
}

grpc::ServerUnaryReactor* JobServiceImpl::EstimateJob(grpc::CallbackServerContext* context,
                                                      const v1::EstimateJobRequest* request,
                                                      v1::EstimateJobResponse* response) {
  const UnaryCall call(context, metrics_, "EstimateJob");
  const spec::ParseResult parsed = check_spec(request->spec());
  if (!parsed.ok()) return call.fail(invalid_argument(parsed.violations));
  controller_.estimate(
      to_message(parsed.spec), control::Controller::EstimateUse::kEstimate,
      call.answer<std::optional<v1::Estimate>>([response](std::optional<v1::Estimate>& estimate) {
        if (estimate) *response->mutable_estimate() = std::move(*estimate);
      }));
  return call.reactor();
}

grpc::ServerWriteReactor<v1::WatchJobsResponse>* JobServiceImpl::WatchJobs(
    grpc::CallbackServerContext*, const v1::WatchJobsRequest* request) {
  CallMeter meter(metrics_, "JobService/WatchJobs");
  if (const auto error = check_not_negative("after_sequence", request->after_sequence())) {
    return refuse<v1::WatchJobsResponse>(meter, *error);
  }
  std::string job;
  if (!request->job().empty()) {
    const Result<std::string> name = check_job_name("job", request->job());
    if (!name.ok()) return refuse<v1::WatchJobsResponse>(meter, name.error());
    job = name.value();
  }
  return std::make_shared<WatchSession>(controller_, std::move(meter), job, request->after_sequence(),
                                        kWatchQueue)
      ->open();
}

grpc::ServerWriteReactor<v1::StreamLogsResponse>* JobServiceImpl::StreamLogs(
    grpc::CallbackServerContext*, const v1::StreamLogsRequest* request) {
  CallMeter meter(metrics_, "JobService/StreamLogs");
  if (const auto error = check_not_negative("offset", request->offset())) {
    return refuse<v1::StreamLogsResponse>(meter, *error);
  }
  FileRequest file{request->attempt(), store::StreamKind::kLog, request->offset(), request->follow()};
  return std::make_shared<LogSession>(controller_, std::move(meter), std::move(file))->open();
}

grpc::ServerWriteReactor<v1::StreamMetricsResponse>* JobServiceImpl::StreamMetrics(
    grpc::CallbackServerContext*, const v1::StreamMetricsRequest* request) {
  CallMeter meter(metrics_, "JobService/StreamMetrics");
  if (const auto error = check_not_negative("after_step", request->after_step())) {
    return refuse<v1::StreamMetricsResponse>(meter, *error);
  }
  FileRequest file{request->attempt(), store::StreamKind::kMetrics, 0, request->follow()};
  return std::make_shared<MetricsSession>(controller_, std::move(meter), std::move(file),
                                          request->after_step())
      ->open();
}

}  // namespace coat::api
