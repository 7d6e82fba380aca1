#include "worker/agent/attempt_set.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>

#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include "proto/common/spec_conversion.h"
#include "worker/agent/durable_file.h"
#include "worker/agent/process.h"
#include "worker/protocol/launch.h"

namespace coat::agent {
namespace {

constexpr std::chrono::seconds kProgressInterval{1};
// For the device of a new attempt: what is fenced on it dies within seconds.
constexpr std::chrono::seconds kWaitLimit{60};

// An attempt whose story is told: it leaves the set at once, its folder later.
bool is_shipped(const AttemptFiles& files) { return std::filesystem::exists(files.shipped()); }

}  // namespace

AttemptSet::AttemptSet(AttemptSetOptions options, Inventory& inventory, Clock& clock)
    : options_(std::move(options)), inventory_(inventory), clock_(clock) {
  std::filesystem::create_directories(options_.folder);
}

void AttemptSet::load() {
  std::lock_guard lock(mutex_);
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder)) {
    const AttemptFiles files(entry.path());
    if (!entry.is_directory() || is_shipped(files)) continue;
    try {
      auto attempt = Attempt::adopt(files, clock_);
      spdlog::info("{} (epoch {}): taken over, {}", attempt->record().attempt, attempt->record().epoch,
                   attempt->stage() == Attempt::Stage::kEnded ? "it has ended" : "it runs");
      if (attempt->stage() == Attempt::Stage::kEnded) on_ended(*attempt);
      const Key key{attempt->record().attempt, attempt->record().epoch};
      attempts_[key] = std::move(attempt);
    } catch (const std::exception& error) {
      spdlog::error("{} is left alone: {}", entry.path().string(), error.what());
    }
  }
}

Attempt* AttemptSet::find(const std::string& attempt, std::int64_t epoch) {
  const auto found = attempts_.find({attempt, epoch});
  return found == attempts_.end() ? nullptr : found->second.get();
}

std::optional<std::string> AttemptSet::refusal(const v1::Assign& assign) const {
  const auto devices = inventory_.devices();
  if (assign.devices().empty()) return "no device was assigned";
  for (const int index : assign.devices()) {
    if (index < 0 || static_cast<std::size_t>(index) >= devices.size()) {
      return "this worker has no device " + std::to_string(index) + " (it has " +
             std::to_string(devices.size()) + ")";
    }
    const v1::Device& device = devices[static_cast<std::size_t>(index)];
    if (device.health() == v1::Device::FAULTED) {
      return "device " + std::to_string(index) + " is faulted: " + device.health_message();
    }
  }
  if (assign.devices_size() > 1) return "this worker runs a job on one device; write resources.devices: 1";
  return std::nullopt;
}

AttemptRecord AttemptSet::make_record(const v1::Assign& assign, const AttemptFiles& files,
                                      const std::string& job) const {
  const int device = assign.devices(0);
  protocol::Launch launch;
  launch.spec_path = files.spec();
  launch.checkpoint_dir = options_.checkpoint_dir / job;
  launch.device = inventory_.trainer_name(device);
  launch.threads = inventory_.threads(device);
  launch.memory_bytes = inventory_.devices()[static_cast<std::size_t>(device)].memory_bytes();
  launch.resume = assign.resume();
  launch.epoch = assign.epoch();
  launch.event_fd = kInheritedFd;
  AttemptRecord record;
  record.attempt = assign.attempt();
  record.epoch = assign.epoch();
  record.devices.assign(assign.devices().begin(), assign.devices().end());
  record.trainer = protocol::launch_arguments(launch);
  record.trainer.insert(record.trainer.begin(), options_.trainer.string());
  record.stop_grace_seconds = spec::JobSpec{}.stop_grace_seconds;
  if (assign.spec().has_stop_grace_seconds()) record.stop_grace_seconds = assign.spec().stop_grace_seconds();
  record.orphan_grace_seconds = options_.orphan_grace_seconds;
  record.daemon_lock = options_.daemon_lock;
  return record;
}

