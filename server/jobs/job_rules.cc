#include "server/jobs/job_rules.h"

#include <algorithm>
#include <chrono>

#include <google/protobuf/util/time_util.h>

#include "proto/common/byte_size.h"
#include "server/jobs/names.h"
#include "server/jobs/retry.h"
#include "server/jobs/transitions.h"

namespace coat::jobs {
namespace {

using google::protobuf::util::TimeUtil;

google::protobuf::Timestamp stamp(SystemTime time) {
  return TimeUtil::MillisecondsToTimestamp(unix_ms(time));
}

// One application of a happening. Each rule_* function below is one row of the rules.
class Application {
 public:
  Application(const JobRecord& record, const Context& context) : context_(context) { out_.record = record; }

  Outcome take() { return std::move(out_); }

  void rule(const Evaluated& happening) {
    if (job().state() != v1::Job::PENDING) return;
    out_.record.row.estimate = happening.estimate;
    out_.job_changed = true;
    job_event("evaluated", job().state(),
              "needs " + bytes_text(happening.estimate.memory().total_bytes()) + " on each device");
  }

  void rule(const EvaluationFailed& happening) {
    if (job().state() != v1::Job::PENDING || current()) return;
    *job().mutable_exit() = happening.exit;
    end_job(v1::Job::FAILED, "failed", happening.exit.message());
  }

  void rule(const Assigned& happening) {
    if (job().state() != v1::Job::PENDING || current()) return;
    store::AttemptRow row;
    row.job = job().name();
    row.number = static_cast<int>(out_.record.attempts.size()) + 1;
    row.attempt.set_name(attempt_name(row.job, row.number));
    row.attempt.set_epoch(happening.epoch);
    row.attempt.set_state(v1::Attempt::ASSIGNED);
    row.attempt.set_worker(happening.worker);
    for (const int device : happening.devices) row.attempt.add_devices(device);
    *row.attempt.mutable_create_time() = stamp(context_.now);
    row.attempt.set_resume_step(job().progress().checkpoint_step());
    out_.record.attempts.push_back(row);
    job().set_attempt_count(row.number);
    out_.record.row.not_before_ms = 0;
    attempt_event("assigned", v1::Attempt::STATE_UNSPECIFIED, "on " + happening.worker);
    move_job(v1::Job::RUNNING, "started",
             "attempt " + std::to_string(row.number) + " on " + happening.worker);
  }

  void rule(const Reported& happening);

  void rule(const WorkerWentSilent&) {
    store::AttemptRow* row = current();
    if (!row || row->attempt.state() == v1::Attempt::LOST) return;
    move_attempt(v1::Attempt::LOST, "lost", row->attempt.worker() + " is silent");
    if (job().state() == v1::Job::RUNNING)
      move_job(v1::Job::PENDING, "lost", row->attempt.worker() + " is silent");
  }

  void rule(const AttemptMissing&) {
    store::AttemptRow* row = current();
    if (!row) return;
    v1::ExitStatus exit;
    exit.set_reason(v1::ExitStatus::WORKER_LOST);
    exit.set_exit_code(-1);
    exit.set_message(row->attempt.worker() + " does not know this attempt any more");
    end_attempt(v1::Attempt::FAILED, "failed", exit);
    after_end(exit);
  }

  void rule(const FenceDue&) {
    store::AttemptRow* row = current();
    if (!row || row->attempt.state() != v1::Attempt::LOST) return;
    v1::ExitStatus exit;
    exit.set_reason(v1::ExitStatus::WORKER_LOST);
    exit.set_exit_code(-1);
    exit.set_message(row->attempt.worker() + " was silent for too long; the attempt was given up");
    end_attempt(v1::Attempt::FENCED, "fenced", exit);
    after_end(exit);
  }

  void rule(const CancelRequested&) {
    if (store::is_terminal(job().state()) || job().cancel_requested()) return;
    job().set_cancel_requested(true);
    out_.job_changed = true;
    store::AttemptRow* row = current();
    if (!row) {
      end_job(v1::Job::CANCELLED, "cancelled", "before it was started");
      return;
    }
    move_job(v1::Job::CANCELLING, "cancelling", "cancel was requested");
    if (row->attempt.state() != v1::Attempt::LOST) {
      if (row->attempt.state() != v1::Attempt::STOPPING)
        move_attempt(v1::Attempt::STOPPING, "stopping", "cancel was requested");
      out_.stop_attempt = true;
    }
  }

 private:
  v1::Job& job() { return out_.record.row.job; }
  store::AttemptRow* current() { return out_.record.current(); }

  v1::Event& event(const std::string& object, const std::string& verb, const std::string& message) {
    v1::Event& event = out_.events.emplace_back();
    *event.mutable_event_time() = stamp(context_.now);
    event.set_object(object);
    event.set_verb(verb);
    event.set_actor(context_.actor);
    event.set_message(message);
    return event;
  }

