// Submit, cancel and estimate.
#include <utility>

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "proto/common/byte_size.h"
#include "server/control/controller.h"
#include "server/jobs/names.h"

namespace coat::control {
namespace {

// The same bytes for the same spec: maps are sorted.
std::string fingerprint(const v1::JobSpec& spec) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream output(&stream);
    output.SetSerializationDeterministic(true);
    spec.SerializeToCodedStream(&output);
  }
  return bytes;
}

ServiceError request_id_reused(const store::RequestRow& request) {
  ServiceError error;
  error.code = grpc::StatusCode::ALREADY_EXISTS;
  error.reason = "REQUEST_ID_REUSED";
  error.message = "request_id " + request.id + " was used for " + request.job +
                  ", which has another spec; make a new request_id for each job";
  error.metadata = {{"request_id", request.id}, {"job", request.job}};
  return error;
}

ServiceError too_large(const v1::Estimate& estimate) {
  const std::string needed = std::to_string(estimate.memory().total_bytes());
  const std::string held = std::to_string(estimate.device_memory_bytes());
  ServiceError error = failed_precondition(
      "MEMORY_ESTIMATE_EXCEEDS_DEVICE",
      "the job needs " + exact_bytes_text(estimate.memory().total_bytes()) +
          " on a device, and the largest connected one has " +
          exact_bytes_text(estimate.device_memory_bytes()) +
          "; use a smaller training.micro_batch or training.sequence_length, or a recipe that holds less");
  error.metadata = {{"needed_bytes", needed}, {"device_bytes", held}};
  return error;
}

ServiceError refusal(const fleet::EstimateAnswer& answer) {
  using Kind = fleet::EstimateAnswer::Kind;
  switch (answer.kind) {
    case Kind::kRefused:
      return invalid_argument({{answer.error.field(), answer.error.message(), answer.error.fix()}});
    case Kind::kFailed: {
      ServiceError error;
      error.code = grpc::StatusCode::INTERNAL;
      error.reason = "ESTIMATE_FAILED";
      error.message = answer.worker + " could not make the estimate: " + answer.error.message();
      error.metadata = {{"worker", answer.worker}};
      return error;
    }
    case Kind::kTimeout: {
      ServiceError error;
      error.code = grpc::StatusCode::DEADLINE_EXCEEDED;
      error.reason = "ESTIMATE_TIMEOUT";
      error.message = answer.worker + " did not answer in time";
      error.metadata = {{"worker", answer.worker}};
      return error;
    }
    default:
      return unavailable("WORKER_LEFT", answer.worker + " left before it answered; try again");
  }
}

}  // namespace

void Controller::submit(v1::JobSpec spec, std::string request_id, std::string actor, Done<v1::Job> done) {
  on_state(done, [this, spec = std::move(spec), request_id = std::move(request_id), actor = std::move(actor),
                  done] {
    const std::string bytes = fingerprint(spec);
    if (const auto known = requests_.find(request_id); !request_id.empty() && known != requests_.end()) {
      if (known->second.spec != bytes) {
        done(request_id_reused(known->second));
      } else {
        get_job(known->second.job, done);
      }
      return;
    }
    const auto random = [this] { return random_(); };
    std::string name = jobs::new_job_name(spec.name(), random);
    try {
      while (live(name) || store_.find_job(name)) name = jobs::new_job_name(spec.name(), random);
    } catch (const store::StoreError& error) {
      done(store_failed(error.what()));
      return;
    }
    const SystemTime now = clock_.system_now();
    jobs::Outcome outcome = jobs::create_job(name, jobs::new_uid(random), spec, {now, actor});
    LiveJob& job = jobs_[name];
    record(job, outcome);
    publish(job, outcome);
    if (!request_id.empty()) {
      const store::RequestRow row{request_id, bytes, name, jobs::unix_ms(now)};
      requests_[request_id] = row;
      journal_.batch().requests.push_back(row);
    }
    journal_.after([job = shown(job), done](bool durable) {
      if (durable) {
        done(job);
      } else {
        done(store_failed("the job was not saved"));
      }
    });
  });
}

