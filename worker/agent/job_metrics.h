// The Prometheus series of this worker's live jobs: label job, the job's id. A series stays for a while after
// the job's end, so that it is scraped with its last value, and is removed then. Not thread-safe: the
// daemon's loop owns it.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "proto/common/clock.h"
#include "proto/common/metrics.h"
#include "worker/agent/attempt_set.h"

namespace coat::agent {

class JobMetrics {
 public:
  JobMetrics(Metrics& metrics, Clock& clock, std::chrono::milliseconds linger)
      : metrics_(metrics), clock_(clock), linger_(linger) {}

  // What an attempt's files say now. Called on every tick for every attempt; cheap when nothing is new.
  void observe(const AttemptView& attempt);
  // Removes the series of jobs that ended (or were not observed any more) longer than the linger ago.
  void expire();

 private:
  struct Job {
    std::int64_t epoch = 0;  // of the attempt that is shown: the job's newest
    std::int64_t step = -1;
    std::int64_t checkpoint_step = -1;
    bool started = false;
    double tokens = 0;
    double nonfinite_steps = 0;
    SteadyTime last_live{};
  };
  void export_start(const std::string& job, const protocol::Started& started);
  void export_step(const std::string& job, const protocol::Step& step, Job* known);
  void export_checkpoint(const std::string& job, const TrainingState& state);

  Metrics& metrics_;
  Clock& clock_;
  std::chrono::milliseconds linger_;
  std::map<std::string, Job> jobs_;
};

}  // namespace coat::agent
