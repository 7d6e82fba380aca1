#include <algorithm>

#include "client/lib/connection.h"
#include "client/lib/job_client.h"
#include "client/lib/resume.h"

namespace coat::client {
namespace {

// Reads what is still on its way, which gRPC wants before Finish.
template <typename Response>
grpc::Status close(grpc::ClientReader<Response>& reader, grpc::ClientContext& context, bool cancel) {
  if (cancel) context.TryCancel();
  Response rest;
  while (reader.Read(&rest)) {
  }
  return reader.Finish();
}

bool is_last_event(const v1::Event& event, const std::string& job) {
  v1::Job::State state = v1::Job::STATE_UNSPECIFIED;
  return !job.empty() && event.object() == job && v1::Job::State_Parse(event.to_state(), &state) &&
         is_terminal(state);
}

}  // namespace

std::optional<ServiceError> JobClient::watch(
    const std::string& job, std::int64_t after_sequence, const StreamOptions& options,
    const std::function<bool(const v1::WatchJobsResponse&)>& on_change) {
  v1::WatchJobsRequest request;
  if (!job.empty()) request.set_job(job_name(job));
  request.set_after_sequence(after_sequence);
  // The job may be sent as it is now, not as it was at the event, so that only the event itself tells the
  // end.
  bool has_ended = false;
  const auto connect_once = [&](grpc::ClientContext& context) {
    StreamEnd end;
    auto reader = connection_->stub->WatchJobs(&context, request);
    v1::WatchJobsResponse response;
    while (!end.finished && reader->Read(&response)) {
      end.progressed = true;
      if (response.has_job()) has_ended = is_terminal(response.job().state());
      if (response.has_event()) {
        // A repeated event would be told twice.
        if (response.event().sequence() <= request.after_sequence()) continue;
        request.set_after_sequence(response.event().sequence());
      }
      const bool more = on_change(response);
      end.finished = !more || is_last_event(response.event(), request.job());
    }
    end.status = close(*reader, context, end.finished);
    if (end.status.ok() && has_ended && !request.job().empty()) end.finished = true;
    return end;
  };
  while (true) {
    std::optional<ServiceError> error =
        run_resumed(connection_->options, options, connection_->reached, connect_once);
    if (!error || error->code != grpc::StatusCode::OUT_OF_RANGE || job.empty()) return error;
    // The events since are no longer kept: go on from the job as it is now.
    auto current = get(job);
    if (!current.ok()) return current.error();
    if (current.value().last_sequence() <= request.after_sequence()) return error;
    request.set_after_sequence(current.value().last_sequence());
    v1::WatchJobsResponse response;
    *response.mutable_job() = current.value();
    if (!on_change(response) || is_terminal(current.value().state())) return std::nullopt;
  }
}

Result<v1::Job> JobClient::wait(const std::string& job, const StreamOptions& options) {
  auto current = get(job);
  if (!current.ok() || is_terminal(current.value().state())) return current;
  v1::Job last = std::move(current.value());
  const auto error = watch(job, last.last_sequence(), options, [&](const v1::WatchJobsResponse& response) {
    last = response.job();
    return !is_terminal(last.state());
  });
  if (error) return *error;
  return last;
}

Result<std::int64_t> JobClient::stream_logs(const std::string& attempt, std::int64_t offset, bool follow,
                                            const StreamOptions& options,
                                            const std::function<bool(const std::string&)>& on_data) {
  v1::StreamLogsRequest request;
  request.set_attempt(attempt);
  request.set_follow(follow);
  std::int64_t next = offset;
  std::optional<ServiceError> gap;
  const auto connect_once = [&](grpc::ClientContext& context) {
    StreamEnd end;
    request.set_offset(next);
    auto reader = connection_->stub->StreamLogs(&context, request);
    v1::StreamLogsResponse response;
    while (!end.finished && reader->Read(&response)) {
      end.progressed = true;
      if (response.offset() > next) {
        gap = ServiceError{grpc::StatusCode::DATA_LOSS,
                           "LOG_GAP",
                           "the log lacks the bytes from " + std::to_string(next) + " to " +
                               std::to_string(response.offset()),
                           {},
                           {}};
        end.finished = true;
        break;
      }
      const auto known = static_cast<std::size_t>(next - response.offset());
      if (known < response.data().size()) {
        const std::string fresh = response.data().substr(known);
        next += static_cast<std::int64_t>(fresh.size());
        if (!on_data(fresh)) end.finished = true;
      }
      if (response.end()) end.finished = true;
    }
    end.status = close(*reader, context, end.finished);
    // Without follow the stream ends where the log ends now.
    if (end.status.ok() && !follow) end.finished = true;
    return end;
  };
  const auto error = run_resumed(connection_->options, options, connection_->reached, connect_once);
  if (gap) return *gap;
  if (error) return *error;
  return next;
}

std::optional<ServiceError> JobClient::stream_metrics(
    const std::string& attempt, std::int64_t after_step, bool follow, const StreamOptions& options,
    const std::function<bool(const v1::MetricSample&)>& on_sample) {
  v1::StreamMetricsRequest request;
  request.set_attempt(attempt);
  request.set_follow(follow);
  request.set_after_step(after_step);
  const auto connect_once = [&](grpc::ClientContext& context) {
    StreamEnd end;
    auto reader = connection_->stub->StreamMetrics(&context, request);
    v1::StreamMetricsResponse response;
    while (!end.finished && reader->Read(&response)) {
      end.progressed = true;
      for (const v1::MetricSample& sample : response.samples()) {
        if (sample.step() <= request.after_step()) continue;
        request.set_after_step(sample.step());
        if (!on_sample(sample)) {
          end.finished = true;
          break;
        }
      }
      if (response.end()) end.finished = true;
    }
    end.status = close(*reader, context, end.finished);
    if (end.status.ok() && !follow) end.finished = true;
    return end;
  };
  return run_resumed(connection_->options, options, connection_->reached, connect_once);
}

}  // namespace coat::client
