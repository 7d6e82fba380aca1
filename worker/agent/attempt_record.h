// The files of an attempt's folder, <state-dir>/attempts/<job>.<n>.<epoch>/. They are the whole truth about
// an attempt: the daemon can die at any moment, and the next one knows from them all that the dead one knew.
//
//   file             written by           what
//   attempt.json     daemon, durably      what was assigned, before any process starts
//   spec.json        daemon               the job's spec, as the trainer reads it
//   lock             supervisor           held while the supervisor lives
//   supervisor.json  supervisor           who runs
//   stop.json        daemon               a request to stop; may be repeated with a shorter grace
//   log              trainer, directly    its standard output and error: one file, offsets from 0
//   metrics.jsonl    supervisor           one coat.v1.MetricSample a step
//   events.jsonl     supervisor           every other event: unix seconds, a space, the trainer's line
//   progress.json    supervisor           the latest step, with the latest measured quantization errors
//   supervisor.log   supervisor           its own complaints
//   exit.json        supervisor, durably  how it ended; nothing of the attempt runs any more
//   shipped          daemon               the controller has all of it: the folder may go
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "worker/agent/process_table.h"

namespace coat::agent {

// attempt.json
struct AttemptRecord {
  std::string attempt;  // "jobs/J/attempts/N"
  std::int64_t epoch = 0;
  std::vector<int> devices;
  std::vector<std::string> trainer;  // the command line
  double stop_grace_seconds = 60;
  double orphan_grace_seconds =
      600;                  // the daemon may be dead for so long before the supervisor stops the trainer
  std::string daemon_lock;  // held while the daemon lives

  bool operator==(const AttemptRecord&) const = default;
};

// stop.json
struct StopRequest {
  double grace_seconds = 0;  // from when the supervisor reads it to SIGKILL
  bool user_cancel = false;
  bool fence = false;  // kill at once; nobody wants to hear of it
  std::string reason;  // for people

  bool operator==(const StopRequest&) const = default;
};

// supervisor.json
struct SupervisorRecord {
  ProcessIdentity supervisor;
  ProcessIdentity trainer;
  std::string boot;    // of the machine: identities of an earlier boot name nobody
  std::string cgroup;  // the attempt's own; empty: none

  bool operator==(const SupervisorRecord&) const = default;
};

// exit.json
struct ExitRecord {
  int exit_code = -1;  // of the trainer; -1 when it was killed or never ran
  int signal = 0;
  bool killed_by_service = false;  // the signal was ours
  std::optional<StopRequest> stop;
  std::string launch_error;                // why it could not be started
  std::string supervisor_error;            // the supervisor itself was lost
  std::vector<ProcessIdentity> survivors;  // could not be killed
  double end_time = 0;                     // seconds since 1970

  bool operator==(const ExitRecord&) const = default;
};

std::string to_json(const AttemptRecord& record);
std::string to_json(const StopRequest& request);
std::string to_json(const SupervisorRecord& record);
std::string to_json(const ExitRecord& record);
// Throw std::runtime_error that says what is wrong.
AttemptRecord parse_attempt_record(const std::string& json);
StopRequest parse_stop_request(const std::string& json);
SupervisorRecord parse_supervisor_record(const std::string& json);
ExitRecord parse_exit_record(const std::string& json);

struct AttemptFiles {
  explicit AttemptFiles(std::filesystem::path folder_path) : folder(std::move(folder_path)) {}
  std::filesystem::path folder;
  std::filesystem::path attempt() const { return folder / "attempt.json"; }
  std::filesystem::path spec() const { return folder / "spec.json"; }
  std::filesystem::path lock() const { return folder / "lock"; }
  std::filesystem::path supervisor() const { return folder / "supervisor.json"; }
  std::filesystem::path stop() const { return folder / "stop.json"; }
  std::filesystem::path log() const { return folder / "log"; }
  std::filesystem::path metrics() const { return folder / "metrics.jsonl"; }
  std::filesystem::path events() const { return folder / "events.jsonl"; }
  std::filesystem::path progress() const { return folder / "progress.json"; }
  std::filesystem::path supervisor_log() const { return folder / "supervisor.log"; }
  std::filesystem::path exit() const { return folder / "exit.json"; }
  std::filesystem::path shipped() const { return folder / "shipped"; }
};

// "jobs/quick-x7k2p/attempts/2" -> {"quick-x7k2p", 2}; nothing for any other form.
struct AttemptName {
  std::string job;
  int number = 0;
};
std::optional<AttemptName> parse_attempt_name(const std::string& attempt);
// "<job>.<n>.<epoch>"
std::string attempt_folder_name(const AttemptName& name, std::int64_t epoch);

}  // namespace coat::agent
