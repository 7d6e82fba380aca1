#include "worker/agent/daemon.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <google/protobuf/util/time_util.h>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "proto/common/metrics.h"
#include "worker/agent/attempt_set.h"
#include "worker/agent/durable_file.h"
#include "worker/agent/estimate_runner.h"
#include "worker/agent/inventory.h"
#include "worker/agent/job_metrics.h"
#include "worker/agent/state_folder.h"

namespace coat::agent {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kHealthInterval{5};
constexpr double kHurriedGraceSeconds = 5;
// For the controller to take the last reports of a worker that shuts down. They stay on disk anyway.
constexpr std::chrono::seconds kDeliveryPatience{10};

std::string hostname() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

std::unique_ptr<Inventory> take_inventory(const WorkerOptions& options, Clock& clock) {
  std::string why;
  auto nvml = Nvml::load(&why);
  if (!nvml) spdlog::info("no GPU: {}", why);
  auto inventory = std::make_unique<Inventory>(
      InventoryOptions{options.cpu_devices, options.memory_limit_bytes, options.id}, std::move(nvml), clock);
  if (inventory->devices().empty()) {
    throw std::runtime_error("--cpu-devices 0, and there is no GPU (" + why +
                             "): this worker has nothing to offer; write --cpu-devices 1");
  }
  for (const v1::Device& device : inventory->devices()) {
    spdlog::info("device {}: {} {}, {:.1f} GiB for a job", device.index(),
                 v1::Device::Kind_Name(device.kind()), device.model(),
                 static_cast<double>(device.memory_bytes()) / (1 << 30));
  }
  return inventory;
}

// A full disk or a folder that someone took away must not end the daemon: it is said, and tried again.
template <typename Work>
void guarded(const char* what, Work work) {
  try {
    work();
  } catch (const std::exception& error) {
    spdlog::error("{}: {}", what, error.what());
  }
}

std::string with_port(const std::string& address, int port) {
  return address.substr(0, address.rfind(':') + 1) + std::to_string(port);
}

}  // namespace

Daemon::Daemon(WorkerOptions options, Clock& clock) : options_(std::move(options)), clock_(clock) {
  // A supervisor that dies leaves its trainer to us.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  OpenedState state = open_state_folder(options_.state_dir);
  lock_ = std::move(state.lock);
  incarnation_ = state.incarnation;
  try {
    std::filesystem::create_directories(options_.checkpoint_dir);
  } catch (const std::filesystem::filesystem_error& error) {
    throw std::runtime_error("--checkpoint-dir " + options_.checkpoint_dir.string() +
                             " cannot be used: " + error.what() + "; name a folder that this user may write");
  }
  metrics_ = std::make_unique<Metrics>("coat-worker", COAT_VERSION);
  metrics_server_ = std::make_unique<MetricsServer>(options_.metrics_listen, *metrics_);
  job_metrics_ = std::make_unique<JobMetrics>(*metrics_, clock_, options_.metrics_linger);
  inventory_ = take_inventory(options_, clock_);

  AttemptSetOptions attempts;
  attempts.folder = options_.state_dir / "attempts";
  attempts.checkpoint_dir = options_.checkpoint_dir;
  attempts.trainer = options_.trainer;
  attempts.supervisor = options_.supervisor;
  attempts.daemon_lock = daemon_lock_path(options_.state_dir);
  attempts.orphan_grace_seconds = std::chrono::duration<double>(options_.orphan_grace).count();
  attempts_ = std::make_unique<AttemptSet>(attempts, *inventory_, clock_);
  attempts_->load();

  EstimateRunnerOptions estimates;
  estimates.folder = options_.state_dir / "estimates";
  estimates.trainer = options_.trainer;
  estimates.worker_id = options_.id;
  estimate_runner_ = std::make_unique<EstimateRunner>(estimates, *inventory_);

  replace_file(
      options_.state_dir / "endpoints.json",
      nlohmann::json{{"metrics", with_port(options_.metrics_listen, metrics_server_->port())}}.dump() + "\n");
  StreamContent& content = *this;
  stream_ = std::make_unique<ControllerStream>(ControllerStreamOptions{options_.controller}, content);
  stream_->start();
  loop_thread_ = std::thread([this] { loop(); });
}

Daemon::~Daemon() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_condition_.notify_all();
  loop_thread_.join();
  stream_->stop();
  estimate_runner_.reset();
  std::error_code ignored;
  std::filesystem::remove(options_.state_dir / "endpoints.json", ignored);
}

