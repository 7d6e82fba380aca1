// All attempts of this worker: what the controller says about them, and what it is still to hear.
// Thread-safe.
//
// One lock; under it files are written and synced, so calls may take milliseconds. Threads: the stream's
// reader calls on_*, its writer next_message, the daemon's loop tick.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "proto/coat/v1/worker_service.pb.h"
#include "proto/common/clock.h"
#include "worker/agent/attempt.h"
#include "worker/agent/inventory.h"

namespace coat::agent {

struct AttemptSetOptions {
  std::filesystem::path folder;  // of the attempts' folders
  std::filesystem::path checkpoint_dir;
  std::filesystem::path trainer;
  std::filesystem::path supervisor;
  std::filesystem::path daemon_lock;
  double orphan_grace_seconds = 600;
  std::size_t keep_ended = 20;  // delivered attempts whose folders stay for the operator
};

// What an attempt looks like to the per-job metrics.
struct AttemptView {
  std::string job;  // without "jobs/"
  std::int64_t epoch = 0;
  bool ended = false;
  const TrainingState& training;
};

class AttemptSet {
 public:
  AttemptSet(AttemptSetOptions options, Inventory& inventory, Clock& clock);

  // Takes over what an earlier daemon left. A folder that cannot be read is left alone and logged.
  void load();

  // Messages of the controller. One that names an epoch that is not the attempt's own is ignored.
  void on_assign(const v1::Assign& assign);
  void on_stop(const v1::Stop& stop);
  void on_fence(const v1::Fence& fence);
  void on_report_ack(const v1::AttemptReportAck& ack);
  void on_stream_ack(const v1::StreamAck& ack);

  // A new connection: every attempt that the controller is still to hear of, for Register.
  std::vector<v1::AttemptReport> begin_session();
  // The next report or chunk to send, if any: changes of state first, then progress (once a second), then
  // bytes in turn.
  std::optional<v1::WorkerMessage> next_message();

  // Starts what waits, follows what runs, removes what is delivered. True while there may be something to
  // send. `observe` sees every attempt, under the lock.
  bool tick(const std::function<void(const AttemptView&)>& observe);

  // Every attempt stops; new ones are refused. A second call with a shorter grace hurries them.
  void stop_all(std::optional<double> grace_seconds);
  std::size_t live_count() const;         // not ended
  std::size_t undelivered_count() const;  // ended, with something that the controller has not acknowledged

 private:
  using Key = std::pair<std::string, std::int64_t>;  // attempt, epoch
  Attempt* find(const std::string& attempt, std::int64_t epoch);
  std::optional<std::string> refusal(const v1::Assign& assign) const;
  AttemptRecord make_record(const v1::Assign& assign, const AttemptFiles& files,
                            const std::string& job) const;
  void fence_older(const AttemptName& name, std::int64_t epoch);
  void start_waiting(Attempt& attempt);
  bool may_start(const Attempt& attempt) const;
  void on_ended(const Attempt& attempt);
  std::optional<v1::WorkerMessage> next_report(Attempt& attempt);
  std::optional<v1::WorkerMessage> next_chunk(Attempt& attempt);
  std::optional<v1::WorkerMessage> read_chunk(Attempt& attempt, v1::StreamChunk::Kind kind);
  void remove_delivered();

  AttemptSetOptions options_;
  Inventory& inventory_;
  Clock& clock_;
  mutable std::mutex mutex_;
  std::map<Key, std::unique_ptr<Attempt>> attempts_;
  Key last_chunk_;  // whose bytes went last: the others are first
  bool stopping_ = false;
};

}  // namespace coat::agent
