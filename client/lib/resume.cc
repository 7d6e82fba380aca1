#include "client/lib/resume.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>

namespace coat::client {
namespace {

using std::chrono::steady_clock;

bool may_pass(const grpc::Status& status) {
  // OK before the end: the service closed the stream in good order, for instance at the connection's age
  // limit. RESOURCE_EXHAUSTED: this reader was too slow; it goes on from what it has.
  return status.ok() || status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
}

std::optional<ServiceError> ended_by(const StreamOptions& options) {
  if (options.stop.stop_requested()) {
    return stopped();
  }
  if (options.deadline && steady_clock::now() >= *options.deadline) {
    return ServiceError{grpc::StatusCode::DEADLINE_EXCEEDED, kTimedOut, "the time is up", {}, {}};
  }
  return std::nullopt;
}

void pause(const StreamOptions& options, std::chrono::milliseconds delay) {
  steady_clock::time_point until = steady_clock::now() + delay;
  if (options.deadline) until = std::min(until, *options.deadline);
  std::mutex mutex;
  std::condition_variable_any condition;
  std::unique_lock<std::mutex> lock(mutex);
  condition.wait_until(lock, options.stop, until, [] { return false; });
}

ServiceError describe(const grpc::Status& status) {
  if (!status.ok()) return from_status(status);
  return unavailable("STREAM_ENDED", "the service closed the stream early");
}

}  // namespace

ServiceError stopped() { return {grpc::StatusCode::CANCELLED, kStopped, "stopped by the caller", {}, {}}; }

std::chrono::system_clock::time_point system_deadline(steady_clock::time_point deadline) {
  const auto left = deadline - steady_clock::now();
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(left);
}

std::optional<ServiceError> run_resumed(const ClientOptions& client, const StreamOptions& options,
                                        std::atomic<bool>& reached,
                                        const std::function<StreamEnd(grpc::ClientContext&)>& connect_once) {
  Backoff backoff(client.reconnect, std::random_device{}());
  int failed = 0;
  steady_clock::time_point last_contact = steady_clock::now();
  while (true) {
    StreamEnd end;
    {
      grpc::ClientContext context;
      if (options.deadline) context.set_deadline(system_deadline(*options.deadline));
      const std::stop_callback cancel(options.stop, [&context] { context.TryCancel(); });
      end = connect_once(context);
    }
    if (end.finished) return std::nullopt;
    if (auto ended = ended_by(options)) return ended;
    const ServiceError error = describe(end.status);
    if (!may_pass(end.status)) return error;
    if (end.progressed || end.status.ok()) {
      reached = true;
      last_contact = steady_clock::now();
      backoff.reset();
      failed = 0;
    }
    if (!reached || steady_clock::now() - last_contact > client.patience) return error;
    const std::chrono::milliseconds delay = backoff.next();
    if (options.on_interruption) options.on_interruption(error, ++failed);
    pause(options, delay);
    if (auto ended = ended_by(options)) return ended;
  }
}

}  // namespace coat::client
