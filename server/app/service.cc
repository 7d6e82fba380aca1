#include "server/app/service.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "proto/common/clock.h"
#include "proto/common/metrics.h"
#include "server/api/job_service.h"
#include "server/api/worker_service.h"
#include "server/app/grpc_endpoint.h"
#include "server/control/controller.h"
#include "server/store/attempt_files.h"
#include "server/store/sqlite_store.h"
#include "server/store/state_folder.h"

namespace coat::app {
namespace {

constexpr std::chrono::seconds kDrain{5};
const std::vector<double> kCommitBuckets = {0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5};

store::SqliteOptions store_options(const store::StateFolder& folder, Metrics& metrics) {
  store::SqliteOptions options;
  options.file = folder.database();
  options.on_commit = [&metrics](std::chrono::duration<double> length, std::int64_t wal_bytes) {
    metrics.observe("coat_store_commit_seconds", "Length of a commit, synced to disk.", {}, length.count(),
                    kCommitBuckets);
    metrics.set_gauge("coat_store_wal_bytes", "Size of the store's write-ahead log.", {},
                      static_cast<double>(wal_bytes));
  };
  return options;
}

control::Options control_options(const ControllerOptions& options, std::function<void()> on_failure) {
  control::Options control;
  control.version = COAT_VERSION;
  control.lease = {options.heartbeat_interval, options.lease, options.fence_after};
  control.on_failure = [on_failure = std::move(on_failure)](const std::string&) { on_failure(); };
  return control;
}

std::string endpoints_json(const std::string& jobs, const std::string& workers, const std::string& metrics) {
  return "{\"jobs\":\"" + jobs + "\",\"workers\":\"" + workers + "\",\"metrics\":\"" + metrics + "\"}\n";
}

}  // namespace

// Members go in the reverse order, so that nothing is used after its end.
struct Service::Parts {
  Parts(const ControllerOptions& options, std::function<void()> on_failure)
      : folder(options.state_dir),
        metrics("coat-controller", COAT_VERSION),
        files(folder.attempts()),
        store(store_options(folder, metrics), real_clock()),
        controller(control_options(options, std::move(on_failure)), real_clock(), store, files, metrics),
        started(start(controller)),
        job_service(controller, metrics),
        worker_service(controller, metrics),
        jobs({"--listen", options.listen, false}, {&job_service}),
        workers({"--worker-listen", options.worker_listen, true}, {&worker_service}),
        metrics_server(options.metrics_listen, metrics) {
    const Address wanted = parse_address("--metrics-listen", options.metrics_listen);
    const bool six = wanted.host.find(':') != std::string::npos;
    metrics_address =
        (six ? "[" + wanted.host + "]" : wanted.host) + ":" + std::to_string(metrics_server.port());
  }

  static bool start(control::Controller& controller) {
    controller.start();
    return true;
  }

  store::StateFolder folder;
  Metrics metrics;
  store::AttemptFiles files;
  store::SqliteStore store;
  control::Controller controller;
  bool started;  // before anyone can call it
  api::JobServiceImpl job_service;
  api::WorkerServiceImpl worker_service;
  GrpcEndpoint jobs;
  GrpcEndpoint workers;
  MetricsServer metrics_server;
  std::string metrics_address;
};

Service::Service(const ControllerOptions& options, std::function<void()> on_failure)
    : parts_(std::make_unique<Parts>(options, std::move(on_failure))) {
  store::write_file_atomically(parts_->folder.endpoints(),
                               endpoints_json(jobs_address(), workers_address(), metrics_address()));
  spdlog::info("serving jobs on {}, workers on {}, metrics on {}", jobs_address(), workers_address(),
               metrics_address());
}

Service::~Service() {
  std::error_code ignored;
  std::filesystem::remove(parts_->folder.endpoints(), ignored);
  parts_->jobs.set_serving(false);
  parts_->workers.set_serving(false);
  parts_->controller.stop();
  parts_->jobs.shut_down(kDrain / 2);
  parts_->workers.shut_down(kDrain / 2);
}

const std::string& Service::jobs_address() const { return parts_->jobs.address(); }
const std::string& Service::workers_address() const { return parts_->workers.address(); }
const std::string& Service::metrics_address() const { return parts_->metrics_address; }

}  // namespace coat::app
