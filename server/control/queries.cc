// Get, list and watch: live jobs from memory, ended ones from the store.
#include <algorithm>
#include <utility>

#include "server/control/controller.h"

namespace coat::control {
namespace {

constexpr int kWatchPage = 256;

ServiceError out_of_range(const std::string& reason, const std::string& message, const WatchRange& range) {
  ServiceError error;
  error.code = grpc::StatusCode::OUT_OF_RANGE;
  error.reason = reason;
  error.message = message;
  error.metadata = {{"oldest_sequence", std::to_string(range.pruned_through + 1)},
                    {"newest_sequence", std::to_string(range.newest)}};
  return error;
}

ServiceError in_future(std::int64_t after_sequence, const WatchRange& range) {
  return out_of_range("SEQUENCE_IN_FUTURE",
                      "after_sequence " + std::to_string(after_sequence) +
                          " is newer than the newest event, " + std::to_string(range.newest) +
                          "; was the service's state put back? Start again from 0",
                      range);
}

ServiceError pruned(const WatchRange& range) {
  return out_of_range("EVENTS_PRUNED",
                      "events up to " + std::to_string(range.pruned_through) +
                          " are not kept any more; list the jobs, and watch from a job's last_sequence",
                      range);
}

// The attempt whose event it is; nothing for a job's own.
const v1::Attempt* attempt_of(const v1::Event& event, const std::vector<store::AttemptRow>& attempts) {
  for (const store::AttemptRow& row : attempts) {
    if (row.attempt.name() == event.object()) return &row.attempt;
  }
  return nullptr;
}

}  // namespace

void Controller::get_job(std::string name, Done<v1::Job> done) {
  on_state(done, [this, name = std::move(name), done] {
    const LiveJob* job = live(name);
    if (!job) {
      answer_stored_job(name, done);
      return;
    }
    // What is not committed yet is not shown.
    journal_.after([answer = shown(*job), done](bool durable) {
      if (durable) {
        done(answer);
      } else {
        done(store_failed("its last change was not saved"));
      }
    });
  });
}

void Controller::answer_stored_job(const std::string& name, const Done<v1::Job>& done) {
  on_pool(done, [this, name, done] {
    const std::optional<store::JobRow> row = store_.find_job(name);
    if (row) {
      done(row->job);
    } else {
      done(not_found("job", name));
    }
  });
}

void Controller::list_jobs(store::JobQuery query, Done<JobList> done) {
  on_pool(done, [this, query = std::move(query), done] {
    store::JobPage page = store_.list_jobs(query);
    JobList list;
    if (page.more) list.next_before_order = page.jobs.back().order;
    for (store::JobRow& row : page.jobs) list.jobs.push_back(std::move(row.job));
    // Progress and the reason for waiting are newer in memory.
    on_state(done, [this, list = std::move(list), done]() mutable {
      for (v1::Job& job : list.jobs) {
        const LiveJob* found = live(job.name());
        if (!found || found->record.row.job.state() != job.state()) continue;
        *job.mutable_progress() = found->record.row.job.progress();
        if (!found->record.row.job.has_progress()) job.clear_progress();
        if (job.state() == v1::Job::PENDING) *job.mutable_pending_status() = found->pending;
      }
      done(std::move(list));
    });
  });
}

void Controller::list_attempts(std::string name, Done<std::vector<v1::Attempt>> done) {
  on_state(done, [this, name = std::move(name), done] {
    if (const LiveJob* job = live(name)) {
      std::vector<v1::Attempt> attempts;
      for (const store::AttemptRow& row : job->record.attempts) attempts.push_back(row.attempt);
      journal_.after([attempts = std::move(attempts), done](bool durable) {
        if (durable) {
          done(attempts);
        } else {
          done(store_failed("the last change was not saved"));
        }
      });
      return;
    }
    on_pool(done, [this, name, done] {
      if (!store_.find_job(name)) {
        done(not_found("job", name));
        return;
      }
      std::vector<v1::Attempt> attempts;
      for (store::AttemptRow& row : store_.find_attempts(name)) attempts.push_back(std::move(row.attempt));
      done(std::move(attempts));
    });
  });
}

void Controller::list_workers(Done<std::vector<v1::Worker>> done) {
  on_state(done, [this, done] {
    std::map<std::string, std::vector<std::string>> held;
    for (const auto& [name, job] : jobs_) {
      if (const store::AttemptRow* row = job.record.current())
        held[row->attempt.worker()].push_back(row->attempt.name());
    }
    std::vector<v1::Worker> workers;
    for (const auto& [name, entry] : workers_.entries()) {
      v1::Worker& worker = workers.emplace_back(entry.worker);
      for (const std::string& attempt : held[name]) worker.add_attempts(attempt);
    }
    done(std::move(workers));
  });
}

void Controller::watch(std::string name, std::int64_t after_sequence, bool first,
                       std::shared_ptr<WatchSink> sink, Done<WatchStep> done) {
  on_state(done, [this, name = std::move(name), after_sequence, first, sink = std::move(sink), done] {
    const LiveJob* job = name.empty() ? nullptr : live(name);
    WatchRange range{
        .after = after_sequence, .newest = journal_.durable_sequence(), .pruned_through = pruned_through_};
    if (first && after_sequence > journal_.last_sequence()) {
      done(in_future(after_sequence, range));
      return;
    }
    if (first && name.empty() && after_sequence < pruned_through_) {
      done(pruned(range));
      return;
    }
    if (job) range.newest = std::min(range.newest, job->record.row.job.last_sequence());
    if ((job || name.empty()) && after_sequence >= range.newest) {
      done(attach(name, job, after_sequence, sink));
    } else {
      watch_stored(name, range, first, done);
    }
  });
}

WatchStep Controller::attach(const std::string& name, const LiveJob* job, std::int64_t after_sequence,
                             const std::shared_ptr<WatchSink>& sink) {
  WatchStep step;
  step.after_sequence = after_sequence;
  step.live = watchers_.add(name, after_sequence, sink);
  if (job && job->record.row.job.last_sequence() <= journal_.durable_sequence()) {
    auto now = std::make_shared<v1::WatchJobsResponse>();
    *now->mutable_job() = shown(*job);
    step.responses.push_back(std::move(now));
  }
  return step;
}

// A page of stored events, each with the job as it is now.
void Controller::watch_stored(const std::string& name, const WatchRange& range, bool first,
                              const Done<WatchStep>& done) {
  on_pool(done, [this, name, range, first, done] {
    std::optional<store::JobRow> watched;
    if (!name.empty()) watched = store_.find_job(name);
    if (!name.empty() && !watched) {
      done(not_found("job", name));
      return;
    }
    if (first && watched && range.after < range.pruned_through && watched->order <= range.pruned_through) {
      done(pruned(range));
      return;
    }
    const std::vector<store::EventRow> events = store_.list_events({range.after, name, kWatchPage});
    WatchStep step;
    step.responses = with_jobs(events);
    step.after_sequence = events.empty() ? range.after : events.back().event.sequence();
    if (events.size() < static_cast<std::size_t>(kWatchPage)) {
      // What lies between the last of these and the newest are events of other objects.
      step.after_sequence = std::max(step.after_sequence, range.newest);
      step.ended = watched && store::is_terminal(watched->job.state());
    }
    done(std::move(step));
  });
}

std::vector<std::shared_ptr<const v1::WatchJobsResponse>> Controller::with_jobs(
    const std::vector<store::EventRow>& events) {
  std::map<std::string, std::pair<v1::Job, std::vector<store::AttemptRow>>> seen;
  std::vector<std::shared_ptr<const v1::WatchJobsResponse>> responses;
  for (const store::EventRow& row : events) {
    auto [entry, added] = seen.try_emplace(row.job);
    if (added) {
      if (const auto found = store_.find_job(row.job)) entry->second.first = found->job;
      entry->second.second = store_.find_attempts(row.job);
    }
    auto response = std::make_shared<v1::WatchJobsResponse>();
    *response->mutable_event() = row.event;
    *response->mutable_job() = entry->second.first;
    if (const v1::Attempt* attempt = attempt_of(row.event, entry->second.second)) {
      *response->mutable_attempt() = *attempt;
    }
    responses.push_back(std::move(response));
  }
  return responses;
}

void Controller::unwatch(std::int64_t live) {
  thread_->post([this, live] { watchers_.remove(live); });
}

}  // namespace coat::control