void Controller::cancel(std::string name, std::string actor, Done<v1::Job> done) {
  on_state(done, [this, name = std::move(name), actor = std::move(actor), done] {
    LiveJob* job = live(name);
    if (!job) {
      answer_stored_job(name, done);
      return;
    }
    const jobs::Outcome outcome = apply(*job, jobs::CancelRequested{}, actor);
    journal_.after([this, name, answer = shown(*job), stop = outcome.stop_attempt, done](bool durable) {
      if (!durable) {
        done(store_failed("the cancel was not saved"));
        return;
      }
      const LiveJob* cancelled = live(name);
      if (stop && cancelled) send_stop(*cancelled);
      done(answer);
    });
  });
}

void Controller::estimate(v1::JobSpec spec, EstimateUse use, Done<std::optional<v1::Estimate>> done) {
  on_state(done, [this, spec = std::move(spec), use, done] {
    fleet::WorkerEntry* entry = worker_to_ask(spec);
    if (!entry && use == EstimateUse::kEstimate) {
      // Any worker can add up memory, also for a kind of device that it lacks.
      v1::JobSpec anywhere = spec;
      anywhere.mutable_resources()->set_device("auto");
      entry = worker_to_ask(anywhere);
      if (!entry) {
        done(failed_precondition("NO_WORKER", "no worker is connected; start coat-worker, then ask again"));
        return;
      }
    }
    if (!entry) {
      done(std::optional<v1::Estimate>());
      return;
    }
    send_query(*entry, spec, [this, spec, use, done](const fleet::EstimateAnswer& answer) {
      if (answer.kind != fleet::EstimateAnswer::Kind::kEstimate) {
        done(refusal(answer));
        return;
      }
      v1::Estimate estimate = answer.estimate;
      complete_estimate(spec, answer.worker, estimate);
      if (use == EstimateUse::kSubmitCheck && !estimate.fits()) {
        done(too_large(estimate));
      } else {
        done(std::optional<v1::Estimate>(std::move(estimate)));
      }
    });
  });
}

// The connected worker with the wanted kind of device that has the fewest open queries.
fleet::WorkerEntry* Controller::worker_to_ask(const v1::JobSpec& spec) {
  const scheduler::WantedDevice wanted = scheduler::wanted_device(spec.resources().device());
  fleet::WorkerEntry* best = nullptr;
  std::size_t best_open = 0;
  for (auto& [name, entry] : workers_.entries()) {
    if (!entry.connected() || entry.worker.state() != v1::Worker::READY) continue;
    bool suits = false;
    for (const v1::Device& device : entry.worker.devices()) {
      suits =
          suits || wanted == scheduler::WantedDevice::kAuto ||
          device.kind() == (wanted == scheduler::WantedDevice::kCuda ? v1::Device::CUDA : v1::Device::CPU);
    }
    const std::size_t open = desk_.open_on(name);
    if (suits && (!best || open < best_open)) {
      best = &entry;
      best_open = open;
    }
  }
  return best;
}

void Controller::send_query(fleet::WorkerEntry& entry, const v1::JobSpec& spec,
                            fleet::EstimateDesk::Done done) {
  const SteadyTime deadline = clock_.now() + options_.estimate_timeout;
  v1::ControllerMessage message;
  message.mutable_estimate()->set_query_id(desk_.open(entry.worker.name(), deadline, std::move(done)));
  *message.mutable_estimate()->mutable_spec() = spec;
  entry.link->send(std::move(message));
}

// Holds the worker's ledger against the largest device that the job could get.
void Controller::complete_estimate(const v1::JobSpec& spec, const std::string& worker,
                                   v1::Estimate& estimate) const {
  const scheduler::WantedDevice wanted = scheduler::wanted_device(spec.resources().device());
  std::int64_t largest = 0;
  for (const scheduler::OfferedWorker& offered : snapshot().workers) {
    const v1::Device::Kind kind = scheduler::kind_on(wanted, offered.devices);
    for (const scheduler::OfferedDevice& device : offered.devices) {
      if (device.kind == kind && device.healthy) largest = std::max(largest, device.memory_bytes);
    }
  }
  estimate.set_worker(worker);
  estimate.set_device_memory_bytes(largest);
  estimate.set_fits(estimate.memory().total_bytes() <= largest);
}

}  // namespace coat::control
