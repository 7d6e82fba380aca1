// The controller's state and everything that is done to it. Decisions come from server/jobs (what an event
// does to a job), server/fleet (who is alive) and server/scheduler (what starts where); this class applies
// them in one thread, has them committed, and only then answers, publishes and sends.
//
// Threading: every public method may be called from any thread, never blocks, and gives its result to `done`
// exactly once, on one of the controller's threads; `done` must not block either.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "proto/coat/v1/job_service.pb.h"
#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/clock.h"
#include "proto/common/metrics.h"
#include "proto/common/result.h"
#include "server/control/executor.h"
#include "server/control/journal.h"
#include "server/control/state_thread.h"
#include "server/control/stream_hub.h"
#include "server/control/watch_hub.h"
#include "server/fleet/estimate_desk.h"
#include "server/fleet/worker_book.h"
#include "server/jobs/job_rules.h"
#include "server/scheduler/scheduler.h"
#include "server/store/attempt_files.h"
#include "server/store/store.h"

namespace coat::control {

struct Options {
  std::string version;
  fleet::LeaseOptions lease;
  std::chrono::milliseconds estimate_timeout{150000};  // an agent's own limit is 120 s
  std::size_t queries_per_worker = 2;                  // estimate queries that a worker answers at a time
  std::chrono::hours request_id_lifetime{24};
  std::int64_t keep_events = 1000000;                 // older ones are forgotten
  std::chrono::milliseconds progress_interval{1000};  // a job's progress reaches watchers at most this often
  std::function<void(const std::string&)>
      on_failure;  // the store failed: the process must end. On the state thread
};

template <typename T>
using Done = std::function<void(Result<T>)>;
struct Nothing {};

struct WatchStep {
  std::vector<std::shared_ptr<const v1::WatchJobsResponse>> responses;
  std::int64_t after_sequence = 0;  // for the next step
  std::int64_t live = 0;            // not 0: the sink is attached under this id, no further step
  bool ended = false;               // nothing more will come after `responses`
};

// Which events a watcher can be given.
struct WatchRange {
  std::int64_t after = 0;
  std::int64_t newest = 0;
  std::int64_t pruned_through = 0;
};

struct StreamTarget {
  std::string job;
  int number = 0;
};

class Controller {
 public:
  Controller(Options options, Clock& clock, store::Store& store, store::AttemptFiles& files,
             Metrics& metrics);
  ~Controller();

  // Loads the state and starts to work.
  void start();
  // Ends every stream with UNAVAILABLE, finishes what was asked, and returns. Later calls are answered with
  // UNAVAILABLE.
  void stop();

  // `spec` has every field set and breaks no static rule.
  void submit(v1::JobSpec spec, std::string request_id, std::string actor, Done<v1::Job> done);
  // What a connected worker says of it; nothing where none is connected. With `must_fit`, an estimate that no
  // connected device could hold is an error.
  enum class EstimateUse { kSubmitCheck, kEstimate };
  void estimate(v1::JobSpec spec, EstimateUse use, Done<std::optional<v1::Estimate>> done);
  void cancel(std::string job, std::string actor, Done<v1::Job> done);

  void get_job(std::string job, Done<v1::Job> done);
  struct JobList {
    std::vector<v1::Job> jobs;
    std::int64_t next_before_order = 0;  // 0: no more
  };
  void list_jobs(store::JobQuery query, Done<JobList> done);
  void list_attempts(std::string job, Done<std::vector<v1::Attempt>> done);
  void list_workers(Done<std::vector<v1::Worker>> done);

  // One step of a watch: a page of what is stored after `after_sequence`, or, when there is nothing older
  // left to send, the sink is attached to what happens from now on.
  void watch(std::string job, std::int64_t after_sequence, bool first, std::shared_ptr<WatchSink> sink,
             Done<WatchStep> done);
  void unwatch(std::int64_t live);

  // The attempt that "jobs/J/attempts/N" or "jobs/J" (its latest) means.
  void find_stream(std::string attempt, Done<StreamTarget> done);
  // With `wait`: when the stream is longer than `offset` or complete; without: at once. Returns an id for
  // forget_stream().
  std::int64_t stream_state(StreamTarget target, store::StreamKind kind, std::int64_t offset, bool wait,
                            Done<StreamState> done);
  void forget_stream(std::int64_t id);
  void read_stream(StreamTarget target, store::StreamKind kind, std::int64_t offset, std::size_t limit,
                   Done<std::string> done);

  // `handled` runs when the next message of this stream may be read.
  void worker_message(std::shared_ptr<fleet::WorkerLink> link, v1::WorkerMessage message,
                      std::function<void()> handled);
  void worker_closed(std::shared_ptr<fleet::WorkerLink> link);

 private:
  struct LiveJob {
    jobs::JobRecord record;
    SteadyTime not_before{};
    std::string last_failure;
    v1::PendingStatus pending;
    // Of its evaluation.
    bool asked = false;
    int failed_evaluations = 0;
    SteadyTime ask_after{};
    std::string evaluation;
    // Of its progress towards watchers.
    SteadyTime published{};
    bool unpublished = false;
  };
  // Runs `work` there, or tells `done` that the controller is stopping.
  template <typename T, typename Work>
  void on_state(const Done<T>& done, Work work) {
    const bool posted = thread_->post([this, done, work = std::move(work)]() mutable {
      if (stopping_) {
        done(shutting_down());
      } else {
        work();
      }
    });
    if (!posted) done(shutting_down());
  }
  // The same where it may block on the disk; a StoreError goes to `done`.
  template <typename T, typename Work>
  void on_pool(const Done<T>& done, Work work) {
    const bool posted = pool_.post([done, work = std::move(work)]() mutable {
      try {
        work();
      } catch (const store::StoreError& error) {
        done(store_failed(error.what()));
      }
    });
    if (!posted) done(shutting_down());
  }
  static ServiceError shutting_down();
  static ServiceError store_failed(const std::string& why);

