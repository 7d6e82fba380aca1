#include "server/fleet/worker_book.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/util/message_differencer.h>
#include <google/protobuf/util/time_util.h>

namespace coat::fleet {
namespace {

using google::protobuf::util::MessageDifferencer;

google::protobuf::Timestamp timestamp(SystemTime time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return google::protobuf::util::TimeUtil::MillisecondsToTimestamp(ms);
}

}  // namespace

WorkerBook::WorkerBook(LeaseOptions options) : options_(options) {}

void WorkerBook::restore(const std::vector<store::WorkerRow>& rows, SteadyTime now) {
  for (const store::WorkerRow& row : rows) {
    WorkerEntry entry;
    entry.worker = row.worker;
    entry.worker.set_state(v1::Worker::READY);
    entry.worker.set_state_message("not heard of since the controller started");
    entry.heard = now;
    entries_[row.worker.name()] = std::move(entry);
  }
}

Result<WorkerBook::Registration> WorkerBook::enter(const v1::Register& message,
                                                   std::shared_ptr<WorkerLink> link, SteadyTime now,
                                                   SystemTime stamp) {
  const std::string name = "workers/" + message.worker_id();
  auto [found, added] = entries_.try_emplace(name);
  WorkerEntry& entry = found->second;
  const bool lost = entry.worker.state() == v1::Worker::LOST;
  if (!added && !lost && message.incarnation() < entry.worker.incarnation()) {
    ServiceError error = failed_precondition(
        "OLDER_INCARNATION",
        name + " is known with incarnation " + std::to_string(entry.worker.incarnation()) +
            ", and this one has " + std::to_string(message.incarnation()) +
            ": another daemon uses the same --id, or the state folder was put back; give it another --id");
    error.metadata = {{"worker", name},
                      {"known", std::to_string(entry.worker.incarnation())},
                      {"given", std::to_string(message.incarnation())}};
    return error;
  }
  Registration registration{&entry, lost, std::exchange(entry.link, std::move(link))};
  entry.worker.set_name(name);
  entry.worker.set_hostname(message.hostname());
  entry.worker.set_version(message.version());
  entry.worker.set_state(v1::Worker::READY);
  entry.worker.clear_state_message();
  *entry.worker.mutable_devices() = message.devices();
  *entry.worker.mutable_register_time() = timestamp(stamp);
  entry.worker.set_incarnation(message.incarnation());
  entry.given_up = false;
  hear(entry, now, stamp);
  return registration;
}

void WorkerBook::hear(WorkerEntry& entry, SteadyTime now, SystemTime stamp) {
  entry.heard = now;
  *entry.worker.mutable_heartbeat_time() = timestamp(stamp);
}

bool WorkerBook::take_devices(WorkerEntry& entry,
                              const google::protobuf::RepeatedPtrField<v1::Device>& devices) {
  const auto& known = entry.worker.devices();
  const auto same = [](const v1::Device& a, const v1::Device& b) { return MessageDifferencer::Equals(a, b); };
  if (devices.empty() || std::equal(devices.begin(), devices.end(), known.begin(), known.end(), same))
    return false;
  *entry.worker.mutable_devices() = devices;
  return true;
}

void WorkerBook::leave(WorkerEntry& entry) {
  entry.link.reset();
  entry.worker.set_state_message("not connected");
}

std::vector<WorkerEntry*> WorkerBook::expire_leases(SteadyTime now) {
  std::vector<WorkerEntry*> expired;
  for (auto& [name, entry] : entries_) {
    if (entry.worker.state() == v1::Worker::LOST || now < entry.heard + options_.lease) continue;
    entry.worker.set_state(v1::Worker::LOST);
    entry.worker.set_state_message("silent for longer than its lease");
    entry.lost = now;
    entry.given_up = false;
    expired.push_back(&entry);
  }
  return expired;
}

std::vector<WorkerEntry*> WorkerBook::due_for_fencing(SteadyTime now) {
  std::vector<WorkerEntry*> due;
  for (auto& [name, entry] : entries_) {
    if (entry.worker.state() != v1::Worker::LOST || entry.given_up || now < entry.lost + options_.fence_after)
      continue;
    entry.given_up = true;
    due.push_back(&entry);
  }
  return due;
}

std::optional<SteadyTime> WorkerBook::next_deadline() const {
  std::optional<SteadyTime> next;
  for (const auto& [name, entry] : entries_) {
    const bool lost = entry.worker.state() == v1::Worker::LOST;
    if (lost && entry.given_up) continue;
    const SteadyTime at = lost ? entry.lost + options_.fence_after : entry.heard + options_.lease;
    if (!next || at < *next) next = at;
  }
  return next;
}

WorkerEntry* WorkerBook::find(const std::string& name) {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

}  // namespace coat::fleet
