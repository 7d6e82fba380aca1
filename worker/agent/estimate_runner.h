// Answers EstimateQuery by running `coat-trainer --estimate`: only there the model can be read and the data
// looked at.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/coat/v1/worker_service.pb.h"
#include "worker/agent/inventory.h"

namespace coat::agent {

struct EstimateRunnerOptions {
  std::filesystem::path folder;  // for spec files, emptied at start
  std::filesystem::path trainer;
  std::string worker_id;
  int concurrency = 2;
  std::chrono::milliseconds timeout{120000};  // of one estimate; then its process is killed
  std::size_t max_waiting = 1000;             // beyond it a query is answered with an error at once
};

// Thread-safe.
class EstimateRunner {
 public:
  using Answer = std::function<void(v1::EstimateResult)>;

  EstimateRunner(EstimateRunnerOptions options, const Inventory& inventory);
  // Waits for running estimates after killing their processes; waiting queries are dropped.
  ~EstimateRunner();

  // `answer` is called once, on one of the runner's threads (or on the caller's, for a query that is
  // refused), or never when the runner ends first.
  void submit(const v1::EstimateQuery& query, Answer answer);

 private:
  void work();
  v1::EstimateResult run(const v1::EstimateQuery& query);

  EstimateRunnerOptions options_;
  const Inventory& inventory_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<v1::EstimateQuery, Answer>> waiting_;
  bool stopping_ = false;
  std::int64_t runs_ = 0;
  std::vector<std::thread> threads_;  // live as long as the daemon: their death would signal their children
};

// What a trainer's standard output says: its last line is an estimate or a failure. `error_output` is quoted
// when it is neither.
v1::EstimateResult parse_estimate_output(const std::string& output, const std::string& error_output);

}  // namespace coat::agent
