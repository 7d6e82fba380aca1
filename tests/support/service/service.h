// The real controller, workers and command line in one temporary folder on loopback, on ports that the system
// picks. Everything that was started is killed when the object goes away; after a failed test the ends of all
// logs are printed.
//
//   Service service;
//   service.start_controller();
//   service.start_worker({});
//   const std::string job = service.submit({});
//   ASSERT_TRUE(service.reaches(job, v1::Job::SUCCEEDED));
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/lib/job_client.h"
#include "proto/coat/v1/types.pb.h"
#include "tests/support/service/child_process.h"
#include "tests/support/service/temporary_folder.h"
#include "tests/support/service/tiny_job.h"

namespace coat::testing {

struct ControllerTiming {
  std::string heartbeat_interval = "200ms";
  std::string lease = "2s";
  std::string fence_after = "2s";
};

struct WorkerOptions {
  std::string id = "w1";
  std::string checkpoint_dir;  // empty: the worker's default
  std::string memory_limit;    // empty: the worker's default
  std::vector<std::string> more;
};

// The folder of the built programs, and one of them by name.
std::filesystem::path program(const std::string& name);

class Service {
 public:
  explicit Service(ControllerTiming timing = {});
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path controller_folder() const { return folder_ / "controller"; }
  std::filesystem::path worker_folder(const std::string& id) const { return folder_ / ("worker-" + id); }

  // Returns when it serves. A second call after it has ended uses the same ports, as the workers expect. A
  // failure to start is a std::runtime_error with its log.
  void start_controller();
  ChildProcess& controller() { return *controller_; }
  std::string jobs_address() const { return endpoints_.at("jobs"); }
  std::string workers_address() const { return endpoints_.at("workers"); }
  std::string metrics_address() const { return endpoints_.at("metrics"); }

  // Returns when it has written its endpoints: it may not have registered yet.
  void start_worker(const WorkerOptions& options);
  ChildProcess& worker(const std::string& id) { return *workers_.at(id); }
  std::string worker_metrics_address(const std::string& id) const;
  // The trainers that run below a worker's folder, adopted ones too.
  std::vector<pid_t> trainers(const std::string& id) const {
    return processes_of(worker_folder(id), "coat-trainer");
  }

  // Whether the job has a complete checkpoint in a worker's checkpoint folder (its own, where none was
  // named).
  static bool has_checkpoint(const std::filesystem::path& checkpoint_dir, const std::string& job);

  // The job file of a tiny job, with data beside it.
  std::filesystem::path write_job(const TinyJob& job);
  // Submitted with the command line; returns its id without "jobs/". Records a failure and returns "" when it
  // is refused.
  std::string submit(const TinyJob& job);
  Output cli(std::vector<std::string> arguments, std::chrono::milliseconds patience = kPatience);

  // The client library, connected to the controller that was started last.
  client::JobClient& client() { return *client_; }

  // A job that cannot be read is an empty message.
  v1::Job job(const std::string& id);
  v1::Attempt attempt(const std::string& id, int number);
  std::vector<v1::Worker> workers();
  // True once `condition` holds for the job. On a time-out the job's last state is printed.
  bool reaches(const std::string& id, const std::function<bool(const v1::Job&)>& condition,
               std::chrono::milliseconds patience = kPatience);
  bool reaches(const std::string& id, v1::Job::State state, std::chrono::milliseconds patience = kPatience);
  bool worker_reaches(const std::string& id, v1::Worker::State state,
                      std::chrono::milliseconds patience = kPatience);

 private:
  void print_logs() const;
  std::map<std::string, std::string> wait_for_endpoints(ChildProcess& process,
                                                        const std::filesystem::path& folder,
                                                        const std::filesystem::path& log);

  TemporaryFolder folder_;
  ControllerTiming timing_;
  std::map<std::string, std::string> endpoints_;
  std::unique_ptr<ChildProcess> controller_;
  std::map<std::string, std::unique_ptr<ChildProcess>> workers_;
  std::unique_ptr<client::JobClient> client_;
  int job_files_ = 0;
};

}  // namespace coat::testing