int Daemon::metrics_port() const { return metrics_server_->port(); }

void Daemon::loop() {
  auto health_at = clock_.now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    bool news = true;
    guarded("following the attempts", [&] {
      news = attempts_->tick([this](const AttemptView& attempt) { job_metrics_->observe(attempt); });
    });
    job_metrics_->expire();
    if (clock_.now() >= health_at) {
      health_at = clock_.now() + kHealthInterval;
      if (inventory_->check()) heartbeat_due_ = news = true;
    }
    if (news) stream_->wake();
    lock.lock();
    stop_condition_.wait_for(lock, kTick, [this] { return stopping_; });
  }
}

v1::Register Daemon::make_register() {
  {
    std::lock_guard lock(mutex_);
    ++session_;
    estimates_.clear();
  }
  v1::Register message;
  message.set_worker_id(options_.id);
  message.set_incarnation(incarnation_);
  message.set_hostname(hostname());
  message.set_version(COAT_VERSION);
  for (const v1::Device& device : inventory_->devices()) *message.add_devices() = device;
  for (v1::AttemptReport& report : attempts_->begin_session()) *message.add_attempts() = std::move(report);
  return message;
}

v1::Heartbeat Daemon::make_heartbeat() {
  v1::Heartbeat beat;
  beat.set_sequence(++heartbeats_);
  for (const v1::Device& device : inventory_->devices()) *beat.add_devices() = device;
  *beat.mutable_worker_time() = google::protobuf::util::TimeUtil::GetCurrentTime();
  return beat;
}

std::optional<v1::WorkerMessage> Daemon::next_message() {
  {
    std::lock_guard lock(mutex_);
    if (!estimates_.empty()) {
      v1::WorkerMessage message = std::move(estimates_.front());
      estimates_.pop_front();
      return message;
    }
  }
  if (heartbeat_due_.exchange(false)) {  // a device's health changed: now, not at the next beat
    v1::WorkerMessage message;
    *message.mutable_heartbeat() = make_heartbeat();
    return message;
  }
  std::optional<v1::WorkerMessage> message;
  guarded("reading an attempt's files", [&] { message = attempts_->next_message(); });
  return message;
}

void Daemon::on_message(const v1::ControllerMessage& message) {
  guarded("obeying the controller", [&] { dispatch(message); });
}

void Daemon::dispatch(const v1::ControllerMessage& message) {
  switch (message.message_case()) {
    case v1::ControllerMessage::kAssign:
      return attempts_->on_assign(message.assign());
    case v1::ControllerMessage::kStop:
      return attempts_->on_stop(message.stop());
    case v1::ControllerMessage::kFence:
      return attempts_->on_fence(message.fence());
    case v1::ControllerMessage::kReportAck:
      return attempts_->on_report_ack(message.report_ack());
    case v1::ControllerMessage::kStreamAck:
      return attempts_->on_stream_ack(message.stream_ack());
    case v1::ControllerMessage::kEstimate:
      return on_estimate_query(message.estimate());
    default:
      spdlog::warn("ignored a message that this version does not know");
  }
}

void Daemon::on_estimate_query(const v1::EstimateQuery& query) {
  std::int64_t session = 0;
  {
    std::lock_guard lock(mutex_);
    session = session_;
  }
  estimate_runner_->submit(query, [this, session](v1::EstimateResult result) {
    {
      std::lock_guard lock(mutex_);
      if (session != session_) return;  // who asked is gone
      v1::WorkerMessage message;
      *message.mutable_estimate() = std::move(result);
      estimates_.push_back(std::move(message));
    }
    stream_->wake();
  });
}

void Daemon::begin_shutdown() {
  bool hurry = false;
  {
    std::lock_guard lock(mutex_);
    hurry = ++shutdowns_ > 1;
  }
  if (hurry) {
    spdlog::info("hurrying: what still runs has {} s", kHurriedGraceSeconds);
  } else {
    spdlog::info("shutting down: trainers save and stop");
  }
  attempts_->stop_all(hurry ? std::optional(kHurriedGraceSeconds) : std::nullopt);
}

bool Daemon::drained() {
  if (attempts_->live_count() > 0) return false;
  std::lock_guard lock(mutex_);
  if (!quiet_since_) quiet_since_ = clock_.now();
  return shutdowns_ > 1 || !stream_->connected() || attempts_->undelivered_count() == 0 ||
         clock_.now() - *quiet_since_ >= kDeliveryPatience;
}

}  // namespace coat::agent