  void job_event(const std::string& verb, v1::Job::State from, const std::string& message) {
    v1::Event& made = event(job().name(), verb, message);
    made.set_from_state(v1::Job::State_Name(from));
    made.set_to_state(v1::Job::State_Name(job().state()));
    out_.job_changed = true;
  }

  // Of the last attempt.
  void attempt_event(const std::string& verb, v1::Attempt::State from, const std::string& message) {
    const v1::Attempt& attempt = out_.record.attempts.back().attempt;
    v1::Event& made = event(attempt.name(), verb, message);
    if (from != v1::Attempt::STATE_UNSPECIFIED) made.set_from_state(v1::Attempt::State_Name(from));
    made.set_to_state(v1::Attempt::State_Name(attempt.state()));
    touch_attempt();
  }

  void touch_attempt() { out_.attempts_changed = {out_.record.attempts.size() - 1}; }

  void move_job(v1::Job::State to, const std::string& verb, const std::string& message) {
    const v1::Job::State from = job().state();
    move(job(), to);
    job_event(verb, from, message);
  }

  void end_job(v1::Job::State to, const std::string& verb, const std::string& message) {
    *job().mutable_end_time() = stamp(context_.now);
    out_.record.row.not_before_ms = 0;
    move_job(to, verb, message);
  }

  void move_attempt(v1::Attempt::State to, const std::string& verb, const std::string& message) {
    v1::Attempt& attempt = out_.record.attempts.back().attempt;
    const v1::Attempt::State from = attempt.state();
    move(attempt, to);
    attempt_event(verb, from, message);
  }

  void end_attempt(v1::Attempt::State to, const std::string& verb, const v1::ExitStatus& exit) {
    v1::Attempt& attempt = out_.record.attempts.back().attempt;
    *attempt.mutable_exit() = exit;
    *attempt.mutable_end_time() = stamp(context_.now);
    move_attempt(to, verb, exit.message());
    out_.ended = exit.reason();
  }

  void after_end(const v1::ExitStatus& exit);
  void give_back(const v1::ExitStatus& exit, bool counted);
  void take_progress(const v1::AttemptReport& report);
  void bring_back();
  void end_as_reported(const v1::AttemptReport& report);

