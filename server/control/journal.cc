#include "server/control/journal.h"

#include <utility>

namespace coat::control {

Journal::Journal(store::Store& store, std::function<bool(std::function<void()>)> post,
                 std::function<void(const std::string&)> failed)
    : store_(store), post_(std::move(post)), failed_(std::move(failed)) {}

void Journal::restore(std::int64_t last_sequence, std::int64_t epoch) {
  last_sequence_ = durable_sequence_ = last_sequence;
  epoch_ = epoch;
}

std::int64_t Journal::next_epoch() {
  batch_.epoch = ++epoch_;
  return epoch_;
}

void Journal::after(After action) { after_.push_back(std::move(action)); }

void Journal::flush() {
  if (batch_.empty() && after_.empty()) return;
  if (failed_already_ || (batch_.empty() && in_flight_ == 0)) {
    batch_ = {};
    const std::vector<After> actions = std::exchange(after_, {});
    for (const After& action : actions) action(!failed_already_);
    return;
  }
  ++in_flight_;
  const std::int64_t sequence = last_sequence_;
  auto actions = std::make_shared<std::vector<After>>(std::exchange(after_, {}));
  store_.commit(std::exchange(batch_, {}), [this, post = post_, actions, sequence](const std::string& error) {
    post([this, actions, sequence, error] {
      --in_flight_;
      const bool first = !error.empty() && !failed_already_;
      failed_already_ = failed_already_ || !error.empty();
      if (!failed_already_) durable_sequence_ = sequence;
      for (const After& action : *actions) action(!failed_already_);
      if (first) failed_(error);
    });
  });
}

}  // namespace coat::control
