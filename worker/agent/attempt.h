// The daemon's side of one attempt: starts its supervisor, follows its files, asks it to stop, and knows what
// the controller has still to hear. Everything here can be rebuilt from the attempt's folder. Not
// thread-safe: AttemptSet locks.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/clock.h"
#include "worker/agent/attempt_record.h"
#include "worker/agent/byte_stream.h"
#include "worker/agent/conversions.h"
#include "worker/agent/event_reader.h"

namespace coat::agent {

class Attempt {
 public:
  enum class Stage {
    kWaiting,   // its devices, or an older attempt of its job, are not free yet
    kRunning,   // a supervisor lives
    kOrphaned,  // the supervisor died without a word; its trainer is being ended
    kEnded,     // exit.json is there
  };

  // A new attempt, whose folder and attempt.json are in place.
  Attempt(AttemptFiles files, AttemptRecord record, Clock& clock);
  // Takes over what an earlier daemon left in a folder. Throws std::runtime_error when attempt.json is
  // missing or damaged.
  static std::unique_ptr<Attempt> adopt(const AttemptFiles& files, Clock& clock);

  // Starts the supervisor; when that fails the attempt has ended with LAUNCH_FAILED.
  void launch(const std::filesystem::path& supervisor);
  // Ends an attempt that never ran.
  void give_up(const ExitRecord& exit);
  // Writes stop.json and wakes the supervisor. May be repeated; only a shorter grace, a user's cancel or a
  // fence adds anything.
  void request_stop(const StopRequest& request);
  // Looks at the files and processes.
  void poll();

  const AttemptRecord& record() const { return record_; }
  const AttemptFiles& files() const { return files_; }
  Stage stage() const { return stage_; }
  bool holds_devices() const { return stage_ == Stage::kRunning || stage_ == Stage::kOrphaned; }
  bool fenced() const { return stop_ && stop_->fence; }
  const std::optional<StopRequest>& stop() const { return stop_; }
  const TrainingState& training() const { return reader_.state(); }
  const std::optional<ExitRecord>& exit() const { return exit_; }
  // Of an ended attempt.
  AttemptEnd end() const { return end_of(*exit_, training().failure); }

  // RUNNING is 1, STOPPING 2, the end 3: sequences follow from the files and need no counter. 0: nothing to
  // report yet.
  std::int64_t report_sequence() const;
  // `sequence` 0 makes a progress report.
  v1::AttemptReport report(std::int64_t sequence) const;

  SteadyTime created() const { return created_; }

  // What the controller knows.
  std::int64_t reported_sequence = 0;  // sent on this connection
  bool end_acked = false;
  bool progress_changed = false;
  SteadyTime progress_sent{};
  ByteStream log_stream;
  ByteStream metrics_stream;
  // Ended, and the controller has the report and every byte (or wants to hear nothing).
  bool delivered() const;

 private:
  void read_exit(const std::string& text);
  void on_supervisor_gone();
  void end_orphans();
  bool supervisor_alive();

  AttemptFiles files_;
  AttemptRecord record_;
  Clock& clock_;
  EventReader reader_;
  SteadyTime created_;
  Stage stage_ = Stage::kWaiting;
  pid_t supervisor_pid_ = 0;  // our own child; 0: adopted
  std::optional<SupervisorRecord> processes_;
  std::optional<StopRequest> stop_;
  std::optional<SteadyTime> stop_deadline_;    // when a supervisor that lives must have ended
  std::optional<SteadyTime> orphan_deadline_;  // when the trainer without a supervisor is killed
  std::optional<ExitRecord> exit_;
};

}  // namespace coat::agent
