#include "server/control/stream_hub.h"

#include <utility>

namespace coat::control {

void StreamHub::wait(std::int64_t id, const std::string& attempt, store::StreamKind kind, std::int64_t offset,
                     Done done) {
  waiters_[id] = {attempt, kind, offset, std::move(done)};
}

void StreamHub::forget(std::int64_t id) { waiters_.erase(id); }

void StreamHub::wake(const std::string& attempt, const Look& look) {
  for (auto next = waiters_.begin(); next != waiters_.end();) {
    const auto current = next++;
    const Waiter& waiter = current->second;
    if (waiter.attempt != attempt) continue;
    const Result<StreamState> state = look(waiter.kind);
    if (state.ok() && state.value().size <= waiter.offset && !state.value().complete) continue;
    const Done done = std::move(current->second.done);
    waiters_.erase(current);
    done(state);
  }
}

std::vector<std::string> StreamHub::attempts() const {
  std::vector<std::string> names;
  for (const auto& [id, waiter] : waiters_) names.push_back(waiter.attempt);
  return names;
}

void StreamHub::end_all(const ServiceError& error) {
  const auto waiters = std::exchange(waiters_, {});
  for (const auto& [id, waiter] : waiters) waiter.done(error);
}

}  // namespace coat::control
