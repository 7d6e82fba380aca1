// What happens to a job: pure functions (job with its attempts, happening) -> (the same after it, events,
// what to do). The caller numbers the events, writes everything in one transaction and acts after the commit.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "proto/coat/v1/types.pb.h"
#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/clock.h"
#include "server/store/store.h"

namespace coat::jobs {

struct JobRecord {
  store::JobRow row;
  std::vector<store::AttemptRow> attempts;  // oldest first

  // The attempt that holds devices: the last one, unless it has ended.
  const store::AttemptRow* current() const;
  store::AttemptRow* current();
};

// A worker's trainer looked at the job's data and memory.
struct Evaluated {
  v1::Estimate estimate;
};
struct EvaluationFailed {
  v1::ExitStatus exit;
};
// The scheduler placed it.
struct Assigned {
  std::string worker;  // "workers/W"
  std::vector<int> devices;
  std::int64_t epoch = 0;
};
// The worker says how an attempt is.
struct Reported {
  v1::AttemptReport report;
};
// The worker of its current attempt went silent for longer than its lease.
struct WorkerWentSilent {};
// That worker registered and does not know the attempt.
struct AttemptMissing {};
// The worker has been silent too long: another attempt may start.
struct FenceDue {};
struct CancelRequested {};

using Happening = std::variant<Evaluated, EvaluationFailed, Assigned, Reported, WorkerWentSilent,
                               AttemptMissing, FenceDue, CancelRequested>;

struct Context {
  SystemTime now;
  std::string actor;  // "controller", "workers/W" or a peer
};

struct Outcome {
  JobRecord record;
  bool job_changed = false;                   // write record.row
  std::vector<std::size_t> attempts_changed;  // write these of record.attempts
  std::vector<v1::Event> events;              // oldest first, without sequence
  bool progress_changed = false;              // only that: nothing to write
  bool stop_attempt = false;  // tell the worker to stop the current attempt, because the user cancelled
  // Of Reported:
  bool stale = false;        // an unknown or given-up attempt, or another epoch: answer Fence
  bool acknowledge = false;  // answer AttemptReportAck after the commit
  // Why the attempt that ended just now did so; UNSPECIFIED: none ended.
  v1::ExitStatus::Reason ended = v1::ExitStatus::REASON_UNSPECIFIED;
  bool retry_counted = false;

  bool changed() const { return job_changed || !attempts_changed.empty() || !events.empty(); }
};

// A new PENDING job; `row.order` and the event's sequence are the caller's.
Outcome create_job(const std::string& name, const std::string& uid, const v1::JobSpec& spec,
                   const Context& context);

// A happening that does not concern the job as it is (a report of an ended attempt, a cancel of an ended job)
// changes nothing: Outcome.changed() is false.
Outcome apply(const JobRecord& record, const Happening& happening, const Context& context);

// Nothing that a worker says of this attempt counts any more: it was fenced, or ended without its worker.
bool given_up(const v1::Attempt& attempt);

std::int64_t unix_ms(SystemTime time);

}  // namespace coat::jobs
