// Logs and metric samples of attempts, towards readers.
#include <utility>

#include "server/control/controller.h"
#include "server/jobs/names.h"

namespace coat::control {
namespace {

constexpr std::size_t kMaxEndedAttempts = 4096;

}  // namespace

std::optional<store::AttemptRow> Controller::find_attempt(const std::string& job, int number) {
  const std::string name = jobs::attempt_name(job, number);
  if (const LiveJob* found = live(job)) {
    for (const store::AttemptRow& row : found->record.attempts) {
      if (row.number == number) return row;
    }
    return std::nullopt;
  }
  if (const auto found = ended_.find(name); found != ended_.end()) return found->second;
  remember(store_.find_attempts(job));
  const auto found = ended_.find(name);
  if (found == ended_.end()) return std::nullopt;
  return found->second;
}

void Controller::remember(std::vector<store::AttemptRow> rows) {
  if (ended_.size() > kMaxEndedAttempts) ended_.clear();
  for (store::AttemptRow& row : rows) ended_[row.attempt.name()] = std::move(row);
}

void Controller::find_stream(std::string attempt, Done<StreamTarget> done) {
  on_state(done, [this, attempt = std::move(attempt), done] {
    const std::optional<jobs::AttemptName> name = jobs::parse_attempt_name(attempt);
    if (!name) {
      done(not_found("attempt", attempt));
      return;
    }
    std::optional<int> count;
    try {
      if (const LiveJob* job = live(name->job)) {
        count = static_cast<int>(job->record.attempts.size());
      } else if (const auto row = store_.find_job(name->job)) {
        count = row->job.attempt_count();
      }
    } catch (const store::StoreError& error) {
      done(store_failed(error.what()));
      return;
    }
    if (!count) {
      done(not_found("job", name->job));
    } else if (*count == 0 && name->number == 0) {
      done(failed_precondition("NO_ATTEMPT",
                               name->job + " has not been started yet, so there is nothing to read; get the "
                                           "job to see what it waits for"));
    } else if (name->number > *count) {
      done(not_found("attempt", attempt));
    } else {
      done(StreamTarget{name->job, name->number == 0 ? *count : name->number});
    }
  });
}

Result<StreamState> Controller::look_at_stream(const StreamTarget& target, store::StreamKind kind) {
  std::optional<store::AttemptRow> row;
  try {
    row = find_attempt(target.job, target.number);
  } catch (const store::StoreError& error) {
    return store_failed(error.what());
  }
  if (!row) return not_found("attempt", jobs::attempt_name(target.job, target.number));
  StreamState state;
  state.size = files_.size(target.job, target.number, kind);
  if (!store::is_terminal(row->attempt.state())) return state;
  const std::int64_t total = kind == store::StreamKind::kLog ? row->log_bytes : row->metrics_bytes;
  const fleet::WorkerEntry* entry = workers_.find(row->attempt.worker());
  // The rest is still to come from the worker, unless nobody hears of that one any more.
  const bool rest_may_come = entry && entry->worker.state() != v1::Worker::LOST;
  state.complete = total < 0 || state.size >= total || !rest_may_come;
  return state;
}

std::int64_t Controller::stream_state(StreamTarget target, store::StreamKind kind, std::int64_t offset,
                                      bool wait, Done<StreamState> done) {
  const std::int64_t id = ++last_stream_id_;
  on_state(done, [this, id, target = std::move(target), kind, offset, wait, done] {
    const Result<StreamState> state = look_at_stream(target, kind);
    const bool ready = !state.ok() || state.value().complete || state.value().size > offset;
    if (ready || !wait) {
      done(state);
    } else {
      streams_.wait(id, jobs::attempt_name(target.job, target.number), kind, offset, done);
    }
  });
  return id;
}

void Controller::forget_stream(std::int64_t id) {
  thread_->post([this, id] { streams_.forget(id); });
}

void Controller::read_stream(StreamTarget target, store::StreamKind kind, std::int64_t offset,
                             std::size_t limit, Done<std::string> done) {
  on_pool(done, [this, target = std::move(target), kind, offset, limit, done] {
    done(files_.read(target.job, target.number, kind, offset, limit));
  });
}

}  // namespace coat::control
