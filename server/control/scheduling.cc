// The scheduling cycle: a snapshot for the pure scheduler, and what follows from its decision.
#include <algorithm>
#include <utility>

#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include "server/control/controller.h"

namespace coat::control {
namespace {

constexpr int kMaxFailedEvaluations = 3;
constexpr std::int64_t kLongQueue = 1000;
constexpr std::chrono::microseconds kDelayPerWaitingJob{20};
constexpr std::chrono::seconds kEvaluationRetry{10};
const std::vector<double> kCycleBuckets = {0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 5};
const std::vector<double> kWaitBuckets = {0.1, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400};

}  // namespace

scheduler::Snapshot Controller::snapshot() const {
  scheduler::Snapshot snapshot;
  std::set<std::pair<std::string, int>> busy;
  for (const auto& [name, job] : jobs_) {
    const store::AttemptRow* current = job.record.current();
    if (current) {
      for (const int device : current->attempt.devices()) busy.insert({current->attempt.worker(), device});
    }
    if (job.record.row.job.state() != v1::Job::PENDING) continue;
    scheduler::PendingJob& pending = snapshot.jobs.emplace_back();
    pending.name = name;
    pending.order = job.record.row.order;
    const v1::ResourceSpec& wanted = job.record.row.job.spec().resources();
    pending.device = scheduler::wanted_device(wanted.device());
    pending.devices = static_cast<int>(std::clamp<std::int64_t>(wanted.devices(), 1, 1 << 20));
    if (job.record.row.estimate) pending.bytes_per_device = job.record.row.estimate->memory().total_bytes();
    pending.evaluation = job.evaluation;
    pending.not_before = job.not_before;
    pending.last_failure = job.last_failure;
    if (current) pending.silent_worker = current->attempt.worker();
  }
  for (const auto& [name, entry] : workers_.entries()) {
    if (!entry.connected() || entry.worker.state() != v1::Worker::READY) continue;
    scheduler::OfferedWorker& offered = snapshot.workers.emplace_back();
    offered.name = name;
    for (const v1::Device& device : entry.worker.devices()) {
      offered.devices.push_back({device.index(), device.kind(), device.memory_bytes(),
                                 device.health() != v1::Device::FAULTED,
                                 busy.contains({name, device.index()})});
    }
  }
  return snapshot;
}

void Controller::schedule(SteadyTime now) {
  const SteadyTime start = clock_.now();
  schedule_due_ = false;
  scheduler::Decision decision = scheduler::schedule(snapshot(), now);
  for (const scheduler::Placement& placement : decision.placements) place(placement);
  schedule_due_ = false;  // placing asks for a cycle, and this one has counted it
  for (auto& [name, status] : decision.waiting) {
    if (LiveJob* job = live(name)) take_status(*job, std::move(status), now);
  }
  next_retry_ = decision.next;
  ask_for_evaluations(now);
  const auto spent = clock_.now() - start;
  metrics_.observe("coat_scheduling_cycle_seconds", "Length of a scheduling cycle.", {},
                   std::chrono::duration<double>(spent).count(), kCycleBuckets);
  // With a long queue a cycle is expensive, and a moment's delay is nothing to a job that waits in it.
  const auto waiting = static_cast<std::int64_t>(decision.waiting.size());
  next_cycle_ = waiting > kLongQueue ? now + waiting * kDelayPerWaitingJob : now;
}

void Controller::place(const scheduler::Placement& placement) {
  LiveJob* job = live(placement.job);
  if (!job) return;
  const std::int64_t epoch = journal_.next_epoch();
  const jobs::Outcome outcome =
      apply(*job, jobs::Assigned{placement.worker, placement.devices, epoch}, "controller");
  if (outcome.record.attempts.size() == 1) {
    const auto created =
        google::protobuf::util::TimeUtil::TimestampToMilliseconds(outcome.record.row.job.create_time());
    metrics_.observe("coat_queue_wait_seconds", "From a job's creation to its first assignment.", {},
                     static_cast<double>(jobs::unix_ms(clock_.system_now()) - created) / 1e3, kWaitBuckets);
  }
  journal_.after([this, name = placement.job, worker = placement.worker, epoch](bool durable) {
    LiveJob* placed = durable ? live(name) : nullptr;
    const store::AttemptRow* row = placed ? placed->record.current() : nullptr;
    fleet::WorkerEntry* entry = workers_.find(worker);
    if (!row || row->attempt.epoch() != epoch || !entry || !entry->connected()) return;
    v1::ControllerMessage message;
    v1::Assign& assign = *message.mutable_assign();
    assign.set_attempt(row->attempt.name());
    assign.set_epoch(epoch);
    *assign.mutable_spec() = placed->record.row.job.spec();
    *assign.mutable_devices() = row->attempt.devices();
    assign.set_resume(row->number > 1);
    entry->link->send(std::move(message));
    acknowledge_streams(*entry, row->attempt.name(), epoch);
  });
}

void Controller::take_status(LiveJob& job, v1::PendingStatus status, SteadyTime now) {
  const bool new_reason = status.reason() != job.pending.reason();
  const bool changed = new_reason || status.message() != job.pending.message() ||
                       status.queue_position() != job.pending.queue_position();
  if (!changed) return;
  job.pending = std::move(status);
  if (new_reason) {
    metrics_due_ = true;
    spdlog::info("{} waits: {}: {}", job.record.row.job.name(),
                 v1::PendingStatus::Reason_Name(job.pending.reason()), job.pending.message());
  }
  publish_progress(job, now);
}

void Controller::ask_for_evaluations(SteadyTime now) {
  std::vector<LiveJob*> waiting;
  for (auto& [name, job] : jobs_) {
    if (job.record.row.job.state() != v1::Job::PENDING || job.record.row.estimate || job.asked) continue;
    if (job.ask_after > now) {
      if (!next_retry_ || job.ask_after < *next_retry_) next_retry_ = job.ask_after;
      continue;
    }
    waiting.push_back(&job);
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const LiveJob* a, const LiveJob* b) { return a->record.row.order < b->record.row.order; });
  for (LiveJob* job : waiting) {
    fleet::WorkerEntry* entry = worker_to_ask(job->record.row.job.spec());
    if (!entry || desk_.open_on(entry->worker.name()) >= options_.queries_per_worker) continue;
    job->asked = true;
    const std::string name = job->record.row.job.name();
    send_query(*entry, job->record.row.job.spec(),
               [this, name](const fleet::EstimateAnswer& answer) { evaluated(name, answer); });
  }
}

