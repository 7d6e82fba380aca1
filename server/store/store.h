// The controller's durable state: rows and the interface over them. One suite (tests/unit/server/store) holds
// every implementation to this page.
//
// Threading: commit() may be called from any thread and never blocks on the disk; batches are written in the
// order of the calls, each whole or not at all, and `done` runs on the store's own thread after the batch is
// synced to disk. Reads see what is committed; they block on the disk and may run on any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "proto/coat/v1/types.pb.h"

namespace coat::store {

// What went wrong with the disk or the database, for a person.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct JobRow {
  v1::Job job;             // without pending_status, which is made anew in every scheduling cycle
  std::int64_t order = 0;  // sequence of the job's first event: rises with creation, unique
  std::optional<v1::Estimate> estimate;
  std::int64_t not_before_ms = 0;  // end of the back-off, unix time; 0: none
};

struct AttemptRow {
  std::string job;  // "jobs/J"
  int number = 0;   // counted from 1
  v1::Attempt attempt;
  std::int64_t report_sequence = 0;  // of the newest report that was applied
  std::int64_t log_bytes = -1;       // totals of an ended attempt's streams; -1: not known
  std::int64_t metrics_bytes = -1;
};

struct WorkerRow {
  v1::Worker worker;
};

// An idempotent submit: the same id with the same spec is the same job.
struct RequestRow {
  std::string id;
  std::string spec;  // the serialized spec
  std::string job;
  std::int64_t create_ms = 0;
};

// An event and the job that it belongs to ("" for a worker's).
struct EventRow {
  v1::Event event;
  std::string job;
};

// One atomic change. Rows replace those with the same key.
struct Batch {
  std::vector<JobRow> jobs;
  std::vector<AttemptRow> attempts;
  std::vector<WorkerRow> workers;
  std::vector<EventRow> events;
  std::vector<RequestRow> requests;
  std::int64_t epoch = 0;                     // the newest epoch given out; 0: unchanged
  std::int64_t prune_requests_before_ms = 0;  // forget older request ids; 0: none
  std::int64_t prune_events_through = 0;      // forget events up to this sequence; 0: none

  bool empty() const {
    return jobs.empty() && attempts.empty() && workers.empty() && events.empty() && requests.empty() &&
           epoch == 0 && prune_requests_before_ms == 0 && prune_events_through == 0;
  }
};

// Everything that the controller keeps in memory.
struct LoadedState {
  std::vector<JobRow> live_jobs;     // not terminal, oldest first
  std::vector<AttemptRow> attempts;  // of the live jobs, by job and number
  std::vector<WorkerRow> workers;
  std::vector<RequestRow> requests;
  std::int64_t last_sequence = 0;
  std::int64_t pruned_through = 0;  // events up to here are gone
  std::int64_t epoch = 0;
  std::map<int, std::int64_t> jobs_by_state;  // v1::Job::State -> count, of all jobs
};

struct JobQuery {
  std::int64_t before_order = 0;  // 0: from the newest
  int limit = 50;
  std::int64_t max_bytes = 3 << 20;  // of messages; at least one job is returned
  std::vector<v1::Job::State> states;
  std::string name_prefix;
  std::map<std::string, std::string> labels;
};

struct JobPage {
  std::vector<JobRow> jobs;  // newest first
  bool more = false;
};

struct EventQuery {
  std::int64_t after_sequence = 0;
  std::string job;  // "": of all jobs; a worker's own events are never returned
  int limit = 256;
};

class Store {
 public:
  // `error` is empty after success. A failed batch has changed nothing; so have those that were grouped with
  // it.
  using Done = std::function<void(const std::string& error)>;

  virtual ~Store() = default;

  virtual LoadedState load() = 0;
  // A terminal job or attempt whose state would change fails the batch.
  virtual void commit(Batch batch, Done done) = 0;

  // Reads throw StoreError.
  virtual std::optional<JobRow> find_job(const std::string& name) = 0;
  virtual std::vector<AttemptRow> find_attempts(const std::string& job) = 0;  // oldest first
  virtual JobPage list_jobs(const JobQuery& query) = 0;
  virtual std::vector<EventRow> list_events(const EventQuery& query) = 0;  // oldest first
};

bool is_terminal(v1::Job::State state);
bool is_terminal(v1::Attempt::State state);

}  // namespace coat::store
