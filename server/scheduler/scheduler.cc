#include "server/scheduler/scheduler.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <tuple>

#include "proto/common/byte_size.h"

namespace coat::scheduler {
namespace {

using Reason = v1::PendingStatus;

std::string kind_name(WantedDevice wanted) {
  switch (wanted) {
    case WantedDevice::kCpu:
      return "cpu";
    case WantedDevice::kCuda:
      return "cuda";
    case WantedDevice::kAuto:
      break;
  }
  return "cpu or cuda";
}

std::string count(std::int64_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

// What a job could use on one worker.
struct Room {
  int of_kind = 0;  // devices of the kind, faulted ones too
  int healthy = 0;  // of them that are not faulted
  int large = 0;    // of these that hold the job when idle
  int free = 0;     // of these that are idle
  std::int64_t largest_bytes = 0;
  std::vector<int> free_indices;
};

Room room_on(const OfferedWorker& worker, const PendingJob& job) {
  Room room;
  const v1::Device::Kind kind = kind_on(job.device, worker.devices);
  for (const OfferedDevice& device : worker.devices) {
    if (device.kind != kind) continue;
    ++room.of_kind;
    if (!device.healthy) continue;
    ++room.healthy;
    room.largest_bytes = std::max(room.largest_bytes, device.memory_bytes);
    if (job.bytes_per_device.value_or(0) > device.memory_bytes) continue;
    ++room.large;
    if (device.busy) continue;
    ++room.free;
    room.free_indices.push_back(device.index);
  }
  std::sort(room.free_indices.begin(), room.free_indices.end());
  return room;
}

class Cycle {
 public:
  Cycle(const Snapshot& snapshot, SteadyTime now)
      : workers_(snapshot.workers), jobs_(snapshot.jobs), now_(now) {
    std::sort(workers_.begin(), workers_.end(),
              [](const OfferedWorker& a, const OfferedWorker& b) { return a.name < b.name; });
    std::sort(jobs_.begin(), jobs_.end(), [](const PendingJob& a, const PendingJob& b) {
      return std::tie(a.order, a.name) < std::tie(b.order, b.name);
    });
  }

  Decision run() {
    for (const PendingJob& job : jobs_) consider(job);
    number_the_queue();
    return std::move(decision_);
  }

 private:
  Reason& wait(const PendingJob& job, Reason::Reason reason, const std::string& message) {
    Reason& status = decision_.waiting[job.name];
    status.set_reason(reason);
    status.set_message(message);
    return status;
  }

  static void detail(Reason& status, const std::string& key, std::int64_t value) {
    (*status.mutable_details())[key] = std::to_string(value);
  }

  void consider(const PendingJob& job) {
    if (!job.silent_worker.empty()) {
      Reason& status = wait(job, Reason::WORKER_LOST,
                            job.silent_worker + " is silent; waiting for it to come back or to be given up");
      (*status.mutable_details())["worker"] = job.silent_worker;
      return;
    }
    if (job.not_before > now_) {
      back_off(job);
      return;
    }
    if (workers_.empty()) {
      wait(job, Reason::NO_WORKER,
           "no worker is connected; start coat-worker with --controller set to this controller");
      return;
    }
    place(job);
  }

  void back_off(const PendingJob& job) {
    // Rounded to the second, so that the message changes only with the time that is left.
    const auto left = std::chrono::ceil<std::chrono::seconds>(job.not_before - now_).count();
    Reason& status = wait(job, Reason::RETRY_BACKOFF,
                          "tries again in " + std::to_string(left) + " s" +
                              (job.last_failure.empty() ? "" : " after: " + job.last_failure));
    detail(status, "seconds", left);
    const SteadyTime again = std::min(job.not_before, now_ + std::chrono::seconds(1));
    if (!decision_.next || again < *decision_.next) decision_.next = again;
  }

  // The kinds of device that the job could be placed on, given who is connected.
  std::set<v1::Device::Kind> kinds(const PendingJob& job) const {
    if (job.device == WantedDevice::kCpu) return {v1::Device::CPU};
    if (job.device == WantedDevice::kCuda) return {v1::Device::CUDA};
    std::set<v1::Device::Kind> kinds;
    for (const OfferedWorker& worker : workers_) kinds.insert(kind_on(job.device, worker.devices));
    return kinds;
  }

  void place(const PendingJob& job) {
    Room most;  // the best that any worker offers, figure by figure
    const OfferedWorker* chosen = nullptr;
    Room chosen_room;
    bool fits_but_behind = false;
    for (const OfferedWorker& worker : workers_) {
      Room room = room_on(worker, job);
      most.of_kind = std::max(most.of_kind, room.of_kind);
      most.healthy = std::max(most.healthy, room.healthy);
      most.large = std::max(most.large, room.large);
      most.free = std::max(most.free, room.free);
      most.largest_bytes = std::max(most.largest_bytes, room.largest_bytes);
      if (room.free < job.devices) continue;
      if (held_up_.contains(kind_on(job.device, worker.devices))) {
        fits_but_behind = true;
        continue;
      }
      if (!chosen || room.free < chosen_room.free) {
        chosen = &worker;
        chosen_room = std::move(room);
      }
    }
    if (most.large < job.devices) {
      never_fits(job, most);
      return;
    }
    if (!job.bytes_per_device) {
      wait(job, Reason::EVALUATING,
           job.evaluation.empty() ? "a worker is reading the data and adding up the memory" : job.evaluation);
      hold_up(job);
      return;
    }
    if (chosen) {
      take(job, chosen->name, chosen_room.free_indices);
      return;
    }
    if (fits_but_behind) {
      Reason& status =
          wait(job, Reason::BEHIND_IN_QUEUE, "an earlier job is to be placed first: " + first_held_up_);
      (*status.mutable_details())["first"] = first_held_up_;
    } else {
      busy(job, most);
    }
    hold_up(job);
  }

  void never_fits(const PendingJob& job, const Room& most) {
    std::string message = "needs " + count(job.devices, kind_name(job.device) + " device") + " on one worker";
    if (most.of_kind < job.devices) {
      message += "; the largest connected worker has " + std::to_string(most.of_kind);
    } else if (most.healthy < job.devices) {
      message += "; the best connected worker has " + std::to_string(most.healthy) + " that are not faulted";
    } else {
      message += " with " + exact_bytes_text(*job.bytes_per_device) + " each; the largest has " +
                 exact_bytes_text(most.largest_bytes) +
                 ": use a smaller micro_batch, or a recipe that holds less";
    }
    Reason& status = wait(job, Reason::NEVER_FITS, message);
    detail(status, "devices_wanted", job.devices);
    detail(status, "devices_of_kind", most.of_kind);
    detail(status, "devices_healthy", most.healthy);
    detail(status, "device_bytes", most.largest_bytes);
    if (job.bytes_per_device) detail(status, "bytes_wanted", *job.bytes_per_device);
  }

  void busy(const PendingJob& job, const Room& most) {
    Reason& status =
        wait(job, Reason::DEVICES_BUSY,
             "needs " + count(job.devices, kind_name(job.device) + " device") + " on one worker; " +
                 std::to_string(most.free) + " of " + std::to_string(most.large) + " that fit are free");
    detail(status, "devices_wanted", job.devices);
    detail(status, "devices_that_fit", most.large);
    detail(status, "devices_free", most.free);
  }

  void hold_up(const PendingJob& job) {
    const auto mine = kinds(job);
    held_up_.insert(mine.begin(), mine.end());
    if (first_held_up_.empty()) first_held_up_ = job.name;
  }

  void take(const PendingJob& job, const std::string& worker, std::vector<int> indices) {
    indices.resize(static_cast<std::size_t>(job.devices));
    for (OfferedWorker& offered : workers_) {
      if (offered.name != worker) continue;
      for (OfferedDevice& device : offered.devices) {
        if (std::binary_search(indices.begin(), indices.end(), device.index)) device.busy = true;
      }
    }
    decision_.placements.push_back({job.name, worker, std::move(indices)});
  }

  // First those that are placed as soon as devices allow, then those that wait for something else.
  void number_the_queue() {
    int position = 0;
    for (const bool waits_for_devices : {true, false}) {
      for (const PendingJob& job : jobs_) {
        const auto found = decision_.waiting.find(job.name);
        if (found == decision_.waiting.end()) continue;
        const Reason::Reason reason = found->second.reason();
        const bool elsewhere =
            reason == Reason::NEVER_FITS || reason == Reason::RETRY_BACKOFF || reason == Reason::WORKER_LOST;
        if (elsewhere != waits_for_devices) found->second.set_queue_position(++position);
      }
    }
  }

  std::vector<OfferedWorker> workers_;
  std::vector<PendingJob> jobs_;
  SteadyTime now_;
  std::set<v1::Device::Kind> held_up_;
  std::string first_held_up_;
  Decision decision_;
};

}  // namespace

WantedDevice wanted_device(const std::string& name) {
  if (name == "cpu") return WantedDevice::kCpu;
  if (name == "cuda") return WantedDevice::kCuda;
  return WantedDevice::kAuto;
}

v1::Device::Kind kind_on(WantedDevice wanted, const std::vector<OfferedDevice>& devices) {
  if (wanted == WantedDevice::kCpu) return v1::Device::CPU;
  if (wanted == WantedDevice::kCuda) return v1::Device::CUDA;
  const bool cuda = std::any_of(devices.begin(), devices.end(),
                                [](const OfferedDevice& device) { return device.kind == v1::Device::CUDA; });
  return cuda ? v1::Device::CUDA : v1::Device::CPU;
}

Decision schedule(const Snapshot& snapshot, SteadyTime now) { return Cycle(snapshot, now).run(); }

}  // namespace coat::scheduler