void Controller::evaluated(const std::string& name, const fleet::EstimateAnswer& answer) {
  using Kind = fleet::EstimateAnswer::Kind;
  LiveJob* job = live(name);
  schedule_due_ = true;
  if (!job || stopping_) return;
  job->asked = false;
  job->evaluation.clear();
  if (answer.kind == Kind::kEstimate) {
    v1::Estimate estimate = answer.estimate;
    complete_estimate(job->record.row.job.spec(), answer.worker, estimate);
    apply(*job, jobs::Evaluated{std::move(estimate)}, answer.worker);
    return;
  }
  if (answer.kind == Kind::kWorkerLeft) return;
  v1::ExitStatus exit = answer.error;
  if (answer.kind == Kind::kTimeout) exit.set_message(answer.worker + " did not answer in time");
  if (answer.kind != Kind::kRefused) {
    if (++job->failed_evaluations < kMaxFailedEvaluations) {
      job->ask_after = clock_.now() + kEvaluationRetry * job->failed_evaluations;
      job->evaluation = "the estimate failed and is asked for again: " + exit.message();
      return;
    }
    exit.set_reason(v1::ExitStatus::INTERNAL);
  }
  exit.set_exit_code(-1);
  apply(*job, jobs::EvaluationFailed{std::move(exit)}, answer.worker);
}

}  // namespace coat::control