  Context context_;
  Outcome out_;
};

// The attempt has ended without success: what becomes of the job.
void Application::after_end(const v1::ExitStatus& exit) {
  if (job().cancel_requested()) {
    end_job(v1::Job::CANCELLED, "cancelled", "its attempt has ended");
    return;
  }
  const RetryClass retry = retry_class(exit.reason());
  const std::int64_t limit = job().spec().retry().max_retries();
  if (retry == RetryClass::kFree || (retry == RetryClass::kCounted && job().retries_used() < limit)) {
    give_back(exit, retry == RetryClass::kCounted);
    return;
  }
  *job().mutable_exit() = exit;
  std::string message = exit.message();
  if (retry == RetryClass::kCounted)
    message += " (" + std::to_string(limit) + " of " + std::to_string(limit) + " retries used)";
  end_job(v1::Job::FAILED, "failed", message);
}

// The job waits for its next attempt.
void Application::give_back(const v1::ExitStatus& exit, bool counted) {
  if (counted) {
    job().set_retries_used(job().retries_used() + 1);
    out_.retry_counted = true;
  }
  const auto delay = retry_delay(exit.reason(), job().retries_used());
  out_.record.row.not_before_ms = delay.count() > 0 ? unix_ms(context_.now) + delay.count() : 0;
  const std::string message = v1::ExitStatus::Reason_Name(exit.reason()) + ": " + exit.message();
  if (job().state() == v1::Job::RUNNING) {
    move_job(v1::Job::PENDING, "requeued", message);
  } else {
    job_event("requeued", job().state(), message);
  }
}

void Application::take_progress(const v1::AttemptReport& report) {
  if (!report.has_progress()) return;
  *out_.record.attempts.back().attempt.mutable_progress() = report.progress();
  *job().mutable_progress() = report.progress();
  out_.progress_changed = true;
}

// A LOST attempt whose worker is back with it.
void Application::bring_back() {
  if (current()->attempt.state() != v1::Attempt::LOST) return;
  const bool cancelled = job().cancel_requested();
  move_attempt(cancelled ? v1::Attempt::STOPPING : v1::Attempt::RUNNING, "returned", "its worker is back");
  if (job().state() == v1::Job::PENDING) move_job(v1::Job::RUNNING, "returned", "its worker is back");
  out_.stop_attempt = cancelled;
}

void Application::end_as_reported(const v1::AttemptReport& report) {
  store::AttemptRow& row = out_.record.attempts.back();
  row.log_bytes = report.log_bytes();
  row.metrics_bytes = report.metrics_bytes();
  if (report.has_summary()) *job().mutable_summary() = report.summary();
  v1::ExitStatus exit = report.exit();
  if (report.state() == v1::Attempt::SUCCEEDED) {
    exit.set_reason(v1::ExitStatus::DONE);
    end_attempt(v1::Attempt::SUCCEEDED, "succeeded", exit);
    *job().mutable_exit() = exit;
    end_job(v1::Job::SUCCEEDED, "succeeded", exit.message());
    return;
  }
  if (exit.reason() == v1::ExitStatus::REASON_UNSPECIFIED || exit.reason() == v1::ExitStatus::DONE) {
    exit.set_reason(report.state() == v1::Attempt::CANCELLED ? v1::ExitStatus::CANCELLED
                                                             : v1::ExitStatus::INTERNAL);
  }
  const bool stopped = report.state() == v1::Attempt::CANCELLED;
  end_attempt(report.state(), stopped ? "cancelled" : "failed", exit);
  after_end(exit);
}

void Application::rule(const Reported& happening) {
  const v1::AttemptReport& report = happening.report;
  const std::optional<AttemptName> name = parse_attempt_name(report.attempt());
  const auto count = static_cast<int>(out_.record.attempts.size());
  if (!name || name->number < 1 || name->number > count) {
    out_.stale = true;
    return;
  }
  store::AttemptRow& row = out_.record.attempts[static_cast<std::size_t>(name->number - 1)];
  if (row.attempt.epoch() != report.epoch() || given_up(row.attempt)) {
    out_.stale = true;
    return;
  }
  out_.acknowledge = report.report_sequence() > 0;
  if (store::is_terminal(row.attempt.state())) return;

  bring_back();
  // Until now it was the newest checkpoint that had been reported.
  if (report.has_resume_step() && report.resume_step() != row.attempt.resume_step()) {
    row.attempt.set_resume_step(report.resume_step());
    touch_attempt();
  }
  if (report.report_sequence() == 0) {
    take_progress(report);
    return;
  }
  if (report.report_sequence() <= row.report_sequence) return;
  row.report_sequence = report.report_sequence();
  touch_attempt();
  take_progress(report);
  if (store::is_terminal(report.state()) && report.state() != v1::Attempt::FENCED) {
    end_as_reported(report);
    return;
  }
  if (report.state() == v1::Attempt::RUNNING && row.attempt.state() == v1::Attempt::ASSIGNED) {
    move_attempt(v1::Attempt::RUNNING, "running", "its trainer runs");
  } else if (report.state() == v1::Attempt::STOPPING && row.attempt.state() != v1::Attempt::STOPPING) {
    move_attempt(v1::Attempt::STOPPING, "stopping", report.exit().message());
  }
  if (!row.attempt.has_start_time() && row.attempt.state() != v1::Attempt::ASSIGNED) {
    *row.attempt.mutable_start_time() = stamp(context_.now);
    if (!job().has_start_time()) *job().mutable_start_time() = stamp(context_.now);
    out_.job_changed = true;
  }
}

}  // namespace

bool given_up(const v1::Attempt& attempt) {
  return attempt.state() == v1::Attempt::FENCED || attempt.exit().reason() == v1::ExitStatus::WORKER_LOST;
}

std::int64_t unix_ms(SystemTime time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
}

const store::AttemptRow* JobRecord::current() const {
  return attempts.empty() || store::is_terminal(attempts.back().attempt.state()) ? nullptr : &attempts.back();
}

store::AttemptRow* JobRecord::current() {
  return attempts.empty() || store::is_terminal(attempts.back().attempt.state()) ? nullptr : &attempts.back();
}

Outcome create_job(const std::string& name, const std::string& uid, const v1::JobSpec& spec,
                   const Context& context) {
  Outcome out;
  v1::Job& job = out.record.row.job;
  job.set_name(name);
  job.set_uid(uid);
  *job.mutable_spec() = spec;
  job.set_state(v1::Job::PENDING);
  *job.mutable_create_time() = stamp(context.now);
  v1::Event& event = out.events.emplace_back();
  *event.mutable_event_time() = stamp(context.now);
  event.set_object(name);
  event.set_verb("created");
  event.set_actor(context.actor);
  event.set_to_state(v1::Job::State_Name(v1::Job::PENDING));
  out.job_changed = true;
  return out;
}

Outcome apply(const JobRecord& record, const Happening& happening, const Context& context) {
  Application application(record, context);
  std::visit([&application](const auto& what) { application.rule(what); }, happening);
  return application.take();
}

}  // namespace coat::jobs
