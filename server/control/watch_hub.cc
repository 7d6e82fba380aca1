#include "server/control/watch_hub.h"

#include <utility>

namespace coat::control {
namespace {

ServiceError too_slow(std::int64_t after_sequence) {
  ServiceError error;
  error.code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  error.reason = "WATCHER_TOO_SLOW";
  error.message = "this reader is too slow for the events; watch again with after_sequence " +
                  std::to_string(after_sequence);
  error.metadata = {{"after_sequence", std::to_string(after_sequence)}};
  return error;
}

}  // namespace

std::int64_t WatchHub::add(const std::string& job, std::int64_t after_sequence,
                           std::shared_ptr<WatchSink> sink) {
  watchers_[++last_id_] = {job, after_sequence, std::move(sink)};
  return last_id_;
}

void WatchHub::remove(std::int64_t id) { watchers_.erase(id); }

void WatchHub::publish(const std::string& job, const std::shared_ptr<const v1::WatchJobsResponse>& response,
                       bool terminal) {
  for (auto next = watchers_.begin(); next != watchers_.end();) {
    const auto current = next++;
    Watcher& watcher = current->second;
    if (!watcher.job.empty() && watcher.job != job) continue;
    const std::int64_t sequence = response->event().sequence();
    if (response->has_event() && sequence <= watcher.after_sequence) continue;
    if (!watcher.sink->offer(response)) {
      watcher.sink->end(too_slow(watcher.after_sequence));
      watchers_.erase(current);
      continue;
    }
    if (response->has_event()) watcher.after_sequence = sequence;
    if (terminal && !watcher.job.empty()) {
      watcher.sink->end(std::nullopt);
      watchers_.erase(current);
    }
  }
}

void WatchHub::end_all(const ServiceError& error) {
  const auto watchers = std::exchange(watchers_, {});
  for (const auto& [id, watcher] : watchers) watcher.sink->end(error);
}

bool WatchHub::watched(const std::string& job) const {
  for (const auto& [id, watcher] : watchers_) {
    if (watcher.job.empty() || watcher.job == job) return true;
  }
  return false;
}

}  // namespace coat::control