void AttemptSet::on_assign(const v1::Assign& assign) {
  std::lock_guard lock(mutex_);
  const auto name = parse_attempt_name(assign.attempt());
  if (!name) {
    spdlog::error("ignored an assignment of '{}': that is no name of an attempt", assign.attempt());
    return;
  }
  if (Attempt* known = find(assign.attempt(), assign.epoch())) {
    known->reported_sequence = 0;  // said twice: so is the answer
    return;
  }
  for (const auto& [key, attempt] : attempts_) {
    const auto other = parse_attempt_name(key.first);
    if (other && other->job == name->job && key.second > assign.epoch()) {
      spdlog::warn("ignored {} of epoch {}: epoch {} of its job is known", assign.attempt(), assign.epoch(),
                   key.second);
      return;
    }
  }
  fence_older(*name, assign.epoch());

  const AttemptFiles files(options_.folder / attempt_folder_name(*name, assign.epoch()));
  AttemptRecord record;
  record.attempt = assign.attempt();
  record.epoch = assign.epoch();
  auto refused = refusal(assign);
  std::unique_ptr<Attempt> attempt;
  try {
    std::filesystem::create_directories(files.folder);
    if (!refused) record = make_record(assign, files, name->job);
    write_durably(files.spec(), spec_json(assign.spec()));
    write_durably(files.attempt(), to_json(record));
  } catch (const std::exception& error) {
    refused = error.what();
  }
  attempt = std::make_unique<Attempt>(files, record, clock_);
  attempt->log_stream.begin_session(true, clock_.now());
  attempt->metrics_stream.begin_session(true, clock_.now());
  if (refused) {
    ExitRecord exit;
    exit.launch_error = *refused;
    attempt->give_up(exit);
    spdlog::error("{} (epoch {}): refused: {}", record.attempt, record.epoch, *refused);
  } else if (stopping_) {
    attempt->request_stop({0, false, false, "the worker is shutting down"});
  } else {
    spdlog::info("{} (epoch {}): assigned to {}", record.attempt, record.epoch,
                 inventory_.trainer_name(record.devices.front()));
  }
  attempts_[{record.attempt, record.epoch}] = std::move(attempt);
}

void AttemptSet::fence_older(const AttemptName& name, std::int64_t epoch) {
  for (const auto& [key, attempt] : attempts_) {
    const auto other = parse_attempt_name(key.first);
    if (other && other->job == name.job && key.second < epoch && attempt->stage() != Attempt::Stage::kEnded) {
      attempt->request_stop({0, false, true, "a newer attempt of the job was assigned"});
    }
  }
}

void AttemptSet::on_stop(const v1::Stop& stop) {
  std::lock_guard lock(mutex_);
  Attempt* attempt = find(stop.attempt(), stop.epoch());
  if (attempt == nullptr) return;
  const double grace =
      static_cast<double>(google::protobuf::util::TimeUtil::DurationToMilliseconds(stop.grace())) / 1e3;
  attempt->request_stop({grace, stop.user_cancel(), false,
                         stop.user_cancel() ? "the user cancelled the job" : "the controller asked for it"});
}

void AttemptSet::on_fence(const v1::Fence& fence) {
  std::lock_guard lock(mutex_);
  Attempt* attempt = find(fence.attempt(), fence.epoch());
  if (attempt == nullptr) return;
  spdlog::warn("{} (epoch {}): fenced", fence.attempt(), fence.epoch());
  attempt->request_stop({0, false, true, "the controller has given the attempt up"});
}

void AttemptSet::on_report_ack(const v1::AttemptReportAck& ack) {
  std::lock_guard lock(mutex_);
  Attempt* attempt = find(ack.attempt(), ack.epoch());
  if (attempt == nullptr || attempt->stage() != Attempt::Stage::kEnded) return;
  if (ack.report_sequence() >= attempt->report_sequence()) attempt->end_acked = true;
}

