// Applies what happened to a job: in memory, in the batch of this turn, and after the commit to whoever is to
// know.
#include <utility>

#include <spdlog/spdlog.h>

#include "server/control/controller.h"
#include "server/control/metric_label.h"

namespace coat::control {

Controller::LiveJob* Controller::live(const std::string& job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

v1::Job Controller::shown(const LiveJob& job) const {
  v1::Job shown = job.record.row.job;
  if (shown.state() == v1::Job::PENDING && job.pending.reason() != v1::PendingStatus::REASON_UNSPECIFIED) {
    *shown.mutable_pending_status() = job.pending;
  }
  return shown;
}

void Controller::change(const std::string& name, const jobs::Happening& happening, const std::string& actor) {
  if (LiveJob* job = live(name)) apply(*job, happening, actor);
}

jobs::Outcome Controller::apply(LiveJob& job, const jobs::Happening& happening, const std::string& actor) {
  jobs::Outcome outcome = jobs::apply(job.record, happening, {clock_.system_now(), actor});
  if (outcome.changed()) {
    record(job, outcome);
    publish(job, outcome);
  } else if (outcome.progress_changed) {
    job.record = outcome.record;
  }
  if (outcome.progress_changed && !outcome.changed()) publish_progress(job, clock_.now());
  return outcome;
}

void Controller::record(LiveJob& job, jobs::Outcome& outcome) {
  v1::Job& message = outcome.record.row.job;
  const v1::Job::State before = job.record.row.job.state();
  for (v1::Event& event : outcome.events) {
    event.set_sequence(journal_.next_sequence());
    message.set_last_sequence(event.sequence());
    journal_.batch().events.push_back({event, message.name()});
  }
  if (outcome.record.row.order == 0) outcome.record.row.order = message.last_sequence();
  for (const std::size_t index : outcome.attempts_changed) {
    journal_.batch().attempts.push_back(outcome.record.attempts[index]);
  }
  journal_.batch().jobs.push_back(outcome.record.row);
  job.record = outcome.record;

  if (before != message.state()) {
    if (before != v1::Job::STATE_UNSPECIFIED) --counts_[before];
    ++counts_[message.state()];
  }
  const std::int64_t wait_ms = job.record.row.not_before_ms - jobs::unix_ms(clock_.system_now());
  job.not_before = wait_ms > 0 ? clock_.now() + std::chrono::milliseconds(wait_ms) : SteadyTime{};
  if (outcome.ended != v1::ExitStatus::REASON_UNSPECIFIED) {
    job.last_failure = job.record.attempts.back().attempt.exit().message();
    count_attempt(outcome.ended, 1, outcome.retry_counted ? 1 : 0);
  }
  for (const v1::Event& event : outcome.events) {
    spdlog::info("{} {}{}{}", event.object(), event.verb(), event.message().empty() ? "" : ": ",
                 event.message());
  }
  schedule_due_ = true;
  metrics_due_ = true;
}

void Controller::count_attempt(v1::ExitStatus::Reason reason, int attempts, int retries) {
  const MetricLabels labels = {{"reason", metric_label(v1::ExitStatus::Reason_Name(reason))}};
  metrics_.add_counter("coat_attempts_total", "Attempts that ended, by reason.", labels, attempts);
  metrics_.add_counter("coat_retries_total", "Retries that were spent, by the reason of the failed attempt.",
                       labels, retries);
}

void Controller::publish(const LiveJob& job, const jobs::Outcome& outcome) {
  const std::string name = job.record.row.job.name();
  const bool terminal = store::is_terminal(job.record.row.job.state());
  std::vector<std::shared_ptr<const v1::WatchJobsResponse>> responses;
  for (const v1::Event& event : outcome.events) {
    auto response = std::make_shared<v1::WatchJobsResponse>();
    *response->mutable_event() = event;
    *response->mutable_job() = shown(job);
    if (event.object() != name) *response->mutable_attempt() = job.record.attempts.back().attempt;
    responses.push_back(std::move(response));
  }
  const std::string attempt = job.record.attempts.empty() ? "" : job.record.attempts.back().attempt.name();
  journal_.after([this, name, terminal, attempt, responses = std::move(responses)](bool durable) {
    if (!durable) return;
    for (const auto& response : responses) {
      watchers_.publish(name, response, terminal && response == responses.back());
    }
    if (terminal) {
      if (LiveJob* ended = live(name)) {
        remember(std::move(ended->record.attempts));
        jobs_.erase(name);
      }
    }
    if (attempt.empty()) return;
    const int number = static_cast<int>(std::stol(attempt.substr(attempt.rfind('/') + 1)));
    streams_.wake(attempt, [&](store::StreamKind kind) { return look_at_stream({name, number}, kind); });
  });
}

void Controller::publish_progress(LiveJob& job, SteadyTime now) {
  const std::string& name = job.record.row.job.name();
  if (store::is_terminal(job.record.row.job.state()) || !watchers_.watched(name)) return;
  if (job.published != SteadyTime{} && now < job.published + options_.progress_interval) {
    unpublished_.insert(name);
    return;
  }
  job.published = now;
  auto response = std::make_shared<v1::WatchJobsResponse>();
  *response->mutable_job() = shown(job);
  // Behind the events that are being committed, so that a watcher never sees a state before its event.
  journal_.after([this, name, response](bool durable) {
    if (durable) watchers_.publish(name, response, false);
  });
}

void Controller::write_worker(const fleet::WorkerEntry& entry, const std::string& verb,
                              const std::string& message) {
  v1::Event event;
  event.set_sequence(journal_.next_sequence());
  const std::int64_t ms = jobs::unix_ms(clock_.system_now());
  event.mutable_event_time()->set_seconds(ms / 1000);
  event.mutable_event_time()->set_nanos(static_cast<std::int32_t>(ms % 1000) * 1000000);
  event.set_object(entry.worker.name());
  event.set_verb(verb);
  event.set_actor("controller");
  event.set_to_state(v1::Worker::State_Name(entry.worker.state()));
  event.set_message(message);
  journal_.batch().events.push_back({event, ""});
  journal_.batch().workers.push_back({entry.worker});
  spdlog::info("{} {}{}{}", entry.worker.name(), verb, message.empty() ? "" : ": ", message);
  schedule_due_ = true;
  metrics_due_ = true;
}

}  // namespace coat::control
