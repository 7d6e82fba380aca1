// The worker daemon: wires inventory, attempts, estimates, metrics and the stream to the controller, and
// drains on request.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "proto/common/clock.h"
#include "worker/agent/controller_stream.h"
#include "worker/agent/file_lock.h"
#include "worker/agent/options.h"

namespace coat {
class Metrics;
class MetricsServer;
}  // namespace coat

namespace coat::agent {

class AttemptSet;
class EstimateRunner;
class Inventory;
class JobMetrics;

class Daemon : private StreamContent {
 public:
  // Takes the state folder, adopts what runs, starts all threads, and writes <state-dir>/endpoints.json.
  // Throws std::runtime_error for people: the folder is not writable, in use by another worker or of a newer
  // version; the metrics address cannot be listened on.
  Daemon(WorkerOptions options, Clock& clock);
  // Leaves trainers running: their supervisors keep them for the next daemon.
  ~Daemon() override;

  // Asks every trainer to stop after a checkpoint; a second call gives those that are left five seconds.
  // Returns at once.
  void begin_shutdown();
  // Nothing runs any more, and the controller (where connected) has been told, or had ten seconds for it.
  bool drained();

  int metrics_port() const;
  std::int64_t incarnation() const { return incarnation_; }

 private:
  v1::Register make_register() override;
  v1::Heartbeat make_heartbeat() override;
  std::optional<v1::WorkerMessage> next_message() override;
  void on_message(const v1::ControllerMessage& message) override;
  void dispatch(const v1::ControllerMessage& message);
  void on_estimate_query(const v1::EstimateQuery& query);
  void loop();

  WorkerOptions options_;
  Clock& clock_;
  std::optional<FileLock> lock_;
  std::int64_t incarnation_ = 0;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<MetricsServer> metrics_server_;
  std::unique_ptr<JobMetrics> job_metrics_;
  std::unique_ptr<Inventory> inventory_;
  std::unique_ptr<AttemptSet> attempts_;

  mutable std::mutex mutex_;
  std::condition_variable stop_condition_;
  bool stopping_ = false;
  int shutdowns_ = 0;
  std::optional<SteadyTime> quiet_since_;  // shutting down, and no attempt is live
  std::int64_t session_ = 0;  // counts connections: an estimate belongs to the one that asked for it
  std::deque<v1::WorkerMessage> estimates_;
  std::atomic<std::int64_t> heartbeats_{0};
  std::atomic<bool> heartbeat_due_{false};

  std::unique_ptr<ControllerStream> stream_;
  std::unique_ptr<EstimateRunner> estimate_runner_;
  std::thread loop_thread_;
};

}  // namespace coat::agent
