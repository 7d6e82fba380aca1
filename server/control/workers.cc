// What workers say, and what they are told.
#include <utility>

#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include "server/control/controller.h"
#include "server/jobs/names.h"

namespace coat::control {
namespace {

using google::protobuf::util::TimeUtil;

constexpr std::size_t kMaxChunkBytes = 256 << 10;
const char kHeartbeatMetric[] = "coat_worker_last_heartbeat_timestamp_seconds";

ServiceError aborted(const std::string& reason, const std::string& message) {
  ServiceError error;
  error.code = grpc::StatusCode::ABORTED;
  error.reason = reason;
  error.message = message;
  return error;
}

ServiceError bad_message(const std::string& field, const std::string& what, const std::string& fix) {
  return invalid_argument({{field, what, fix}});
}

// What is wrong with a registration, if anything.
std::optional<ServiceError> check_register(const v1::Register& message) {
  if (!jobs::is_worker_id(message.worker_id())) {
    return bad_message("register.worker_id",
                       "\"" + message.worker_id().substr(0, 80) + "\" is no worker's id",
                       "use 1 to 63 of a-z, 0-9 and -, not at the ends");
  }
  std::set<int> indices;
  for (const v1::Device& device : message.devices()) {
    const bool known_kind = device.kind() == v1::Device::CPU || device.kind() == v1::Device::CUDA;
    if (!known_kind || device.index() < 0 || device.memory_bytes() < 0 ||
        !indices.insert(device.index()).second) {
      return bad_message("register.devices",
                         "device " + std::to_string(device.index()) + " is not valid, or listed twice",
                         "list each device once, with its kind");
    }
  }
  return std::nullopt;
}

}  // namespace

fleet::WorkerEntry* Controller::entry_of(const fleet::WorkerLink* link) {
  const auto found = links_.find(link);
  return found == links_.end() ? nullptr : workers_.find(found->second);
}

void Controller::worker_message(std::shared_ptr<fleet::WorkerLink> link, v1::WorkerMessage message,
                                std::function<void()> handled) {
  const bool posted = thread_->post(
      [this, link, message = std::move(message), handled]() mutable { handle(link, message, handled); });
  if (!posted) link->close(shutting_down());
}

void Controller::handle(const std::shared_ptr<fleet::WorkerLink>& link, v1::WorkerMessage& message,
                        const std::function<void()>& handled) {
  if (stopping_) {
    link->close(shutting_down());
    return;
  }
  fleet::WorkerEntry* entry = entry_of(link.get());
  if (message.has_register_()) {
    if (entry) {
      link->close(bad_message("register", "a stream registers once", "open a new stream"));
      return;
    }
    enter(link, message.register_());
    handled();
    return;
  }
  if (!entry) {
    link->close(bad_message("register", "the first message of a stream is Register", "send it first"));
    return;
  }
  workers_.hear(*entry, clock_.now(), clock_.system_now());
  metrics_.set_gauge(kHeartbeatMetric, "When the worker was last heard of.",
                     {{"worker", links_[link.get()].substr(8)}},
                     static_cast<double>(jobs::unix_ms(clock_.system_now())) / 1e3);
  if (message.has_chunk()) {
    take_chunk(*entry, *message.mutable_chunk(), handled);
    return;
  }
  if (message.has_heartbeat()) {
    if (workers_.take_devices(*entry, message.heartbeat().devices())) {
      write_worker(*entry, "changed", "its devices or their health");
    }
  } else if (message.has_report()) {
    take_report(*entry, message.report());
  } else if (message.has_estimate()) {
    desk_.answer(entry->worker.name(), message.estimate());
  }
  handled();
}

void Controller::enter(const std::shared_ptr<fleet::WorkerLink>& link, const v1::Register& message) {
  if (const auto error = check_register(message)) {
    link->close(*error);
    return;
  }
  Result<fleet::WorkerBook::Registration> entered =
      workers_.enter(message, link, clock_.now(), clock_.system_now());
  if (!entered.ok()) {
    link->close(entered.error());
    return;
  }
  fleet::WorkerEntry& entry = *entered.value().entry;
  const std::string name = entry.worker.name();
  links_[link.get()] = name;
  if (const auto& old = entered.value().replaced) {
    links_.erase(old.get());
    old->close(aborted("WORKER_TAKEN_OVER", name + " has opened a newer stream"));
  }
  desk_.worker_left(name);

  v1::ControllerMessage answer;
  v1::Registered& registered = *answer.mutable_registered();
  const fleet::LeaseOptions& lease = workers_.options();
  *registered.mutable_heartbeat_interval() =
      TimeUtil::MillisecondsToDuration(lease.heartbeat_interval.count());
  *registered.mutable_lease() = TimeUtil::MillisecondsToDuration(lease.lease.count());
  registered.set_controller_version(options_.version);
  link->send(std::move(answer));
  write_worker(entry, "registered",
               "incarnation " + std::to_string(message.incarnation()) + ", " +
                   std::to_string(message.devices_size()) + " devices, " +
                   std::to_string(message.attempts_size()) + " attempts");

  std::set<std::string> listed;
  for (const v1::AttemptReport& report : message.attempts()) {
    listed.insert(report.attempt());
    take_report(entry, report);
    acknowledge_streams(entry, report.attempt(), report.epoch());
  }
  mark_missing(entry, listed);
}

void Controller::mark_missing(const fleet::WorkerEntry& entry, const std::set<std::string>& listed) {
  std::vector<std::string> missing;
  for (const auto& [job_name, job] : jobs_) {
    const store::AttemptRow* row = job.record.current();
    if (!row || row->attempt.worker() != entry.worker.name()) continue;
    if (!listed.contains(row->attempt.name())) {
      missing.push_back(job_name);
    } else if (job.record.row.job.cancel_requested()) {
      send_stop(job);
    }
  }
  for (const std::string& job_name : missing) change(job_name, jobs::AttemptMissing{}, entry.worker.name());
}

void Controller::worker_closed(std::shared_ptr<fleet::WorkerLink> link) {
  thread_->post([this, link] {
    fleet::WorkerEntry* entry = entry_of(link.get());
    links_.erase(link.get());
    if (!entry || entry->link != link) return;
    workers_.leave(*entry);
    spdlog::info("{} disconnected; its attempts go on", entry->worker.name());
    desk_.worker_left(entry->worker.name());
    schedule_due_ = true;
  });
}

void Controller::take_report(fleet::WorkerEntry& entry, const v1::AttemptReport& report) {
  const std::optional<jobs::AttemptName> name = jobs::parse_attempt_name(report.attempt());
  std::optional<store::AttemptRow> row;
  try {
    if (name && name->number > 0) row = find_attempt(name->job, name->number);
  } catch (const store::StoreError& error) {
    entry.link->close(store_failed(error.what()));
    return;
  }
  if (!row || row->attempt.worker() != entry.worker.name()) {
    fence(entry, report.attempt(), report.epoch());
    return;
  }
  LiveJob* job = live(name->job);
  if (!job) {
    if (row->attempt.epoch() != report.epoch() || jobs::given_up(row->attempt)) {
      fence(entry, report.attempt(), report.epoch());
    } else {
      acknowledge_report(entry, report);
    }
    return;
  }
  const jobs::Outcome outcome = apply(*job, jobs::Reported{report}, entry.worker.name());
  if (outcome.stale) {
    fence(entry, report.attempt(), report.epoch());
    return;
  }
  if (outcome.stop_attempt) send_stop(*job);
  if (outcome.acknowledge) acknowledge_report(entry, report);
}

void Controller::acknowledge_report(const fleet::WorkerEntry& entry, const v1::AttemptReport& report) {
  if (report.report_sequence() == 0) return;
  v1::ControllerMessage message;
  message.mutable_report_ack()->set_attempt(report.attempt());
  message.mutable_report_ack()->set_epoch(report.epoch());
  message.mutable_report_ack()->set_report_sequence(report.report_sequence());
  journal_.after([link = entry.link, message = std::move(message)](bool durable) {
    if (durable && link) link->send(message);
  });
}

void Controller::fence(const fleet::WorkerEntry& entry, const std::string& attempt, std::int64_t epoch) {
  spdlog::warn("{} speaks of {} with epoch {}, which does not count any more; told to fence it",
               entry.worker.name(), attempt, epoch);
  v1::ControllerMessage message;
  message.mutable_fence()->set_attempt(attempt);
  message.mutable_fence()->set_epoch(epoch);
  entry.link->send(std::move(message));
}

void Controller::send_stop(const LiveJob& job) {
  const store::AttemptRow* row = job.record.current();
  fleet::WorkerEntry* entry = row ? workers_.find(row->attempt.worker()) : nullptr;
  if (!entry || !entry->connected()) return;
  v1::ControllerMessage message;
  v1::Stop& stop = *message.mutable_stop();
  stop.set_attempt(row->attempt.name());
  stop.set_epoch(row->attempt.epoch());
  *stop.mutable_grace() = TimeUtil::MillisecondsToDuration(
      static_cast<std::int64_t>(job.record.row.job.spec().stop_grace_seconds() * 1e3));
  stop.set_user_cancel(true);
  entry->link->send(std::move(message));
}

void Controller::take_chunk(fleet::WorkerEntry& entry, v1::StreamChunk& chunk,
                            const std::function<void()>& handled) {
  const std::optional<jobs::AttemptName> name = jobs::parse_attempt_name(chunk.attempt());
  const bool known_kind = chunk.kind() == v1::StreamChunk::LOG || chunk.kind() == v1::StreamChunk::METRICS;
  if (!name || name->number == 0 || !known_kind || chunk.offset() < 0 ||
      chunk.data().size() > kMaxChunkBytes) {
    entry.link->close(bad_message("chunk", "attempt, kind, offset or size is not valid",
                                  "send at most 256 KiB of an attempt's log or metrics"));
    return;
  }
  std::optional<store::AttemptRow> row;
  try {
    row = find_attempt(name->job, name->number);
  } catch (const store::StoreError& error) {
    entry.link->close(store_failed(error.what()));
    return;
  }
  if (!row || row->attempt.worker() != entry.worker.name() || row->attempt.epoch() != chunk.epoch() ||
      jobs::given_up(row->attempt)) {
    fence(entry, chunk.attempt(), chunk.epoch());
    handled();
    return;
  }
  writer_.post([this, link = entry.link, name = *name, chunk = std::move(chunk), handled] {
    const auto kind =
        chunk.kind() == v1::StreamChunk::LOG ? store::StreamKind::kLog : store::StreamKind::kMetrics;
    try {
      const std::int64_t size = files_.append(name.job, name.number, kind, chunk.offset(), chunk.data());
      v1::ControllerMessage message;
      message.mutable_stream_ack()->set_attempt(chunk.attempt());
      message.mutable_stream_ack()->set_epoch(chunk.epoch());
      message.mutable_stream_ack()->set_kind(chunk.kind());
      message.mutable_stream_ack()->set_offset(size);
      link->send(std::move(message));
    } catch (const store::StoreError& error) {
      spdlog::error("{}", error.what());
      link->close(store_failed(error.what()));
      return;
    }
    thread_->post([this, name] {
      streams_.wake(jobs::attempt_name(name.job, name.number), [&](store::StreamKind which) {
        return look_at_stream({name.job, name.number}, which);
      });
    });
    handled();
  });
}

void Controller::acknowledge_streams(fleet::WorkerEntry& entry, const std::string& attempt,
                                     std::int64_t epoch) {
  const std::optional<jobs::AttemptName> name = jobs::parse_attempt_name(attempt);
  if (!name || name->number == 0) return;
  std::optional<store::AttemptRow> row;
  try {
    row = find_attempt(name->job, name->number);
  } catch (const store::StoreError& error) {
    entry.link->close(store_failed(error.what()));
    return;
  }
  if (!row || row->attempt.epoch() != epoch || row->attempt.worker() != entry.worker.name() ||
      jobs::given_up(row->attempt)) {
    return;
  }
  for (const v1::StreamChunk::Kind kind : {v1::StreamChunk::LOG, v1::StreamChunk::METRICS}) {
    v1::ControllerMessage message;
    v1::StreamAck& ack = *message.mutable_stream_ack();
    ack.set_attempt(attempt);
    ack.set_epoch(epoch);
    ack.set_kind(kind);
    ack.set_offset(
        files_.size(name->job, name->number,
                    kind == v1::StreamChunk::LOG ? store::StreamKind::kLog : store::StreamKind::kMetrics));
    entry.link->send(std::move(message));
  }
}

void Controller::expire_workers(SteadyTime now) {
  std::vector<std::pair<std::string, jobs::Happening>> happenings;
  const auto concern = [&](const fleet::WorkerEntry& entry, const jobs::Happening& happening) {
    for (const auto& [name, job] : jobs_) {
      const store::AttemptRow* row = job.record.current();
      if (row && row->attempt.worker() == entry.worker.name()) happenings.emplace_back(name, happening);
    }
  };
  bool lost = false;
  for (fleet::WorkerEntry* entry : workers_.expire_leases(now)) {
    lost = true;
    write_worker(*entry, "lost", entry->worker.state_message());
    concern(*entry, jobs::WorkerWentSilent{});
    if (!entry->link) continue;
    // It must register again, so that both sides agree on what still runs.
    links_.erase(entry->link.get());
    entry->link->close(
        unavailable("LEASE_EXPIRED", "nothing was heard for longer than the lease; register again"));
    entry->link.reset();
    desk_.worker_left(entry->worker.name());
  }
  for (const fleet::WorkerEntry* entry : workers_.due_for_fencing(now)) concern(*entry, jobs::FenceDue{});
  for (const auto& [name, happening] : happenings) change(name, happening, "controller");
  if (!lost) return;
  for (const std::string& attempt : streams_.attempts()) {
    const std::optional<jobs::AttemptName> name = jobs::parse_attempt_name(attempt);
    streams_.wake(attempt, [&](store::StreamKind kind) {
      return look_at_stream({name->job, name->number}, kind);
    });
  }
}

}  // namespace coat::control