void AttemptSet::on_stream_ack(const v1::StreamAck& ack) {
  std::lock_guard lock(mutex_);
  Attempt* attempt = find(ack.attempt(), ack.epoch());
  if (attempt == nullptr) return;
  ByteStream& stream = ack.kind() == v1::StreamChunk::METRICS ? attempt->metrics_stream : attempt->log_stream;
  stream.on_ack(ack.offset(), clock_.now());
}

std::vector<v1::AttemptReport> AttemptSet::begin_session() {
  std::lock_guard lock(mutex_);
  std::vector<v1::AttemptReport> reports;
  for (const auto& [key, attempt] : attempts_) {
    attempt->log_stream.begin_session(false, clock_.now());
    attempt->metrics_stream.begin_session(false, clock_.now());
    attempt->reported_sequence = attempt->report_sequence();
    if (!attempt->fenced()) reports.push_back(attempt->report(attempt->reported_sequence));
  }
  return reports;
}

std::optional<v1::WorkerMessage> AttemptSet::next_message() {
  std::lock_guard lock(mutex_);
  for (const auto& [key, attempt] : attempts_) {
    if (auto message = next_report(*attempt)) return message;
  }
  auto turn = attempts_.upper_bound(last_chunk_);
  for (std::size_t i = 0; i < attempts_.size(); ++i, ++turn) {
    if (turn == attempts_.end()) turn = attempts_.begin();
    if (auto message = next_chunk(*turn->second)) {
      last_chunk_ = turn->first;
      return message;
    }
  }
  return std::nullopt;
}

std::optional<v1::WorkerMessage> AttemptSet::next_report(Attempt& attempt) {
  if (attempt.fenced()) return std::nullopt;
  v1::WorkerMessage message;
  const std::int64_t sequence = attempt.report_sequence();
  const bool ended = attempt.stage() == Attempt::Stage::kEnded;
  if (sequence > attempt.reported_sequence) {
    attempt.reported_sequence = sequence;
    *message.mutable_report() = attempt.report(sequence);
  } else if (!ended && sequence > 0 && attempt.progress_changed &&
             clock_.now() - attempt.progress_sent >= kProgressInterval) {
    *message.mutable_report() = attempt.report(0);
  } else {
    return std::nullopt;
  }
  attempt.progress_changed = false;
  attempt.progress_sent = clock_.now();
  return message;
}

std::optional<v1::WorkerMessage> AttemptSet::next_chunk(Attempt& attempt) {
  if (attempt.fenced()) return std::nullopt;
  if (auto message = read_chunk(attempt, v1::StreamChunk::METRICS)) return message;
  return read_chunk(attempt, v1::StreamChunk::LOG);
}

std::optional<v1::WorkerMessage> AttemptSet::read_chunk(Attempt& attempt, v1::StreamChunk::Kind kind) {
  const bool metrics = kind == v1::StreamChunk::METRICS;
  const std::filesystem::path path = metrics ? attempt.files().metrics() : attempt.files().log();
  ByteStream& stream = metrics ? attempt.metrics_stream : attempt.log_stream;
  const auto range = stream.next(size_of_file(path), clock_.now());
  if (!range) return std::nullopt;
  std::string bytes = read_range(path, range->offset, range->size);
  if (bytes.empty()) return std::nullopt;
  stream.on_sent({range->offset, bytes.size()}, clock_.now());
  v1::WorkerMessage message;
  v1::StreamChunk* chunk = message.mutable_chunk();
  chunk->set_attempt(attempt.record().attempt);
  chunk->set_epoch(attempt.record().epoch);
  chunk->set_kind(kind);
  chunk->set_offset(range->offset);
  chunk->set_data(std::move(bytes));
  return message;
}

bool AttemptSet::may_start(const Attempt& attempt) const {
  const auto name = parse_attempt_name(attempt.record().attempt);
  for (const auto& [key, other] : attempts_) {
    if (other.get() == &attempt || !other->holds_devices()) continue;
    if (parse_attempt_name(key.first)->job == name->job) return false;
    for (const int device : other->record().devices) {
      const auto& wanted = attempt.record().devices;
      if (std::find(wanted.begin(), wanted.end(), device) != wanted.end()) return false;
    }
  }
  return true;
}

