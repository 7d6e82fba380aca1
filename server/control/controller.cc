#include "server/control/controller.h"

#include <algorithm>
#include <array>
#include <future>
#include <utility>

#include <spdlog/spdlog.h>

#include "server/control/metric_label.h"

namespace coat::control {
namespace {

constexpr std::chrono::minutes kPruneInterval{10};
constexpr std::chrono::seconds kMetricsInterval{1};
constexpr std::chrono::hours kIdle{1};

}  // namespace

Controller::Controller(Options options, Clock& clock, store::Store& store, store::AttemptFiles& files,
                       Metrics& metrics)
    : options_(std::move(options)),
      clock_(clock),
      store_(store),
      files_(files),
      metrics_(metrics),
      thread_(std::make_shared<StateThread>(clock)),
      journal_(
          store, [thread = thread_](std::function<void()> task) { return thread->post(std::move(task)); },
          [this](const std::string& error) {
            spdlog::error("the store failed: {}", error);
            if (options_.on_failure) options_.on_failure(error);
          }),
      workers_(options_.lease),
      random_(std::random_device()()) {}

Controller::~Controller() { stop(); }

ServiceError Controller::shutting_down() {
  return unavailable("SHUTTING_DOWN", "the controller is stopping; try again in a moment");
}

ServiceError Controller::store_failed(const std::string& why) {
  return unavailable("STORE_FAILED", "the controller could not use its store: " + why);
}

void Controller::start() {
  restore();
  started_ = true;
  thread_->start([this](SteadyTime now) { return tick(now); });
}

void Controller::stop() {
  auto drained = std::make_shared<std::promise<void>>();
  const bool running = started_ && thread_->post([this, drained] {
    stopping_ = true;
    end_streams();
    desk_.close_all();
    journal_.after([drained](bool) { drained->set_value(); });
  });
  if (running) drained->get_future().wait();
  pool_.stop();
  writer_.stop();
  thread_->stop();
}

void Controller::end_streams() {
  watchers_.end_all(shutting_down());
  streams_.end_all(shutting_down());
  for (auto& [name, entry] : workers_.entries()) {
    if (entry.link) entry.link->close(shutting_down());
  }
}

void Controller::restore() {
  store::LoadedState state = store_.load();
  const SteadyTime now = clock_.now();
  const std::int64_t now_ms = jobs::unix_ms(clock_.system_now());
  journal_.restore(state.last_sequence, state.epoch);
  pruned_through_ = state.pruned_through;
  counts_ = state.jobs_by_state;
  workers_.restore(state.workers, now);
  for (store::JobRow& row : state.live_jobs) {
    LiveJob& job = jobs_[row.job.name()];
    const std::int64_t left = std::clamp<std::int64_t>(row.not_before_ms - now_ms, 0, 300000);
    job.not_before = now + std::chrono::milliseconds(left);
    job.record.row = std::move(row);
  }
  int unconfirmed = 0;
  for (store::AttemptRow& row : state.attempts) {
    LiveJob* job = live(row.job);
    if (!job) continue;
    job->last_failure = row.attempt.exit().message();
    unconfirmed += store::is_terminal(row.attempt.state()) ? 0 : 1;
    job->record.attempts.push_back(std::move(row));
  }
  for (store::RequestRow& row : state.requests) requests_[row.id] = std::move(row);
  next_prune_ = now;
  schedule_due_ = true;
  for (int reason = v1::ExitStatus::DONE; reason <= v1::ExitStatus::CANCELLED; ++reason) {
    count_attempt(static_cast<v1::ExitStatus::Reason>(reason), 0, 0);
  }
  spdlog::info("recovered {} live jobs and {} workers; {} attempts wait for their workers to confirm them",
               jobs_.size(), state.workers.size(), unconfirmed);
}

SteadyTime Controller::tick(SteadyTime now) {
  if (!stopping_) {
    expire_workers(now);
    desk_.expire(now);
    if (next_retry_ && *next_retry_ <= now) schedule_due_ = true;
    if (schedule_due_ && now >= next_cycle_) schedule(now);
    const std::set<std::string> unpublished = std::exchange(unpublished_, {});
    for (const std::string& name : unpublished) {
      if (LiveJob* job = live(name)) publish_progress(*job, now);
    }
    if (now >= next_prune_) prune(now);
    if (metrics_due_ && now >= next_metrics_) {
      publish_metrics();
      metrics_due_ = false;
      next_metrics_ = now + kMetricsInterval;
    }
  }
  journal_.flush();
  return next_deadline();
}

SteadyTime Controller::next_deadline() const {
  const SteadyTime now = clock_.now();
  SteadyTime next = std::min(now + kIdle, next_prune_);
  if (stopping_) return now + kIdle;
  if (const auto at = workers_.next_deadline()) next = std::min(next, *at);
  if (const auto at = desk_.next_deadline()) next = std::min(next, *at);
  if (schedule_due_) {
    next = std::min(next, next_cycle_);
  } else if (next_retry_) {
    next = std::min(next, *next_retry_);
  }
  if (metrics_due_) next = std::min(next, next_metrics_);
  for (const std::string& name : unpublished_) {
    const auto job = jobs_.find(name);
    if (job != jobs_.end()) next = std::min(next, job->second.published + options_.progress_interval);
  }
  return next;
}

void Controller::prune(SteadyTime now) {
  next_prune_ = now + kPruneInterval;
  const std::int64_t before = jobs::unix_ms(clock_.system_now() - options_.request_id_lifetime);
  const auto removed =
      std::erase_if(requests_, [before](const auto& entry) { return entry.second.create_ms < before; });
  if (removed > 0) journal_.batch().prune_requests_before_ms = before;
  const std::int64_t through = journal_.durable_sequence() - options_.keep_events;
  if (through > pruned_through_) {
    journal_.batch().prune_events_through = through;
    pruned_through_ = through;
  }
}

void Controller::publish_metrics() {
  for (int state = v1::Job::PENDING; state <= v1::Job::CANCELLED; ++state) {
    metrics_.set_gauge("coat_jobs", "Jobs by state, ended ones too.",
                       {{"state", metric_label(v1::Job::State_Name(static_cast<v1::Job::State>(state)))}},
                       static_cast<double>(counts_[state]));
  }
  std::map<int, int> by_reason;
  for (const auto& [name, job] : jobs_) {
    if (job.record.row.job.state() == v1::Job::PENDING) ++by_reason[job.pending.reason()];
  }
  for (int reason = v1::PendingStatus::EVALUATING; reason <= v1::PendingStatus::WORKER_LOST; ++reason) {
    metrics_.set_gauge(
        "coat_pending_jobs", "Jobs that wait, by what they wait for.",
        {{"reason",
          metric_label(v1::PendingStatus::Reason_Name(static_cast<v1::PendingStatus::Reason>(reason)))}},
        by_reason[reason]);
  }
  std::array<int, 2> by_state{};
  for (const auto& [name, entry] : workers_.entries())
    ++by_state[entry.worker.state() == v1::Worker::LOST ? 1 : 0];
  metrics_.set_gauge("coat_workers", "Workers by state.", {{"state", "ready"}}, by_state[0]);
  metrics_.set_gauge("coat_workers", "Workers by state.", {{"state", "lost"}}, by_state[1]);
}

}  // namespace coat::control