  // controller.cc
  SteadyTime tick(SteadyTime now);
  void restore();
  void prune(SteadyTime now);
  void publish_metrics();
  void count_attempt(v1::ExitStatus::Reason reason, int attempts, int retries);
  SteadyTime next_deadline() const;
  void end_streams();

  // changes.cc
  void change(const std::string& job, const jobs::Happening& happening, const std::string& actor);
  jobs::Outcome apply(LiveJob& job, const jobs::Happening& happening, const std::string& actor);
  void record(LiveJob& job, jobs::Outcome& outcome);
  void publish(const LiveJob& job, const jobs::Outcome& outcome);
  void publish_progress(LiveJob& job, SteadyTime now);
  v1::Job shown(const LiveJob& job) const;
  void write_worker(const fleet::WorkerEntry& entry, const std::string& verb, const std::string& message);
  LiveJob* live(const std::string& job);

  // queries.cc
  void answer_stored_job(const std::string& job, const Done<v1::Job>& done);
  void watch_stored(const std::string& job, const WatchRange& range, bool first, const Done<WatchStep>& done);
  std::vector<std::shared_ptr<const v1::WatchJobsResponse>> with_jobs(
      const std::vector<store::EventRow>& events);
  WatchStep attach(const std::string& name, const LiveJob* job, std::int64_t after_sequence,
                   const std::shared_ptr<WatchSink>& sink);

  // streams.cc
  Result<StreamState> look_at_stream(const StreamTarget& target, store::StreamKind kind);
  std::optional<store::AttemptRow> find_attempt(const std::string& job, int number);
  void remember(std::vector<store::AttemptRow> rows);

  // workers.cc
  void handle(const std::shared_ptr<fleet::WorkerLink>& link, v1::WorkerMessage& message,
              const std::function<void()>& handled);
  void enter(const std::shared_ptr<fleet::WorkerLink>& link, const v1::Register& message);
  void take_report(fleet::WorkerEntry& entry, const v1::AttemptReport& report);
  void take_chunk(fleet::WorkerEntry& entry, v1::StreamChunk& chunk, const std::function<void()>& handled);
  void acknowledge_streams(fleet::WorkerEntry& entry, const std::string& attempt, std::int64_t epoch);
  void acknowledge_report(const fleet::WorkerEntry& entry, const v1::AttemptReport& report);
  void fence(const fleet::WorkerEntry& entry, const std::string& attempt, std::int64_t epoch);
  void send_stop(const LiveJob& job);
  void mark_missing(const fleet::WorkerEntry& entry, const std::set<std::string>& listed);
  void expire_workers(SteadyTime now);
  fleet::WorkerEntry* entry_of(const fleet::WorkerLink* link);

  // scheduling.cc
  void schedule(SteadyTime now);
  scheduler::Snapshot snapshot() const;
  void place(const scheduler::Placement& placement);
  void take_status(LiveJob& job, v1::PendingStatus status, SteadyTime now);
  void ask_for_evaluations(SteadyTime now);
  void evaluated(const std::string& job, const fleet::EstimateAnswer& answer);

  // submissions.cc
  fleet::WorkerEntry* worker_to_ask(const v1::JobSpec& spec);
  void send_query(fleet::WorkerEntry& entry, const v1::JobSpec& spec, fleet::EstimateDesk::Done done);
  void complete_estimate(const v1::JobSpec& spec, const std::string& worker, v1::Estimate& estimate) const;

  Options options_;
  Clock& clock_;
  store::Store& store_;
  store::AttemptFiles& files_;
  Metrics& metrics_;
  std::shared_ptr<StateThread> thread_;
  std::atomic<bool> started_{false};
  std::atomic<std::int64_t> last_stream_id_{0};
  Executor pool_{2};
  Executor writer_{1};  // of logs and metric samples

  // All below belong to the state thread.
  Journal journal_;
  WatchHub watchers_;
  StreamHub streams_;
  fleet::WorkerBook workers_;
  fleet::EstimateDesk desk_;
  std::map<const fleet::WorkerLink*, std::string> links_;
  std::map<std::string, LiveJob> jobs_;
  std::map<std::string, store::RequestRow> requests_;
  std::map<std::string, store::AttemptRow>
      ended_;                           // by attempt name; attempts of ended jobs that were asked for lately
  std::map<int, std::int64_t> counts_;  // v1::Job::State -> jobs
  std::int64_t pruned_through_ = 0;
  bool stopping_ = false;
  bool schedule_due_ = false;
  SteadyTime next_cycle_{};
  std::optional<SteadyTime> next_retry_;
  SteadyTime next_prune_{};
  SteadyTime next_metrics_{};
  bool metrics_due_ = true;
  std::set<std::string> unpublished_;
  std::mt19937_64 random_;
};

}  // namespace coat::control