void AttemptSet::on_ended(const Attempt& attempt) {
  const AttemptEnd end = attempt.end();
  if (attempt.fenced()) {
    spdlog::info("{} (epoch {}): fenced and gone", attempt.record().attempt, attempt.record().epoch);
  } else {
    spdlog::info("{} (epoch {}): {} {}: {}", attempt.record().attempt, attempt.record().epoch,
                 v1::Attempt::State_Name(end.state), v1::ExitStatus::Reason_Name(end.exit.reason()),
                 end.exit.message());
  }
  inventory_.report_survivors(attempt.record().devices, attempt.exit()->survivors);
  if (end.exit.reason() == v1::ExitStatus::DEVICE_FAULT) {
    inventory_.report_fault(attempt.record().devices,
                            attempt.record().attempt + " ended with a device fault");
  }
}

void AttemptSet::start_waiting(Attempt& attempt) {
  if (may_start(attempt)) {
    attempt.launch(options_.supervisor);
  } else if (clock_.now() - attempt.created() >= kWaitLimit) {
    ExitRecord exit;
    exit.launch_error = "its device was not free within " + std::to_string(kWaitLimit.count()) + " s";
    attempt.give_up(exit);
  }
}

bool AttemptSet::tick(const std::function<void(const AttemptView&)>& observe) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, attempt] : attempts_) {
    const bool was_ended = attempt->stage() == Attempt::Stage::kEnded;
    if (attempt->stage() == Attempt::Stage::kWaiting) start_waiting(*attempt);
    attempt->poll();
    if (!was_ended && attempt->stage() == Attempt::Stage::kEnded) on_ended(*attempt);
    if (observe) {
      observe({parse_attempt_name(key.first)->job, key.second, attempt->stage() == Attempt::Stage::kEnded,
               attempt->training()});
    }
  }
  remove_delivered();
  return !attempts_.empty();
}

void AttemptSet::remove_delivered() {
  bool any = false;
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    if (!it->second->delivered()) {
      ++it;
      continue;
    }
    std::error_code ignored;
    try {
      replace_file(it->second->files().shipped(), "");
    } catch (const std::system_error& error) {
      spdlog::warn("{}: {}", it->first.first, error.what());
      std::filesystem::remove_all(it->second->files().folder,
                                  ignored);  // the disk is full: this one need not stay
    }
    it = attempts_.erase(it);
    any = true;
  }
  if (!any) return;
  std::vector<std::pair<std::filesystem::file_time_type, std::filesystem::path>> shipped;
  for (const auto& entry : std::filesystem::directory_iterator(options_.folder)) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(AttemptFiles(entry.path()).shipped(), error);
    if (!error) shipped.emplace_back(time, entry.path());
  }
  std::sort(shipped.begin(), shipped.end());
  for (std::size_t i = 0; i + options_.keep_ended < shipped.size(); ++i) {
    std::error_code ignored;
    std::filesystem::remove_all(shipped[i].second, ignored);
  }
}

void AttemptSet::stop_all(std::optional<double> grace_seconds) {
  std::lock_guard lock(mutex_);
  stopping_ = true;
  for (const auto& [key, attempt] : attempts_) {
    attempt->request_stop({grace_seconds.value_or(attempt->record().stop_grace_seconds), false, false,
                           "the worker is shutting down"});
  }
}

std::size_t AttemptSet::live_count() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(attempts_.begin(), attempts_.end(), [](const auto& item) {
    return item.second->stage() != Attempt::Stage::kEnded;
  }));
}

std::size_t AttemptSet::undelivered_count() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::size_t>(std::count_if(attempts_.begin(), attempts_.end(), [](const auto& item) {
    return item.second->stage() == Attempt::Stage::kEnded && !item.second->delivered();
  }));
}

}  // namespace coat::agent
