// The controller's JobService as a C++ library.
//
//   coat::client::JobClient client({.address = "127.0.0.1:7460"});
//   auto job = client.submit(spec, "");
//   if (!job.ok()) std::cerr << coat::format_for_people(job.error());
//
// Calls have a deadline and are repeated by gRPC on UNAVAILABLE alone. Streams go on by themselves after an
// interruption, from the last event, byte or step that arrived. Job names may be given with or without
// "jobs/". Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "proto/coat/v1/job_service.pb.h"
#include "proto/common/backoff.h"
#include "proto/common/result.h"

namespace coat::client {

struct ClientOptions {
  std::string address = "127.0.0.1:7460";
  std::chrono::milliseconds call_timeout{10000};  // of every call that is no stream
  // An estimate, and a submit with validate_only, wait for a worker that reads the data.
  std::chrono::milliseconds estimate_timeout{60000};
  BackoffOptions reconnect{.initial = std::chrono::milliseconds(200),
                           .maximum = std::chrono::milliseconds(5000)};
  // A stream that worked once gives up when the service stays away for longer than this.
  std::chrono::milliseconds patience{300000};
  std::stop_token stop;  // ends calls that are no stream with CANCELLED, reason STOPPED
};

struct StreamOptions {
  std::stop_token stop;  // ends the stream with CANCELLED, reason STOPPED
  std::optional<std::chrono::steady_clock::time_point>
      deadline;  // ends it with DEADLINE_EXCEEDED, reason TIMED_OUT
  // Called before each new try, with why the last one ended and how many have failed since anything came
  // (from 1).
  std::function<void(const ServiceError&, int)> on_interruption;
};

struct ListFilter {
  std::vector<v1::Job::State> states;
  std::string name_prefix;
  std::map<std::string, std::string> labels;
  std::size_t limit = 0;  // newest jobs; 0: all
};

// Reasons of the errors that this library makes itself.
inline constexpr const char* kStopped = "STOPPED";
inline constexpr const char* kTimedOut = "TIMED_OUT";

class JobClient {
 public:
  explicit JobClient(ClientOptions options);
  ~JobClient();

  // An empty request_id is replaced by a fresh one, so that a repeated call never makes two jobs.
  Result<v1::Job> submit(const v1::JobSpec& spec, const std::string& request_id);
  // Every check of a submit and nothing else.
  Result<v1::SubmitJobResponse> validate(const v1::JobSpec& spec);
  Result<v1::Job> get(const std::string& job);
  Result<std::vector<v1::Job>> list(const ListFilter& filter);  // asks for page after page
  Result<v1::Job> cancel(const std::string& job);
  Result<std::vector<v1::Attempt>> attempts(const std::string& job);
  Result<std::vector<v1::Worker>> workers();
  Result<v1::Estimate> estimate(const v1::JobSpec& spec);

  // Functions of streams answer whether they want more. A stream that they end, or that ends by itself, is no
  // error.

  // Events after `after_sequence`, each once and in order, until the job's terminal one. An empty job: of all
  // jobs, without end. Where the service no longer keeps the events since, the watch goes on from now, with a
  // response without an event.
  std::optional<ServiceError> watch(const std::string& job, std::int64_t after_sequence,
                                    const StreamOptions& options,
                                    const std::function<bool(const v1::WatchJobsResponse&)>& on_change);
  // The job as it is when it has ended.
  Result<v1::Job> wait(const std::string& job, const StreamOptions& options);
  // The bytes of an attempt's log ("jobs/J/attempts/1") from `offset`, without gap or repetition. Answers
  // with the offset of what would come next.
  Result<std::int64_t> stream_logs(const std::string& attempt, std::int64_t offset, bool follow,
                                   const StreamOptions& options,
                                   const std::function<bool(const std::string&)>& on_data);
  // The samples of an attempt after step `after_step`.
  std::optional<ServiceError> stream_metrics(const std::string& attempt, std::int64_t after_step, bool follow,
                                             const StreamOptions& options,
                                             const std::function<bool(const v1::MetricSample&)>& on_sample);

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

// A version 4 UUID from the system's source of randomness.
std::string fresh_request_id();
// "jobs/J" of "J" and of "jobs/J".
std::string job_name(const std::string& text);
bool is_terminal(v1::Job::State state);

}  // namespace coat::client
